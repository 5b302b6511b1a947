#!/bin/sh
# Builds every recipe to <arch>/<arch>.wasm beside its source, or below the folder given. The bytes depend on the
# sources and on the Go version, which GOVERSION records.
set -eu
cd "$(dirname "$0")"
out=${1:-.}
go env GOVERSION >"$out/GOVERSION"
for main in */main.go; do
	arch=${main%/main.go}
	mkdir -p "$out/$arch"
	GOOS=wasip1 GOARCH=wasm GOWASM= GOFLAGS= GOEXPERIMENT= go build -buildmode=c-shared -trimpath -buildvcs=false \
		-ldflags="-s -w -buildid=" -o "$out/$arch/$arch.wasm" "./$arch"
done
