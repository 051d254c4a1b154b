// SPDX-License-Identifier: GPL-2.0
//! `kernel::error`.

use crate::prelude::{Error, Result};

/// The result of a C function.
///
/// # Errors
///
/// The errno, if the value is one.
pub fn to_result(err: i32) -> Result {
    if err < 0 {
        Err(Error::from_errno(err))
    } else {
        Ok(())
    }
}
