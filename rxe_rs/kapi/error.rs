// SPDX-License-Identifier: GPL-2.0
//! Errors: what the kernel crate's `error` lacks.

use core::ffi::c_int;
use kernel::prelude::*;

/// Returns the integer that C expects for `result`: 0 or a negative errno.
///
/// # Context
///
/// Any context.
#[inline]
pub(crate) fn errno(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}
