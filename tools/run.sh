#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds everything and does the main job once: shows the manifest and the routes, then decodes real input through the
# public API and checks every step against the float64 oracle. Runs on a GPU that one of the two bundles supports, else
# on the soft device, which executes the same frozen bodies on the CPU.
set -eu
cd "$(dirname "$0")/.."
sh tools/setup.sh build
ninja -C build

echo; echo '== manifest'
build/kda-dump build/kda.bundle
echo; echo '== routes'
build/kda-dump build/kda.bundle routes

# kda-dump env exits 0 when the bundle can run on a device of this machine.
echo; echo '== decode'
for bundle in build/kda.bundle build/kda-sm90a.bundle; do
    if build/kda-dump "$bundle" env; then
        for op in recurrent packed verify; do build/kda-demo "$op" --bundle "$bundle"; done
        exit 0
    fi
done
echo 'no supported GPU: decoding on the soft device'
for op in recurrent packed verify; do
    LD_LIBRARY_PATH=build/tests/soft${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} build/kda-demo "$op" --bundle build/kda.bundle
done
