// SPDX-License-Identifier: GPL-2.0
//! Checksums of the kernel's library.

/// CRC-32 (Ethernet polynomial, reflected) of `data` continued from `seed`.
///
/// No inversion is done before or after: start with all ones and complement the result for the
/// usual CRC-32. Uses the CPU's carry-less multiplication where there is one.
///
/// # Context
///
/// Any context.
#[inline]
pub fn crc32_le(seed: u32, data: &[u8]) -> u32 {
    // SAFETY: The slice is valid for reads of its length.
    unsafe { crate::bindings::crc32_le(seed, data.as_ptr().cast(), data.len()) }
}
