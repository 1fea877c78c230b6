#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts the NVRTC of manifest/toolchains.lock into toolchain/nvrtc-VERSION-ARCH/, which the build expects. What is there
# already is verified and kept, and then no network is needed; nothing that has another digest is ever put there.
#   sh tools/fetch-nvrtc.sh [WHEEL]     WHEEL: a local copy of the wheel, instead of a download
set -eu
[ $# -le 1 ] || { echo "usage: fetch-nvrtc.sh [WHEEL]" >&2; exit 2; }
wheel=
if [ $# -eq 1 ]; then
    [ -f "$1" ] || { echo "fetch-nvrtc: $1: no such file" >&2; exit 2; }
    wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
fi
cd "$(dirname "$0")/.."
lock=manifest/toolchains.lock
arch=$(uname -m)
[ "$arch" = arm64 ] && arch=aarch64

fail() { echo "fetch-nvrtc: $1" >&2; exit 1; }
# The digest that the lock states for FILE on this machine.
digest_of() { awk -v arch="$arch" -v file="$1" '$1 == "sha256" && $2 == arch && $4 == file { print $3 }' "$lock"; }
verify() { # PATH NAME
    found=$(sha256sum <"$1") || return 1
    [ "${found%% *}" = "$(digest_of "$2")" ] || fail "$1: sha256 ${found%% *}, expected $(digest_of "$2") of $lock"
}

version=$(awk '$1 == "package" { print $3 }' "$lock")
package=$(awk '$1 == "package" { print $2 }' "$lock")
file=$(awk -v arch="$arch" '$1 == "wheel" && $2 == arch { print $4 }' "$lock")
platform=$(awk -v arch="$arch" '$1 == "wheel" && $2 == arch { print $3 }' "$lock")
[ -n "$file" ] || fail "$lock has no wheel for $arch; build with -Dnvrtc=system"
libraries=$(awk -v arch="$arch" '$1 == "sha256" && $2 == arch && $4 !~ /\.whl$/ { print $4 }' "$lock")

folder=toolchain/nvrtc-$version-$arch
there=yes
for library in $libraries; do [ -f "$folder/$library" ] || there=; done
if [ -n "$there" ]; then
    for library in $libraries; do verify "$folder/$library" "$library"; done  # to repair: remove the folder
    echo "$folder is there and verified"
    exit 0
fi

mkdir -p toolchain
temporary=$(mktemp -d toolchain/fetch.XXXXXX)
trap 'rm -rf "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
if [ -z "$wheel" ]; then
    echo "fetching $package $version for $arch"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip: install python3-pip, or pass a local wheel"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform "$platform" --python-version 3 --dest "$temporary" "$package==$version" ||
        fail "$package $version cannot be downloaded; pass a local copy of $file"
    wheel=$temporary/$file
    [ -f "$wheel" ] || fail "the download is not $file"
fi
verify "$wheel" "$file"
python3 -m zipfile -e "$wheel" "$temporary/wheel" || fail "$wheel cannot be unpacked"
mkdir "$temporary/nvrtc"
for library in $libraries; do
    mv "$temporary/wheel/nvidia/cuda_nvrtc/lib/$library" "$temporary/nvrtc/" || fail "$file holds no $library"
    verify "$temporary/nvrtc/$library" "$library"
done
rm -rf "$folder"
mv "$temporary/nvrtc" "$folder"
echo "$folder is there and verified"
