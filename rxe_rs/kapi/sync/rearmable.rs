// SPDX-License-Identifier: GPL-2.0
//! A value that many read concurrently and that any context can replace or revoke at once.
//!
//! C header: [`include/linux/rwlock.h`](srctree/include/linux/rwlock.h)

use super::context::{
    disable_bh,
    BhDisabled, //
};
use crate::bindings;
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::Deref, //
};
use kernel::{
    prelude::*,
    sync::LockClassKey,
    types::Opaque, //
};

/// Holds a value, or none. Readers never wait: they get access or fail. A writer waits for the
/// readers, so that nobody uses the old value after [`update`](Self::update).
///
/// In contrast to `kernel::revocable::Revocable` it can be filled again, and it may be updated in
/// softirq. Accesses are short (a copy of one packet) and happen with bottom halves disabled, which
/// bounds the wait. With PREEMPT_RT a reader can be preempted, even by the writer: the lock then
/// sleeps until the reader has finished, where a busy-wait would spin forever.
pub struct Rearmable<T>(Pin<KBox<Inner<T>>>);

/// # Invariants
///
/// The lock is initialized; the value is accessed shared while the lock is held for reading, and
/// exclusively while it is held for writing.
#[pin_data]
struct Inner<T> {
    #[pin]
    lock: Opaque<bindings::rwlock_t>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: The value is protected by the lock, which may be used from any thread.
unsafe impl<T: Send> Send for Inner<T> {}
// SAFETY: As above; readers on several CPUs share the value.
unsafe impl<T: Send + Sync> Sync for Inner<T> {}

/// Creates a [`Rearmable`] with its own lock class:
/// `new_rearmable!(value, "name")`.
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
    /// Creates one with a value or none; see [`new_rearmable!`].
    ///
    /// # Context
    ///
    /// Process context; may sleep.
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
            // INVARIANT: The lock is initialized here.
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

    /// Accesses the value; `None` if there is none or a writer is changing it.
    ///
    /// # Context
    ///
    /// Process context or softirq, bottom halves disabled until the guard is dropped. The caller
    /// must not call [`update`](Self::update) of the same value meanwhile.
    #[inline]
    pub fn try_access(&self) -> Option<Guard<'_, T>> {
        // SAFETY: The lock is initialized by the type invariant.
        if !unsafe { bindings::rxe_rs_read_trylock(self.0.lock.get()) } {
            return None;
        }
        let guard = Guard {
            inner: &self.0,
            _task: PhantomData,
        };
        // SAFETY: The lock is held for reading, so no writer changes the value.
        unsafe { &*self.0.value.get() }.is_some().then_some(guard)
    }

    /// Calls `f` with the value, beside other readers; with `None` also while a writer is changing
    /// it.
    ///
    /// # Context
    ///
    /// Any context except hard interrupt.
    pub fn read<R>(&self, f: impl FnOnce(Option<&T>) -> R) -> R {
        let _bh = disable_bh();
        f(self.try_access().as_deref())
    }

    /// Calls `f` to change the value, with no reader. `f` must be short and update no other
    /// `Rearmable`.
    ///
    /// # Context
    ///
    /// Any context except hard interrupt, without a guard of this value; waits for readers on other
    /// CPUs.
    pub fn update<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> R {
        let update = Update::begin(&self.0);
        // SAFETY: The lock is held for writing until `update` is dropped.
        let result = f(unsafe { &mut *self.0.value.get() });
        drop(update);
        result
    }

    /// Calls `change` as [`update`](Self::update) does, if `check` permits it.
    ///
    /// `check` is called twice: first by [`read`](Self::read), so that a change that it refuses
    /// makes no access fail, then with no reader.
    ///
    /// # Context
    ///
    /// As [`update`](Self::update).
    ///
    /// # Errors
    ///
    /// What `check` returns; the value is unchanged then.
    pub fn update_if<E>(
        &self,
        check: impl Fn(Option<&T>) -> Result<(), E>,
        change: impl FnOnce(&mut Option<T>),
    ) -> Result<(), E> {
        self.read(&check)?;
        self.update(|value| {
            check(value.as_ref())?;
            change(value);
            Ok(())
        })
    }
}

/// Holds the lock for writing.
struct Update<'a, T> {
    inner: &'a Inner<T>,
    _bh: BhDisabled,
}

impl<'a, T> Update<'a, T> {
    fn begin(inner: &'a Inner<T>) -> Self {
        let bh = disable_bh();
        // SAFETY: The lock is initialized by the type invariant.
        unsafe { bindings::rxe_rs_write_lock(inner.lock.get()) };
        Self { inner, _bh: bh }
    }
}

impl<T> Drop for Update<'_, T> {
    fn drop(&mut self) {
        // SAFETY: Held since `begin`; bottom halves are enabled after it has been released.
        unsafe { bindings::rxe_rs_write_unlock(self.inner.lock.get()) };
    }
}

/// Access to the value. Must stay in the task that created it.
pub struct Guard<'a, T> {
    inner: &'a Inner<T>,
    _task: PhantomData<*mut ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: The lock is held for reading as long as the guard exists, and `try_access` found
        // a value.
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
