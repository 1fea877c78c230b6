// SPDX-License-Identifier: Apache-2.0
//! Finds libkda: in the folder that KDA_LIB names, else where the linker looks. KDA_BUNDLE names the
//! bundle file that examples include.
use std::env;

fn main() {
    if let Ok(folder) = env::var("KDA_LIB") {
        println!("cargo:rustc-link-search=native={folder}");
    }
    println!("cargo:rustc-link-lib=dylib=kda");
    println!("cargo:rerun-if-env-changed=KDA_LIB");
    println!("cargo:rerun-if-env-changed=KDA_BUNDLE");
}
