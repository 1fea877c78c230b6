#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Field kit: on a machine with a B200, B300 or H200, builds everything, runs the GPU suites and the bench on that card, and
# writes one text file, which says all that README's table of what was run needs. Send it in.
#   sh tools/field.sh [--soft] [BUILD_DIR [OUTPUT_FILE]]
#   --soft   the same on the soft device, quickly, to try the kit out: the file says that it is of no card
# The suites are those of `meson test --suite gpu`. Python with torch adds the package's tests and host times. The file
# holds no host name, user or path.
set -eu
cd "$(dirname "$0")/.."
soft=
if [ "${1:-}" = --soft ]; then
    soft=1
    shift
fi
build=${1:-build} file=${2:-kda-field.txt}
if [ ! -f "$build/build.ninja" ]; then sh tools/setup.sh "$build"; fi
[ -n "$soft" ] || ninja -C "$build"
if [ -n "$soft" ]; then export LD_LIBRARY_PATH="$build/tests/soft${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; fi

# The first bundle that can run here.
bundle=
for candidate in "$build/kda.bundle" "$build/kda-sm90a.bundle"; do
    if [ -f "$candidate" ] && "$build/kda-dump" "$candidate" env >/dev/null 2>&1; then
        bundle=$candidate
        break
    fi
done
if [ -z "$bundle" ]; then
    echo 'field: no device here that one of the bundles supports:'
    "$build/kda-dump" "$build/kda.bundle" env || true
    exit 1
fi

failed=0
section() { echo; echo "== $1"; }
# The command's output without the lines of what went well; its own line says how it ended.
run() { # NAME COMMAND...
    name=$1
    shift
    status=0
    "$@" >"$work/log" 2>&1 || status=$?
    grep -vE '^\[ *(RUN|OK) *\]|^\[-+\]|^$' "$work/log" || true
    case $status in
    0) echo "$name: passed" ;;
    77) echo "$name: skipped" ;;
    *)
        echo "$name: FAILED, exit status $status"
        failed=1
        ;;
    esac
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
report() {
    echo "kda field report, $(date -u +%Y-%m-%d)"
    if [ -n "$soft" ]; then echo 'SOFT DEVICE: computed on the CPU, says nothing of a card'; fi
    section 'device'
    "$build/kda-dump" "$bundle" env
    if [ -z "$soft" ] && command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current --format=csv
    fi
    section 'bundle'
    basename "$bundle"
    "$build/kda-dump" "$bundle" --json | grep -o '"bundle_id": *"[0-9a-f]*"'
    git rev-parse HEAD 2>/dev/null | sed 's/^/source  /' || true
    run 'every byte' "$build/kda-dump" "$bundle" verify

    section 'suites'
    suites=$(sed -n "s/^gpu_suites = \[\(.*\)\]/\1/p" tests/meson.build | tr -d "',")
    [ -z "$soft" ] || suites=golden
    for suite in $suites; do
        case $suite in
        golden) run golden "$build/tests/golden-test" tests/golden "$bundle" ;;
        *) run "$suite" "$build/tests/$suite-test" "$bundle" ;;
        esac
    done

    section 'fronts'
    run 'serving loop in C' "$build/examples/serve" --bundle "$bundle"
    if [ -z "$soft" ] && command -v python3 >/dev/null; then
        python() { LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONPATH=loader/python python3 -B "$@"; }
        run 'serving loop in Python' python examples/serve.py "$bundle"
        run 'torch' python tests/python/test_torch.py "$bundle"
        run 'host time of the Python front' python tools/bench_front.py "$bundle"
        run 'fused decode and separate kernels' python tools/bench_pipeline.py --bundle "$bundle" --gate lower_bound
    fi

    section 'bench, time over the floor'
    run bench "$build/kda-bench" gpu --bundle "$bundle" --routed ${soft:+--quick} --tsv "$work/tsv"
    section 'bench, every row'
    cat "$work/tsv"
    section 'result'
    [ "$failed" = 0 ] && echo 'all passed' || echo 'FAILED, see above'
}
report >"$file"
tail -n 1 "$file"
echo "written: $file"
grep -q '^all passed$' "$file"
