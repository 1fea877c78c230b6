#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kda-dump extract gives the very bytes that went into the bundle, and the vendor's tools accept them. Where cuobjdump or
# nvdisasm is not on the PATH nor in /usr/local/cuda/bin, that half is reported as skipped.
#   sh tests/extract.sh KDA_DUMP BUNDLE CUBIN...
set -eu
program=$1 bundle=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$PATH:/usr/local/cuda/bin
count=0
for cubin; do
    name=$(basename "$cubin" .cubin)
    "$program" "$bundle" extract "$name" -o "$work/$name.cubin" >/dev/null
    cmp "$cubin" "$work/$name.cubin"
    count=$((count + 1))
done
[ "$count" -gt 0 ] || { echo 'no images'; exit 1; }
echo "extract: $count images are exact"
accept() { # PROGRAM OPTION EXPECTED
    if ! command -v "$1" >/dev/null; then
        echo "$1: skipped: not installed"
        return
    fi
    for file in "$work"/*.cubin; do
        entry=kda_$(basename "$file" | sed 's/\..*//')
        "$1" "$2" "$file" >"$work/text" 2>&1 || { cat "$work/text"; echo "$1 refuses $file"; exit 1; }
        grep -q "$entry" "$work/text" || { echo "$1 $2 does not show $entry"; exit 1; }
    done
    echo "$1: accepts all of them"
}
accept cuobjdump -elf
accept nvdisasm -c
