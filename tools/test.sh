#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every suite:  sh tools/test.sh [quick]
#   quick   one optimised build, every suite of it
#   (none)  the same, then the suites again under AddressSanitizer + UBSan, and the bodies under ThreadSanitizer; then
#           two builds that must be the same bytes, the tree as a subproject, the API reference, and an Arm build in qemu
# GPU suites run where a supported GPU is; elsewhere they are reported as skipped.
set -eu
cd "$(dirname "$0")/.."
sh tools/setup.sh build
ninja -C build
meson test -C build --no-rebuild --print-errorlogs
[ "${1:-}" = quick ] && exit 0

sh tools/setup.sh build-asan -Db_sanitize=address,undefined -Db_lundef=false
ninja -C build-asan
meson test -C build-asan --no-rebuild --print-errorlogs --no-suite gpu --no-suite frozen --no-suite cubin -t 4

sh tools/setup.sh build-tsan -Db_sanitize=thread
ninja -C build-tsan
meson test -C build-tsan --no-rebuild --print-errorlogs --suite race -t 4

sh tools/reproduce.sh
sh tests/subproject.sh .
ninja -C build docs
sh tools/aarch64.sh
