#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets and runs each for SECONDS (60), from its seeds and from what earlier runs left in the build
# folder. Any crash, leak, wrong status or allocation above 64 MiB ends it with the input that caused it.
#   sh tests/fuzz/run.sh [SECONDS [BUILD_DIR]]
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
build=${2:-build-fuzz}
[ -f "$build/build.ninja" ] || CC=clang CXX=clang++ meson setup "$build" -Dfuzz=true -Db_lundef=false >/dev/null
ninja -C "$build" tests/fuzz/bundle-fuzz tests/fuzz/args-fuzz
mkdir -p "$build/corpus/bundle" "$build/corpus/args"
"$build/tests/fuzz/bundle-fuzz" --seed "$build/corpus/bundle"
for target in bundle args; do
    length=4096
    [ $target = args ] && length=160
    echo "fuzzing $target for $seconds s"
    "$build/tests/fuzz/$target-fuzz" -max_total_time="$seconds" -max_len=$length -malloc_limit_mb=64 -timeout=10 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="$build/" "$build/corpus/$target"
done
