#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The C example of README.md compiles as it stands, inside a function that has the variables it speaks of.
#   sh tests/readme.sh ROOT
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    echo '#include "kda.h"'
    echo 'static int fail(const char *text) { return text[0]; }'
    echo 'int example(void *q, void *k, void *v, void *g, void *beta, void *pool, void *out, void *indices, int64_t rows,'
    echo '            int64_t slots, CUstream stream);'
    echo 'int example(void *q, void *k, void *v, void *g, void *beta, void *pool, void *out, void *indices, int64_t rows,'
    echo '            int64_t slots, CUstream stream)'
    echo '{'
    awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on && !/^#include/' "$1/README.md"
    echo '    return 0;'
    echo '}'
} >"$work/example.c"
grep -q kda_recurrent "$work/example.c" || { echo 'README.md has no C example'; exit 1; }
cc -std=c11 -Wall -Wextra -Werror -I "$1/loader" -c -o "$work/example.o" "$work/example.c"
