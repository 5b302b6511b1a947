#!/bin/sh
# Runs the tests of this package as a 64-bit ARM processor would, on any Linux machine: cross-compiled with cgo, emulated
# by qemu-user, once with everything the emulator has and once as a Cortex-A72, which lacks the dot product instructions.
# Arguments go to the test binary, such as -test.run=Quantize. Without the tools it says so and succeeds.
#
#   apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
set -eu
cd "$(dirname "$0")"
CC=${CC:-aarch64-linux-gnu-gcc}
sysroot=${SYSROOT:-/usr/aarch64-linux-gnu}
for tool in "${CC%% *}" qemu-aarch64; do
    if ! command -v "$tool" >/dev/null; then
        echo "test_arm64.sh: skipped: no $tool"
        exit 0
    fi
done
tests=$(mktemp)
trap 'rm -f "$tests"' EXIT
GOOS=linux GOARCH=arm64 CGO_ENABLED=1 CC=$CC "${GO:-go}" test -c -o "$tests" .
for cpu in max cortex-a72; do
    echo "test_arm64.sh: $cpu"
    qemu-aarch64 -L "$sysroot" -cpu $cpu "$tests" -test.short "$@"
done
