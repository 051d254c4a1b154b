// SPDX-License-Identifier: GPL-2.0
//! `kernel::sync`.

pub mod atomic;
pub mod rcu;

pub use crate::backend::Arc;

use crate::bindings::lock_class_key;
use std::pin::Pin;

/// A class of locks for lockdep.
pub struct LockClassKey(());

impl LockClassKey {
    /// Returns the only one.
    pub fn one() -> Pin<&'static Self> {
        Pin::new(&Self(()))
    }

    /// Returns the address.
    pub fn as_ptr(&self) -> *mut lock_class_key {
        std::ptr::null_mut()
    }
}
