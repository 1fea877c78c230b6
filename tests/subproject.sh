#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds tests/consumers as a Meson project that has this tree as its subproject, and runs it: the library alone, without
# tests. Slow (all images are compiled), so it belongs to the full mode of tools/test.sh.
#   sh tests/subproject.sh SOURCE_DIR
set -eu
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$root/tests/consumers/meson.build" "$root/tests/consumers/consumer.c" "$work/"
mkdir "$work/subprojects"
ln -s "$root" "$work/subprojects/kda"
meson setup "$work/build" "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
ninja -C "$work/build" consumer found >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for program in consumer found; do
    "$work/build/$program" | grep -q packed_t1_tile8 || { echo "subproject: $program: FAILED"; exit 1; }
done
echo 'subproject: ok'
