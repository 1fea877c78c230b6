#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The race checker checks: every body with shared memory is silent with its barrier, of the CTA or of the warp,
# and reported without it.
#   sh tests/race/race.sh RACE_TEST BODY...          frozen bodies: no report
#   sh tests/race/race.sh --broken RACE_TEST BODY    its barrier was removed: a report
set -eu
broken=
if [ "$1" = --broken ]; then broken=1; shift; fi
program=$1
shift
failed=0
for body; do
    status=0
    text=$(TSAN_OPTIONS='exitcode=66 halt_on_error=0' "$program" "$body" 2>&1) || status=$?
    echo "$text" | grep -qx launched || { echo "$body: was not launched: $text"; failed=1; }
    if [ -n "$broken" ]; then
        if [ "$status" != 66 ] || ! echo "$text" | grep -q 'WARNING: ThreadSanitizer: data race'; then
            echo "$body: the removed barrier was not found, status $status"; failed=1
        fi
    elif [ "$status" != 0 ]; then
        echo "$body: status $status: $text"; failed=1
    fi
done
exit $failed
