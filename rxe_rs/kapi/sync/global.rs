// SPDX-License-Identifier: GPL-2.0
//! A module-wide value for callbacks that carry no context.

use crate::bindings;
use core::ptr;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full};
use kernel::sync::{rcu, Arc};

/// A place for one `Arc<T>`, to be put in a `static`.
///
/// Readers take no lock; the value goes after a grace period.
pub struct Global<T: Send + Sync + 'static>(Atomic<*mut T>);

impl<T: Send + Sync + 'static> Global<T> {
    /// An empty place.
    pub const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Fills the place until the result is dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is filled.
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
    #[inline]
    pub fn with<R>(&self, _rcu: &rcu::Guard, f: impl FnOnce(&T) -> R) -> Option<R> {
        let raw = self.0.load(Acquire);
        if raw.is_null() {
            return None;
        }
        // SAFETY: The place owned a reference when it was read, and drops it after a grace
        // period; `_rcu` says that we are in a read side section.
        Some(f(unsafe { &*raw }))
    }
}

impl<T: Send + Sync + 'static> Default for Global<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A filled [`Global`]; empties it when dropped, in process context.
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
