// SPDX-License-Identifier: GPL-2.0
//! Errors: what the kernel crate's `error` lacks.

use core::ffi::c_int;
use kernel::{
    error::Error,
    prelude::*, //
};

/// `EOPNOTSUPP`, which the kernel crate of Linux 7.2 does not name.
///
/// # Context
///
/// Any context.
pub fn unsupported() -> Error {
    Error::from_errno(-(crate::bindings::EOPNOTSUPP as c_int))
}

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
