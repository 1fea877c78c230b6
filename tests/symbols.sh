#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the libraries show to a program that links them: only kda_* symbols, no constructor, no executable stack, no
# writable copy of the bundle.
#   sh tests/symbols.sh libkda.so libkda.a kda.bundle kda.h
set -eu
failed=0
fail() { echo "$1"; failed=1; }
exported() { nm "$@" | awk 'NF == 3 && $2 ~ /[A-TV-Z]/ {print $3} NF == 2 && $1 ~ /[A-TV-Z]/ {print $2}'; }

for symbols in "$(exported -D --defined-only "$1")" "$(exported --defined-only "$2")"; do
    [ -n "$symbols" ] || fail 'no exported symbols at all'
    bad=$(echo "$symbols" | grep -v '^kda_' || true)
    [ -z "$bad" ] || fail "exported without prefix: $bad"
done
public=$(grep -oE 'KDA_API [^;]*' "$4" | grep -oE '\**kda_[a-z_]+\(' | tr -d '*(' | sort -u)
[ "$(exported -D --defined-only "$1" | sort -u)" = "$public" ] || fail 'libkda.so exports another set than kda.h declares'
[ "$(exported --defined-only "$2" | sort -u)" = "$public" ] || fail 'libkda.a exports another set than kda.h declares'
readelf -lW "$1" | grep -q 'GNU_STACK.*RWE' && fail 'executable stack'
size=$(wc -c <"$3")
writable=$(size -A "$1" | awk '$1 == ".data" {print $2}')
[ "${writable:-0}" -lt "$size" ] || fail "writable data of $writable bytes: a copy of the bundle?"
exit $failed
