#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The library and its inspector as guests: loading, opening, dumping and routing look for no driver, need no HOME, no
# network and no place to write; forks, exits and unloads are silent.
#   sh tests/process.sh KDA_DUMP PROCESS_TEST LIBKDA BUNDLE TRAP_DIR SOFT_DIR
set -eu
dump=$(realpath "$1") program=$(realpath "$2") library=$(realpath "$3") bundle=$(realpath "$4")
trap_dir=$(realpath "$5") soft_dir=$(realpath "$6")
failed=0
fail() { echo "$1"; failed=1; }
empty=$(mktemp -d)
output=$(mktemp -d)
trap 'rm -rf "$empty" "$output"' EXIT
chmod 555 "$empty"

offline=
if unshare -rn true 2>/dev/null; then offline='unshare -rn'; else echo 'no network namespaces here: not tried without network'; fi

# No environment but the trap, a folder without write permission, no file may grow by a byte, no network.
bare() {
    # shellcheck disable=SC2086
    (cd "$empty" && ulimit -f 0 && exec $offline env -i LD_LIBRARY_PATH="$trap_dir" \
        ASAN_OPTIONS="${ASAN_OPTIONS:-}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-}" "$@") 2>&1 | cat >"$output/text"
}
run_bare() { # WORD COMMAND: the output must contain the word
    word=$1
    shift
    bare "$@" || true
    grep -q -- "$word" "$output/text" || fail "$*: expected '$word', found: $(head -c 2000 "$output/text")"
    ! grep -q '^trap:' "$output/text" || fail "$*: looked for a driver"
}
run_bare sm_100f "$dump" "$bundle"
run_bare '"bundle_id"' "$dump" "$bundle" --json
run_bare . "$dump" "$bundle" verify
run_bare sm_103a "$dump" "$bundle" routes
run_bare d128_t1 "$dump" "$bundle" route --op recurrent --cc 10.3 --cuda 13.0 --sms 152 --n 16 --h 16 --hv 32
run_bare 12.0 "$dump" "$bundle" route --op recurrent --cc 12.0 --cuda 13.0 --sms 152 --n 16 --h 16 --hv 32
run_bare . "$dump" "$bundle" diff "$bundle"
# The trap works: what asks for the driver falls into it.
bare "$dump" "$bundle" env || true
grep -q '^trap:' "$output/text" || fail 'kda-dump env does not fall into the trap'
[ -z "$(ls -A "$empty")" ] || fail "files were written: $(ls -A "$empty")"

# Nothing to speak to a network with.
names=$(nm -D --undefined-only "$library" | awk '{print $2}' | sed 's/@.*//')
for name in socket connect bind getaddrinfo getenv secure_getenv system popen execve abort exit printf fprintf puts; do
    echo "$names" | grep -qx "$name" && fail "libkda.so calls $name" || true
done

silent() { # LIBRARY_PATH CASE
    status=0
    (ulimit -f 0 && LD_LIBRARY_PATH=$1 exec "$program" "$2" "$library") 2>&1 | cat >"$output/text"
    [ ! -s "$output/text" ] || fail "case $2 says: $(head -c 2000 "$output/text")"
    (LD_LIBRARY_PATH=$1 exec "$program" "$2" "$library") >/dev/null 2>&1 || status=$?
    [ "$status" = 0 ] || fail "case $2 ends with $status"
}
silent "$trap_dir" load
silent "$trap_dir" open
for case in fork-before fork-after leave-open close-late unload; do silent "$soft_dir" "$case"; done
exit $failed
