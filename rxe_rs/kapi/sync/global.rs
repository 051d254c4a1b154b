// SPDX-License-Identifier: GPL-2.0
//! A module-wide value for callbacks that carry no context.

use crate::bindings;
use core::ptr;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        rcu,
        Arc, //
    },
};

/// Holds an optional `Arc<T>`, for use in a `static`.
///
/// Readers take no lock; the value is dropped after a grace period.
pub struct Global<T: Send + Sync + 'static>(Atomic<*mut T>);

impl<T: Send + Sync + 'static> Global<T> {
    /// Creates an empty one.
    ///
    /// # Context
    ///
    /// Any context.
    pub const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Sets the value until the result is dropped.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it has a value.
    pub fn set(&'static self, value: Arc<T>) -> Result<Filled<T>> {
        let raw = Arc::into_raw(value).cast_mut();
        match self.0.cmpxchg(ptr::null_mut(), raw, Full) {
            Ok(_) => Ok(Filled(self)),
            Err(_) => {
                // SAFETY: From `into_raw` just now, and not stored.
                drop(unsafe { Arc::from_raw(raw) });
                Err(EBUSY)
            }
        }
    }

    /// Runs `f` on the value, if there is one.
    ///
    /// # Context
    ///
    /// Any context; `f` must not sleep.
    #[inline]
    pub fn with<R>(&self, _rcu: &rcu::Guard, f: impl FnOnce(&T) -> R) -> Option<R> {
        let raw = self.0.load(Acquire);
        if raw.is_null() {
            return None;
        }
        // SAFETY: `self` owned a reference when the pointer was read, and drops it after a grace
        // period; `_rcu` proves that we are in a read-side critical section.
        Some(f(unsafe { &*raw }))
    }
}

impl<T: Send + Sync + 'static> Default for Global<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Keeps the value of a [`Global`] set; clears it when dropped, in process context.
pub struct Filled<T: Send + Sync + 'static>(&'static Global<T>);

impl<T: Send + Sync + 'static> Drop for Filled<T> {
    fn drop(&mut self) {
        let raw = self.0 .0.xchg(ptr::null_mut(), Full);
        // SAFETY: Process context by the type's documentation.
        unsafe { bindings::synchronize_rcu() };
        if !raw.is_null() {
            // SAFETY: From `Arc::into_raw` in `set`, taken out once, and no reader is left.
            drop(unsafe { Arc::from_raw(raw) });
        }
    }
}
