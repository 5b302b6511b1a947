#!/bin/sh
# Rebuilds the modules. Needs clang and wasm-ld.
set -eu
cd "$(dirname "$0")"
for source in hostile/*.c c/bigram.c; do # c/qwen3moe.c: see languages_test.go
	flags=$(sed -n 's,^// flags: ,,p' "$source")
	clang --target=wasm32 -nostdlib -Os -Wno-everything -I. -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=8192 $flags \
		-o "${source%.c}.wasm" "$source"
done
