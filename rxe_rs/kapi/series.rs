// SPDX-License-Identifier: GPL-2.0
//! What differs between the kernel crates of the supported series, Linux 7.2 and 7.3. Nothing else
//! in the driver depends on the series.

use core::{
    borrow::Borrow,
    ffi::c_int, //
};
use kernel::error::Error;

/// `EOPNOTSUPP`, which the kernel crate of Linux 7.2 does not name.
///
/// # Context
///
/// Any context.
pub fn unsupported() -> Error {
    Error::from_errno(-(crate::bindings::EOPNOTSUPP as c_int))
}

/// Returns true if the value of a module parameter is not 0. It is a reference on Linux 7.2, and a
/// value on 7.3.
///
/// # Context
///
/// Any context.
pub fn is_set(value: impl Borrow<u8>) -> bool {
    *value.borrow() != 0
}
