#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the libraries show to a program that links them: only kda_* symbols, no constructor, no executable stack, no
# writable copy of the bundle.
#   sh tests/symbols.sh libkda.so libkda.a kda.bundle HEADER_DIR libkda-blob.a
set -eu
failed=0
fail() { echo "$1"; failed=1; }
exported() { nm "$@" | awk 'NF == 3 && $2 ~ /[A-TV-Z]/ {print $3} NF == 2 && $1 ~ /[A-TV-Z]/ {print $2}'; }

for symbols in "$(exported -D --defined-only "$1")" "$(exported --defined-only "$2")"; do
    [ -n "$symbols" ] || fail 'no exported symbols at all'
    bad=$(echo "$symbols" | grep -v '^kda_' || true)
    [ -z "$bad" ] || fail "exported without prefix: $bad"
done
public=$(grep -hoE 'KDA_API [^;]*' "$4/kda.h" "$4/kda_dlpack.h" | grep -oE '\**kda_[a-z_]+\(' | tr -d '*(' | sort -u)
[ "$(exported -D --defined-only "$1" | sort -u)" = "$public" ] || fail 'libkda.so exports another set than the headers declare'
[ "$(exported --defined-only "$2" | sort -u)" = "$public" ] || fail 'libkda.a exports another set than the headers declare'
readelf -lW "$1" | grep -q 'GNU_STACK.*RWE' && fail 'executable stack'
for archive in "$2" "$5"; do
    sections=$(readelf -SW "$archive")
    echo "$sections" | grep -q '\.note\.GNU-stack' || fail "$archive: no GNU-stack note"
    echo "$sections" | grep '\.note\.GNU-stack' | grep -q 'X' && fail "$archive: executable stack"
    echo "$sections" | grep -qE '\.(init_array|ctors|preinit_array)' && fail "$archive: a constructor"
done
# The one entry is the start-up code of the compiler.
entries=$(readelf -SW "$1" | awk '/ \.init_array / {sub(/.*INIT_ARRAY/, ""); print $3}')
pointer=$(readelf -hW "$1" | grep -q ELF64 && echo 000008)
[ "${entries:-$pointer}" = "$pointer" ] || fail "libkda.so: init_array of 0x$entries bytes: a constructor"
size=$(wc -c <"$3")
for library in "$1" "$2" "$5"; do
    writable=$(size -A "$library" | awk '$1 ~ /^\.data($|\.[^r])/ {n += $2} END {print n + 0}')
    [ "$writable" -lt "$size" ] || fail "$library: writable data of $writable bytes: a copy of the bundle?"
done
exit $failed
