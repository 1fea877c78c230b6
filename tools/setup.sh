#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what a fresh Debian 12 or Ubuntu 24.04 machine lacks, and configures a build. Called by run.sh and test.sh; a
# machine that has everything is left alone and needs no network.
#   sh tools/setup.sh [--tests] [BUILD_DIR [MESON_OPTION...]]
#   --tests   also what only the suites need: python3-jsonschema holds JSON against its schema, cmake builds a consumer,
#             groff and doxygen read the man page and the reference, gcovr measures coverage, clang brings libFuzzer,
#             python3-venv installs the wheel, rustc and cargo build the crate, libdlpack-dev has DLPack's own header
set -eu
cd "$(dirname "$0")/.."

packages='gcc g++ meson ninja-build pkg-config python3 python3-pip binutils libzstd-dev libmd-dev libcmocka-dev'
if [ "${1:-}" = --tests ]; then
    packages="$packages python3-jsonschema cmake groff doxygen gcovr clang libclang-rt-dev python3-venv rustc cargo libdlpack-dev"
    shift
fi
missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "installing:$missing"
    if [ "$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

sh tools/fetch-nvrtc.sh

build=${1:-build}
[ $# -gt 0 ] && shift
if [ -f "$build/build.ninja" ]; then
    [ $# -eq 0 ] || meson configure "$build" "$@"
else
    meson setup "$build" -Dsm90a=true "$@"
fi
