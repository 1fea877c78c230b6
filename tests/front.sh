#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The fronts beside each other: the Rust crate is built offline, with warnings as errors, and its own tests run; the same
# step and the same wrong stride go through C++, Rust and Python, which must say the same line. (C and DLPack are held together by every row
# of the argument suites, and the C++ front only passes on.)
#   sh tests/front.sh ROOT BUILD SOFT_DIR PYTHON HELLO_CPP
set -eu
root=$(realpath "$1") build=$(realpath "$2") soft=$(realpath "$3") python=$4 hello=$(realpath "$5")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="$build:$soft"

"$hello" >"$work/c++"
cat "$work/c++"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/loader/python" "$python" "$root/examples/hello.py" >"$work/python"
cmp "$work/c++" "$work/python"
echo 'python: the same'

version=$(sed -n "s/.* version : '\(.*\)',/\1/p" "$root/meson.build" | head -n 1)
grep -q "^version = \"$version\"" "$root/loader/rust/Cargo.toml" || { echo "Cargo.toml is not of version $version"; exit 1; }
if command -v cargo >/dev/null && command -v rustc >/dev/null; then
    # Its own copy, so that nothing is written beside the sources.
    cp -r "$root/loader/rust" "$work/rust"
    cd "$work/rust"
    export KDA_LIB="$build" KDA_BUNDLE="$build/kda.bundle" RUSTFLAGS="-D warnings -L native=$soft"
    export CARGO_NET_OFFLINE=true CARGO_HOME="$work/cargo"
    cargo build -q --offline --locked --example hello
    cargo test -q --offline --locked --lib
    target/debug/examples/hello >"$work/rust.out"
    cmp "$work/c++" "$work/rust.out"
    echo "rust: the same, built by $(rustc --version)"
else
    echo 'rust: skipped: no rustc and cargo on this machine'
fi
