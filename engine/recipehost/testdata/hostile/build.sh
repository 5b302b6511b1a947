#!/bin/sh
# Rebuilds the modules. Needs clang and wasm-ld.
set -eu
cd "$(dirname "$0")"
for source in *.c; do
	name=${source%.c}
	pages=
	if [ "$name" = memory ]; then pages=-Wl,--initial-memory=134217728; fi
	clang --target=wasm32 -nostdlib -Os -Wno-everything -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=8192 $pages \
		-o "$name.wasm" "$source"
done
