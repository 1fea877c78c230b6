#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Links an archive with its private dependencies into one relocatable object, makes every symbol local that is not a
# public kda_* function, and archives that:  sh tools/relocatable.sh IN.a OUT.a
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
zstd=$(cc -print-file-name=libzstd.a)
md=$(cc -print-file-name=libmd.a)
ld -r -z noexecstack -o "$work/kda.o" --whole-archive "$1" --no-whole-archive "$zstd" "$md"
objcopy --localize-hidden --wildcard --keep-global-symbol='kda_*' "$work/kda.o"
rm -f "$2"
ar rcD "$2" "$work/kda.o"
