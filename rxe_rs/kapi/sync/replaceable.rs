// SPDX-License-Identifier: GPL-2.0
//! A shared value that is replaced as a whole, or removed, while others use it.

use super::users::{
    User,
    Users, //
};
use crate::bindings;
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::Deref,
    ptr::{
        null_mut,
        NonNull, //
    },
};
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
    types::Opaque, //
};

/// One value that is or was current, and its users.
#[repr(C)]
struct Version<T> {
    /// Used after the version has been replaced and its value removed.
    rcu: Opaque<bindings::callback_head>,
    users: Users,
    /// `None` once the version has been replaced and its users have left.
    value: UnsafeCell<Option<Arc<T>>>,
}

/// Holds an `Arc<T>`, or nothing.
///
/// Users take no lock and never wait. They find either the old value or the new one, or none if it
/// has been removed. Replacing or removing the value waits for the users of that value only,
/// not for an RCU grace period, which merely keeps the memory of the count valid for users that
/// come too late.
///
/// # Invariants
///
/// The pointer is null or from `KBox::into_raw` of a version with a value, which `self` owns. A
/// version that has been replaced is freed after a grace period at the earliest, and its value is
/// removed after its users have left.
pub struct Replaceable<T: Send + Sync + 'static>(
    Atomic<*mut Version<T>>,
    PhantomData<KBox<Version<T>>>,
);

// SAFETY: As an `Arc<T>`.
unsafe impl<T: Send + Sync + 'static> Send for Replaceable<T> {}
// SAFETY: As an `Arc<T>`; the pointer itself is atomic, and what it points to is shared with users
// until they have left.
unsafe impl<T: Send + Sync + 'static> Sync for Replaceable<T> {}

/// Access to a value, which does not change and stays allocated until this is dropped.
///
/// # Invariants
///
/// `value` points to the value of the version that `user` uses.
pub struct InUse<'a, T> {
    // Not a reference: one that is passed to a function must be valid until that returns, but the
    // writer takes the value as soon as the function has dropped this.
    value: NonNull<Arc<T>>,
    user: User<'a>,
}

impl<T: Send + Sync + 'static> Replaceable<T> {
    /// Creates one that holds `value`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(value: Arc<T>) -> Result<Self> {
        // INVARIANT: Just allocated.
        Ok(Self(Atomic::new(Self::version(value)?), PhantomData))
    }

    fn version(value: Arc<T>) -> Result<*mut Version<T>> {
        let version = Version {
            rcu: Opaque::uninit(),
            users: Users::new(),
            value: UnsafeCell::new(Some(value)),
        };
        Ok(KBox::into_raw(KBox::new(version, GFP_KERNEL_ACCOUNT)?))
    }

    /// Accesses the value; `None` if there is none any more.
    ///
    /// # Context
    ///
    /// Any context. The user must not sleep, and must drop the access after copying some packets at
    /// most: a writer may be waiting ([`InUse::is_closing`]).
    #[inline]
    pub fn try_access<'a>(&'a self, _rcu: &'a rcu::Guard) -> Option<InUse<'a, T>> {
        loop {
            // SAFETY: By the type invariant the version was alive when the pointer was read, and
            // stays so for a grace period, which the guard prevents from ending.
            let version = unsafe { self.0.load(Acquire).as_ref() }?;
            let Some(user) = version.users.try_get() else {
                // It has been closed, so it was replaced before that: read the pointer again.
                continue;
            };
            // SAFETY: The value is removed from the version after this user has left at the
            // earliest, and does not change before.
            let value = unsafe { (*version.value.get()).as_ref() };
            // INVARIANT: The value is that of the version.
            return value.map(|value| InUse {
                value: value.into(),
                user,
            });
        }
    }

    /// Returns a reference to the value: it does not keep others from replacing the value, only the
    /// value from being freed.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn get(&self) -> Option<Arc<T>> {
        let rcu = rcu::read_lock();
        self.try_access(&rcu).map(|used| used.arc().clone())
    }

    /// Replaces the value, waits until the old one is no longer used, and returns it.
    ///
    /// # Context
    ///
    /// Process context; sleeps. Must not be called by a user.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; nothing has changed then.
    pub fn replace_sync(&self, value: Arc<T>) -> Result<Option<Arc<T>>> {
        let new = Self::version(value)?;
        // INVARIANT: `self` gives up one version and owns the other.
        Ok(Self::retire(self.0.xchg(new, Full)))
    }

    /// Removes the value, waits until it is no longer used, and returns it.
    ///
    /// # Context
    ///
    /// Process context; sleeps. Must not be called by a user.
    pub fn take_sync(&self) -> Option<Arc<T>> {
        // INVARIANT: As in `replace_sync`.
        Self::retire(self.0.xchg(null_mut(), Full))
    }

    /// Closes a version that has been replaced, if there is one, and returns its value.
    fn retire(version: *mut Version<T>) -> Option<Arc<T>> {
        let version = NonNull::new(version)?;
        let value = {
            // SAFETY: Only the caller frees the version, below.
            let version = unsafe { version.as_ref() };
            version.users.close();
            // SAFETY: All users have left, and no more are admitted.
            unsafe { (*version.value.get()).take() }
        };
        // SAFETY: The version has been replaced, and `rcu` is its first field. Whoever read the
        // pointer before is in an RCU read-side critical section.
        unsafe { bindings::call_rcu(version.as_ptr().cast(), Some(Self::free_callback)) };
        value
    }

    /// # Safety
    ///
    /// `head` is the first field of a version that came from a `KBox` and that nobody can access.
    unsafe extern "C" fn free_callback(head: *mut bindings::callback_head) {
        // SAFETY: By the caller's guarantee.
        drop(unsafe { KBox::from_raw(head.cast::<Version<T>>()) });
    }
}

impl<T> InUse<'_, T> {
    #[inline]
    fn arc(&self) -> &Arc<T> {
        // SAFETY: By the type invariant, and the value does not change before `user` leaves.
        unsafe { self.value.as_ref() }
    }

    /// Returns true if a writer waits for this use to end.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.user.is_closing()
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.arc()
    }
}

impl<T: Send + Sync + 'static> Drop for Replaceable<T> {
    fn drop(&mut self) {
        let version = self.0.load(Acquire);
        if !version.is_null() {
            // SAFETY: By the type invariant; users borrow `self`, so there are none.
            drop(unsafe { KBox::from_raw(version) });
        }
    }
}
