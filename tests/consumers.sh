#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the build into a folder of its own and builds users' programs against that, by pkg-config and by CMake: C11,
# C++17, position-independent, static, a plugin, two bundles in one process, a program with a zstd of its own, and the
# bundle without the library. Prints a line per variant, and one for each that is skipped, with the reason.
#   sh tests/consumers.sh BUILD_DIR SOURCE_DIR PREFIX LIBDIR BUNDLE [OTHER_BUNDLE]
set -eu
build=$1 sources=$2/tests/consumers prefix=$3 libdir=$4 built=$5 other=${6:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
meson install -C "$build" --no-rebuild --quiet --destdir "$work/root"
root=$work/root$prefix
lib=$root/$libdir
log=$work/log

fail() { cat "$log"; echo "$1: FAILED"; exit 1; }
skip() { echo "$1: skipped: $2"; }
config() { PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --define-variable=prefix="$root" "$@"; }
make() { # NAME COMMAND...
    name=$1
    shift
    "$@" >"$log" 2>&1 || fail "$name does not build"
}
run() { # NAME EXPECTED COMMAND...
    name=$1 expected=$2
    shift 2
    LD_LIBRARY_PATH=$lib "$@" >"$log" 2>&1 || fail "$name"
    grep -q "$expected" "$log" || fail "$name does not say \"$expected\""
    echo "$name: ok"
}

bundle=$(config --variable=bundle kda)
cmp "$bundle" "$built" >"$log" || fail 'pkg-config --variable=bundle'
strict='-O2 -pedantic -Wall -Wextra -Werror'
flags=$(config --cflags kda)
shared=$(config --libs kda)
# The archive by its own name, since -lkda prefers the shared library.
static="$lib/libkda.a $(config --static --libs kda | sed 's/-lkda\>//')"
blob=$(config --libs kda-blob)
other=${other:+$(dirname "$bundle")/$(basename "$other")}
cd "$work"
# shellcheck disable=SC2086
{
    make c11 cc -std=c11 $strict $flags "$sources/consumer.c" -o c11 $shared
    run c11 packed_t1_tile8 ./c11
    cp "$sources/consumer.c" consumer.cc
    make c++17 c++ -std=c++17 $strict $flags consumer.cc -o cpp17 $shared
    run c++17 packed_t1_tile8 ./cpp17
    make 'c++ front' c++ -std=c++17 $strict $flags -c "$sources/../../examples/hello.cc" -o hello.o
    echo 'c++ front: compiles'
    make archive cc -std=c11 $strict $flags "$sources/consumer.c" -o archive $static
    run archive packed_t1_tile8 env -u LD_LIBRARY_PATH ./archive
    ldd archive | grep -E 'zstd|libmd|libkda|libcuda' && fail 'archive needs a library beside those of C'
    make pie cc -std=c11 $strict -fPIE -pie -DCONSUMER_BLOB $flags "$sources/consumer.c" -o pie $static $blob
    run pie 'the same blob' ./pie
    # The linker warns that dlopen in a static program needs the C library at run time: opening bundles does not.
    make static cc -std=c11 $strict -static $flags "$sources/consumer.c" -o static $static
    run static packed_t1_tile8 ./static
    make plugin cc -std=c11 $strict -fPIC -shared -fvisibility=hidden -Wl,--no-undefined -DCONSUMER_PLUGIN $flags \
        "$sources/consumer.c" -o plugin.so $static
    make plugin cc -std=c11 $strict -D_GNU_SOURCE "$sources/host.c" -o host -ldl
    run plugin packed_t1_tile8 ./host ./plugin.so
    make 'own zstd' cc -std=c11 $strict -DCONSUMER_ZSTD $flags "$sources/consumer.c" -o zstd $static -lzstd
    run 'own zstd' '^zstd 1' ./zstd
    make 'own static zstd' cc -std=c11 $strict -static -DCONSUMER_ZSTD $flags "$sources/consumer.c" -o zstd $static -lzstd
    run 'own static zstd' '^zstd 1' ./zstd
    make blob cc -std=c11 $strict $(config --cflags kda-blob) "$sources/blob.c" -o blob $blob
    ./blob | cmp - "$bundle" >"$log" || fail blob
    echo 'blob: ok'
}
if [ -n "$other" ]; then
    run 'two bundles' 'two bundles' ./c11 "$other"
else
    skip 'two bundles' 'configured without -Dsm90a=true'
fi
if command -v cmake >/dev/null; then
    make cmake cmake -G Ninja -S "$sources" -B cmake -Dkda_DIR="$lib/cmake/kda"
    make cmake cmake --build cmake
    run 'cmake shared' packed_t1_tile8 cmake/shared
    run 'cmake static' 'the same blob' cmake/static
else
    skip cmake 'no cmake on this machine'
fi
