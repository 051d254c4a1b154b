// SPDX-License-Identifier: GPL-2.0
//! The version of the driver: the one in `Cargo.toml`, which `Kbuild` passes in the environment.

use kernel::prelude::*;

/// The version as text, which the RDMA core shows as that of the firmware.
pub(crate) const TEXT: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("RXE_RS_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the version contains a NUL byte"),
    };

/// Major, minor and patch number.
pub(crate) const NUMBERS: [u16; 3] = numbers(env!("RXE_RS_VERSION"));

/// Parses `MAJOR.MINOR.PATCH`. Called by the compiler only, so that a panic is a compile error.
const fn numbers(text: &str) -> [u16; 3] {
    let text = text.as_bytes();
    let mut numbers = [0; 3];
    let (mut number, mut i) = (0, 0);
    while i < text.len() {
        match text[i] {
            b'.' => number += 1,
            digit @ b'0'..=b'9' => numbers[number] = numbers[number] * 10 + (digit - b'0') as u16,
            _ => panic!("the version is not MAJOR.MINOR.PATCH"),
        }
        i += 1;
    }
    assert!(number == 2, "the version is not MAJOR.MINOR.PATCH");
    numbers
}
