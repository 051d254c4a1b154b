// SPDX-License-Identifier: GPL-2.0
//! Gives the shared library a soname with the number of its binary interface, by which the loader
//! finds it. An incompatible change of `rxe_rs_verbs.h` increments the number.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librxe_rs.so.1");
}
