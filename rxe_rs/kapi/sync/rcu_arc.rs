// SPDX-License-Identifier: GPL-2.0
//! A shared value that is replaced as a whole while others read it.

use crate::bindings;
use core::marker::PhantomData;
use kernel::sync::atomic::{Acquire, Atomic, Full};
use kernel::sync::{rcu, Arc, ArcBorrow};

/// A place that always holds an `Arc<T>`, read under RCU.
///
/// Readers take no lock and find either the old value or the new one. Whoever replaces values on
/// the ground of what the place holds keeps others from doing so meanwhile.
///
/// # Invariants
///
/// The pointer is from [`Arc::into_raw`], and the place owns that reference. A reference that has
/// left the place is kept for at least a grace period.
pub struct RcuArc<T: Send + Sync>(Atomic<*mut T>, PhantomData<Arc<T>>);

// SAFETY: As an `Arc<T>`.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: As an `Arc<T>`; the pointer itself is atomic.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T: Send + Sync> RcuArc<T> {
    /// A place that holds `value`.
    pub fn new(value: Arc<T>) -> Self {
        // INVARIANT: The reference is given up to the place.
        Self(Atomic::new(Arc::into_raw(value).cast_mut()), PhantomData)
    }

    /// The value, for as long as the read side section lasts.
    #[inline]
    pub fn read<'a>(&'a self, _rcu: &'a rcu::Guard) -> &'a T {
        // SAFETY: By the type invariant the value was alive when the pointer was read, and is
        // so for a grace period, which the guard holds up. The place is not dropped meanwhile.
        unsafe { &*self.0.load(Acquire) }
    }

    /// A reference to the value. Any context.
    pub fn get(&self) -> Arc<T> {
        let _rcu = rcu::read_lock();
        // SAFETY: As in `read`; the pointer is from `Arc::into_raw`.
        ArcBorrow::into(unsafe { ArcBorrow::from_raw(self.0.load(Acquire)) })
    }

    /// Puts `value` in the place of the old one, waits until no reader can still be using that, and
    /// returns it.
    ///
    /// Process context, sleeps (an expedited grace period).
    pub fn replace_sync(&self, value: Arc<T>) -> Arc<T> {
        let old = self.0.xchg(Arc::into_raw(value).cast_mut(), Full);
        // SAFETY: No requirement but a context that may sleep.
        unsafe { bindings::synchronize_rcu_expedited() };
        // SAFETY: By the type invariant the reference was the place's, which has another one now.
        unsafe { Arc::from_raw(old) }
    }
}

impl<T: Send + Sync> Drop for RcuArc<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; readers borrow the place, so there are none.
        drop(unsafe { Arc::from_raw(self.0.load(Acquire)) });
    }
}
