#!/bin/sh
# Rebuilds the modules. Needs clang and wasm-ld.
set -eu
cd "$(dirname "$0")"
for source in */*.c; do
	memory=
	if [ "$source" = hostile/memory.c ]; then memory=-Wl,--initial-memory=134217728; fi
	clang --target=wasm32 -nostdlib -Os -Wno-everything -I. -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=8192 $memory \
		-o "${source%.c}.wasm" "$source"
done
