// SPDX-License-Identifier: GPL-2.0
//! Vectors that grow without a panic in the object file.
//!
//! The kernel crate's `reserve` doubles the capacity and checks that for overflow, which ends in a
//! panic. It cannot happen, but the compiler only sees that if the capacity has been compared.

use kernel::{
    alloc::{
        kvec::Vec,
        Allocator,
        Flags, //
    },
    prelude::*, //
};

/// Reserves capacity for `additional` more elements, as `Vec::reserve`.
///
/// # Context
///
/// Any context that `flags` allow.
///
/// # Errors
///
/// `ENOMEM`.
#[inline(always)]
pub(crate) fn reserve<T, A: Allocator>(
    vec: &mut Vec<T, A>,
    additional: usize,
    flags: Flags,
) -> Result {
    if vec.spare_capacity_mut().len() >= additional {
        return Ok(());
    }
    let len = vec.len();
    if vec.capacity() > usize::MAX / 2 || len > vec.capacity() {
        return Err(ENOMEM);
    }
    vec.reserve(additional, flags)?;
    Ok(())
}

/// Appends `value`, as `Vec::push`.
///
/// # Context
///
/// Any context that `flags` allow.
///
/// # Errors
///
/// `ENOMEM`.
#[inline(always)]
pub fn push<T, A: Allocator>(vec: &mut Vec<T, A>, value: T, flags: Flags) -> Result {
    reserve(vec, 1, flags)?;
    vec.push_within_capacity(value).map_err(|_| ENOMEM)
}
