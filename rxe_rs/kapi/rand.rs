// SPDX-License-Identifier: GPL-2.0
//! Random numbers.

/// A random number from the kernel's generator.
///
/// # Context
///
/// Any context.
#[inline]
pub fn random_u32() -> u32 {
    // SAFETY: No requirements.
    unsafe { crate::bindings::get_random_u32() }
}
