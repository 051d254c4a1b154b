// SPDX-License-Identifier: GPL-2.0
//! A value that many use and that anybody can take away at once, from any context.
//!
//! C header: [`include/linux/rwlock.h`](srctree/include/linux/rwlock.h)

use super::context::{disable_bh, BhDisabled};
use crate::bindings;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::Deref;
use kernel::prelude::*;
use kernel::sync::LockClassKey;
use kernel::types::Opaque;

/// Holds a value, or none. Users never wait: they get in or are turned away. Who changes it waits
/// for the users, so that after [`update`](Self::update) nobody uses what was there before.
///
/// Uses are short (a copy of one packet) and happen with bottom halves off, which bounds the wait.
/// With PREEMPT_RT a user can be preempted, even by who changes the value: that one sleeps then
/// until the user has run, as with any lock there; a wait of our own would spin for ever.
pub struct Rearmable<T>(Pin<KBox<Inner<T>>>);

/// # Invariants
///
/// The lock is initialised; the value is reached shared by who holds it for reading, and
/// exclusively by who holds it for writing.
#[pin_data]
struct Inner<T> {
    #[pin]
    lock: Opaque<bindings::rwlock_t>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: The value is guarded by the lock, which may be used from any thread.
unsafe impl<T: Send> Send for Inner<T> {}
// SAFETY: As above; users on several CPUs share the value.
unsafe impl<T: Send + Sync> Sync for Inner<T> {}

/// Makes a [`Rearmable`](crate::sync::Rearmable) with a lock class of its own: `new_rearmable!(value, "name")`.
#[macro_export]
macro_rules! new_rearmable {
    ($value:expr, $name:literal $(,)?) => {
        $crate::sync::Rearmable::new(
            $value,
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}

impl<T> Rearmable<T> {
    /// A gate with a value behind it, or none; see [`new_rearmable!`]. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(
        value: Option<T>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        let inner = KBox::pin_init(
            // INVARIANT: The lock is initialised here.
            pin_init!(Inner {
                // SAFETY: The slot is pinned and valid for writes; name and key are static.
                lock <- Opaque::ffi_init(|slot| unsafe {
                    bindings::rxe_rs_rwlock_init(slot, name.as_char_ptr(), key.as_ptr())
                }),
                value: UnsafeCell::new(value),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(inner))
    }

    /// Uses the value; `None` if there is none or somebody is changing it.
    ///
    /// Context: bottom halves off until the guard is dropped. The user does not call
    /// [`update`](Self::update) of the same gate meanwhile.
    #[inline]
    pub fn try_access(&self) -> Option<Guard<'_, T>> {
        // SAFETY: The lock is initialised by the type invariant.
        if !unsafe { bindings::rxe_rs_read_trylock(self.0.lock.get()) } {
            return None;
        }
        let guard = Guard {
            inner: &self.0,
            _task: PhantomData,
        };
        // SAFETY: The lock is held for reading, so nobody changes the value.
        unsafe { &*self.0.value.get() }.is_some().then_some(guard)
    }

    /// Lets `f` change the value when nobody uses it. Any context but a hard interrupt, no guard of
    /// the gate held; waits for users on other CPUs. `f` is short and changes no other gate.
    pub fn update<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> R {
        let update = Update::begin(&self.0);
        // SAFETY: The lock is held for writing until `update` is dropped.
        let result = f(unsafe { &mut *self.0.value.get() });
        drop(update);
        result
    }
}

/// The lock is held for writing.
struct Update<'a, T> {
    inner: &'a Inner<T>,
    _bh: BhDisabled,
}

impl<'a, T> Update<'a, T> {
    fn begin(inner: &'a Inner<T>) -> Self {
        let bh = disable_bh();
        // SAFETY: The lock is initialised by the type invariant.
        unsafe { bindings::rxe_rs_write_lock(inner.lock.get()) };
        Self { inner, _bh: bh }
    }
}

impl<T> Drop for Update<'_, T> {
    fn drop(&mut self) {
        // SAFETY: Held since `begin`; bottom halves go on after it has been given back.
        unsafe { bindings::rxe_rs_write_unlock(self.inner.lock.get()) };
    }
}

/// The value is in use. Stays in the task that got it.
pub struct Guard<'a, T> {
    inner: &'a Inner<T>,
    _task: PhantomData<*mut ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: The lock is held for reading as long as the guard lives, and there was a value
        // when it was given out.
        unsafe { (*self.inner.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: Held for reading since `try_access`.
        unsafe { bindings::rxe_rs_read_unlock(self.inner.lock.get()) };
    }
}
