#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Cross-builds for an Arm host in build-aarch64, runs suites there in qemu, and holds the chain's Arm programs against the
# native ones: same bodies, same bundle. On Debian it installs the cross packages; where they cannot be had it says why
# and succeeds. What runs is named below. Of the unit and fault suites those are left out that start the library's own
# programs, which qemu cannot, and on a qemu in which the smallest program with a thread and a fork does not end (7.2 on
# recent kernels) those that need either; of the bodies' suites golden runs whole and the rest some bodies, qemu being slow.
#   sh tools/aarch64.sh
set -eu
cd "$(dirname "$0")/.."
skip() { echo "aarch64: skipped: $1"; exit 0; }

[ "$(uname -m)" != aarch64 ] || skip 'this machine is one: the other suites ran on it'
packages='gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user libzstd-dev:arm64 libmd-dev:arm64 libcmocka-dev:arm64'
missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    # Elsewhere arm64 packages have servers of their own, and adding the architecture would break apt-get update.
    grep -q '^ID=debian' /etc/os-release 2>/dev/null || skip "not Debian, and not installed:$missing"
    [ "$(id -u)" = 0 ] || skip "not root, and not installed:$missing"
    echo "installing:$missing"
    dpkg --add-architecture arm64
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        >/dev/null 2>&1 || skip "apt-get cannot install$missing"
fi

build=build-aarch64
[ -f $build/build.ninja ] || meson setup --cross-file tools/aarch64.ini $build >/dev/null
ninja -C $build
run() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/probe.c" <<'END'
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void *same(void *x) { return x; }
int main(void)
{
    pthread_t thread;
    if (pthread_create(&thread, 0, same, 0) || pthread_join(thread, 0)) return 1;
    pid_t child = fork();
    if (child == 0) _exit(0);
    return waitpid(child, 0, 0) != child;
}
END
aarch64-linux-gnu-gcc -pthread -o "$work/probe" "$work/probe.c"
if timeout 20 qemu-aarch64 -L /usr/aarch64-linux-gnu "$work/probe"; then
    threads='soft threads fault'
else
    threads=
    echo 'aarch64: this qemu ends no program with a thread and a fork: soft, threads and fault are left out'
fi
# shellcheck disable=SC2086
meson test -C $build --no-rebuild --print-errorlogs -t 4 bodies device-lock layers header-c11 header-c++17 lock \
    bundle-lock elf oracle route bundle args golden hostile isolation fit_packed fit_recurrent $threads

soft() { LD_LIBRARY_PATH=$build/tests/soft run "$@"; }
soft $build/tests/packed-test --only 'body_*' $build/kda.bundle
soft $build/tests/recurrent-test --only 'body_d128_t1_precomputed_direct*' $build/kda.bundle
run $build/gen --check --root .
# shellcheck disable=SC2046
run $build/kda-pack -o "$work/kda.bundle" --root . --targets sm_100f,sm_100a,sm_103a \
    $(sed 's|.*  bodies/\(.*\)\.cu$|\1|' manifest/bodies.lock | while read -r body; do
        for target in sm_100f sm_100a sm_103a; do echo "$build/$body.$target.cubin"; done
    done)
cmp "$work/kda.bundle" $build/kda.bundle
run $build/kda-pack --ids manifest/bundle.lock --check "$work/kda.bundle"
run $build/kda-dump "$work/kda.bundle" verify
python3 loader/python/backend.py $build "$work" | grep 'manylinux_2_[0-9]*_aarch64.whl$'
echo 'aarch64: gen and kda-pack give the bytes of the native ones'
