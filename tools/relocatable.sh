#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Links an archive with its private dependencies into one relocatable object, makes every symbol local that is not a
# public kda_* function, and archives that:  sh tools/relocatable.sh IN.a OUT.a LD OBJCOPY AR CC...
set -eu
in=$1 out=$2 ld=$3 objcopy=$4 ar=$5
shift 5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
zstd=$("$@" -print-file-name=libzstd.a)
md=$("$@" -print-file-name=libmd.a)
"$ld" -r -z noexecstack -o "$work/kda.o" --whole-archive "$in" --no-whole-archive "$zstd" "$md"
"$objcopy" --localize-hidden --wildcard --keep-global-symbol='kda_*' "$work/kda.o"
rm -f "$out"
"$ar" rcD "$out" "$work/kda.o"
