#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every suite:  sh tools/test.sh [quick]
#   quick   one optimised build, every suite of it
#   (none)  the same; a coverage build of the library; the suites again under AddressSanitizer + UBSan; the race suite
#           under ThreadSanitizer; both fuzz targets for a minute each; then two builds that must be the same bytes, the
#           tree as a subproject, the API reference, and an Arm build in qemu
# GPU suites run where a supported GPU is; elsewhere they are reported as skipped.
#
# Budgets on 2 cores, minutes, build included: quick 8; coverage 8; asan 8; tsan 8; fuzz 3; the rest 10; all of it 45,
# of which 31 were used. Under a sanitizer the bodies run one of each kind (`--only` below), because one run of all of
# them is a matter of speed, not of finding more.
set -eu
cd "$(dirname "$0")/.."
sh tools/setup.sh --tests build
ninja -C build
meson test -C build --no-rebuild --print-errorlogs
[ "${1:-}" = quick ] && exit 0

sh tools/coverage.sh build-coverage

sh tools/setup.sh build-asan -Db_sanitize=address,undefined -Db_lundef=false
ninja -C build-asan
meson test -C build-asan --no-rebuild --print-errorlogs -t 4 --suite unit --suite fault --suite golden
for program in recurrent packed fused verify; do
    LD_LIBRARY_PATH=build-asan/tests/soft "build-asan/tests/$program-test" build-asan/kda.bundle --only 'body_*'
done

sh tools/setup.sh build-tsan -Db_sanitize=thread
ninja -C build-tsan
meson test -C build-tsan --no-rebuild --print-errorlogs --suite race -t 4

sh tests/fuzz/run.sh 60 build-fuzz

sh tools/reproduce.sh
sh tests/subproject.sh .
ninja -C build docs
sh tools/aarch64.sh
