#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How much of the library the unit, fault and golden suites run: lines and branches of loader/, and what they miss. Ends
# with a failure below 95 % of the lines or 90 % of the branches.
#   sh tools/coverage.sh [BUILD_DIR]
set -eu
cd "$(dirname "$0")/.."
build=${1:-build-coverage}
# Counters that many threads count with must be atomic.
sh tools/setup.sh "$build" -Db_coverage=true -Doptimization=0 -Dc_args=-fprofile-update=atomic
ninja -C "$build"
find "$build" -name '*.gcda' -delete
meson test -C "$build" --no-rebuild --print-errorlogs -t 4 --suite unit --suite fault --suite golden
# Of the library; the front ends above it, kda.hpp among them, have suites of their own.
library='loader/[a-z_]+\.(c|h|inc)$'
# Hidden branches are those that a compiler adds, not those of the source.
gcovr --root . --filter "$library" --exclude-unreachable-branches --branches "$build" >"$build/branches.txt"
gcovr --root . --filter "$library" --exclude-unreachable-branches --print-summary \
    --fail-under-line 95 --fail-under-branch 90 "$build"
