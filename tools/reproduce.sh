#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Proves that the products depend on the sources alone: builds them in two places that differ in directory, user, umask,
# time zone, locale, file times, order of files and number of jobs, and compares every byte. Then holds the bundle ids
# against manifest/bundle.lock. Equal bytes need one zstd version, which a bundle records and this prints; the id does not.
#   sh tools/reproduce.sh
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n "s/^ *version : '\(.*\)',/\1/p" meson.build)
products="kda.bundle kda-sm90a.bundle libkda.so.$version libkda.a libkda-blob.a"

# `reproduce.sh build JOBS` is one of the two: this tree, in the environment that the caller made.
if [ "${1:-}" = build ]; then
    # shellcheck disable=SC2086
    meson setup build -Dsm90a=true -Dtests=false >log 2>&1 && ninja -C build -j "$2" $products >>log 2>&1 ||
        { tail -n 30 log; exit 1; }
    exit 0
fi

sh tools/fetch-nvrtc.sh >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$work"
cp -r toolchain "$work/toolchain"

# The tree as a clone would have it, and the toolchain, which is verified, by reference.
copy() { # DIR SORT_OPTION
    mkdir -p "$1"
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -co --exclude-standard
    else
        find . -path ./toolchain -prune -o -name 'build*' -type d -prune -o -type f -print | sed 's|^\./||'
    fi | sort $2 | while read -r file; do
        [ ! -f "$file" ] || { mkdir -p "$1/$(dirname "$file")" && cp "$file" "$1/$file"; }
    done
    ln -s "$work/toolchain" "$1/toolchain"
}

copy "$work/a" ''
find "$work/a" -type f -exec touch -d 2001-02-03 {} +
(
    umask 022
    export TZ=UTC0 LC_ALL=C USER=one LOGNAME=one HOME="$work/a"
    sh "$work/a/tools/reproduce.sh" build 1
)

# Files of the future, but those that Meson reads: it would configure again without end.
other="$work/another place/that/is longer"
copy "$other" -r
find "$other" -type f ! -name 'meson*' ! -name '*.lock' ! -name '*.in' ! -name '*.hpp' -exec touch -d 2031-02-03 {} +
locale=$(locale -a 2>/dev/null | grep -viE '^(c|posix|c\..*)$' | head -n 1)
as_other=
if [ "$(id -u)" = 0 ]; then
    as_other='setpriv --reuid=nobody --clear-groups --inh-caps=-all'
    chown -R nobody "$work/another place"
    $as_other test -r "$other/meson.build" || { as_other=; chown -R root "$work/another place"; }
fi
(
    umask 077
    export TZ=Asia/Kathmandu LC_ALL="${locale:-C.UTF-8}" USER=two LOGNAME=two HOME="$other"
    $as_other sh "$other/tools/reproduce.sh" build 2
)
echo "the second build: user $(stat -c %U "$other/log"), locale ${locale:-C.UTF-8}"

for product in $products; do
    cmp "$work/a/build/$product" "$other/build/$product" || { echo "$product: differs between two builds"; exit 1; }
    echo "$product: $(sha256sum <"$other/build/$product" | cut -c1-64)"
done

# The packer alone, with its images in the opposite order.
cd "$other/build"
# shellcheck disable=SC2046
./kda-pack -o reversed.bundle --root .. --targets sm_100f,sm_100a,sm_103a $(ls -r ./*.sm_10*.cubin | grep -v floor)
cmp reversed.bundle kda.bundle || { echo 'kda.bundle: depends on the order of the images'; exit 1; }
cd "$work/a"
"$work/a/build/kda-pack" --ids manifest/bundle.lock --check "$work/a/build/kda.bundle" "$work/a/build/kda-sm90a.bundle"
echo "two builds are the same bytes, with zstd $(pkg-config --modversion libzstd), and have the ids of manifest/bundle.lock"
