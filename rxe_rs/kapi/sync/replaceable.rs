// SPDX-License-Identifier: GPL-2.0
//! A shared value that is replaced as a whole, or taken away, while others use it.

use super::users::{User, Users};
use crate::bindings;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{null_mut, NonNull};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full};
use kernel::sync::{rcu, Arc};
use kernel::types::Opaque;

/// One value that the place holds or has held, and who uses it.
#[repr(C)]
struct Version<T> {
    /// Used once the version has left the place and the value the version.
    rcu: Opaque<bindings::callback_head>,
    users: Users,
    /// `None` once the version has left the place and its users have left.
    value: UnsafeCell<Option<Arc<T>>>,
}

/// A place that holds an `Arc<T>`, or nothing.
///
/// Users take no lock and never wait. They find either the old value or the new one, and none if it
/// has been taken away. Whoever replaces the value, or takes it away, waits for the users of that
/// one value: no grace period of RCU, which only keeps the memory of the count for those who come
/// too late.
///
/// # Invariants
///
/// The pointer is null or from `KBox::into_raw` of a version with a value, which the place owns. A
/// version that has left the place is freed after a grace period at the earliest, and its value
/// leaves it after its users.
pub struct Replaceable<T: Send + Sync + 'static>(
    Atomic<*mut Version<T>>,
    PhantomData<KBox<Version<T>>>,
);

// SAFETY: As an `Arc<T>`.
unsafe impl<T: Send + Sync + 'static> Send for Replaceable<T> {}
// SAFETY: As an `Arc<T>`; the pointer itself is atomic, and what it leads to is shared with users
// until they have left.
unsafe impl<T: Send + Sync + 'static> Sync for Replaceable<T> {}

/// Use of a value: it stays what it is, and stays allocated, until this is dropped.
pub struct InUse<'a, T> {
    value: &'a Arc<T>,
    user: User<'a>,
}

impl<T: Send + Sync + 'static> Replaceable<T> {
    /// A place that holds `value`.
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

    /// Uses the value; `None` if there is none any more. Any context.
    ///
    /// Do not sleep meanwhile, and use it no longer than the copying of some packets takes:
    /// somebody may be waiting ([`InUse::is_awaited`]).
    #[inline]
    pub fn enter<'a>(&'a self, _rcu: &'a rcu::Guard) -> Option<InUse<'a, T>> {
        loop {
            // SAFETY: By the type invariant the version was alive when the pointer was read, and
            // is so for a grace period, which the guard holds up.
            let version = unsafe { self.0.load(Acquire).as_ref() }?;
            let Some(user) = version.users.enter() else {
                // It has been closed, so it has left the place before that: look again.
                continue;
            };
            // SAFETY: The value leaves the version after this user at the earliest, and does not
            // change before.
            let value = unsafe { (*version.value.get()).as_ref() };
            return value.map(|value| InUse { value, user });
        }
    }

    /// A reference to the value: who keeps it does not keep others from taking the value away,
    /// but the value from being freed. Any context.
    pub fn get(&self) -> Option<Arc<T>> {
        let rcu = rcu::read_lock();
        self.enter(&rcu).map(|used| used.value.clone())
    }

    /// Puts `value` in the place of the old one, waits until nobody uses that, and returns it.
    ///
    /// Process context, sleeps. Not to be called by a user.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; nothing has changed then.
    pub fn replace_sync(&self, value: Arc<T>) -> Result<Option<Arc<T>>> {
        let new = Self::version(value)?;
        // INVARIANT: The place gives up one version and owns the other.
        Ok(Self::retire(self.0.xchg(new, Full)))
    }

    /// Takes the value away, waits until nobody uses it, and returns it.
    ///
    /// Process context, sleeps. Not to be called by a user.
    pub fn take_sync(&self) -> Option<Arc<T>> {
        // INVARIANT: As in `replace_sync`.
        Self::retire(self.0.xchg(null_mut(), Full))
    }

    /// Ends a version that has left the place, if it is one, and returns its value.
    fn retire(version: *mut Version<T>) -> Option<Arc<T>> {
        let version = NonNull::new(version)?;
        let value = {
            // SAFETY: Only the caller frees the version, below.
            let version = unsafe { version.as_ref() };
            version.users.close();
            // SAFETY: All users have left, and no more get in.
            unsafe { (*version.value.get()).take() }
        };
        // SAFETY: The version has left the place, and `rcu` is its first field. Who got hold of it
        // before does so in an RCU read side section.
        unsafe { bindings::call_rcu(version.as_ptr().cast(), Some(Self::free)) };
        value
    }

    /// # Safety
    ///
    /// `head` is the first field of a version that came from a `KBox` and that nobody can reach.
    unsafe extern "C" fn free(head: *mut bindings::callback_head) {
        // SAFETY: By the caller's promise.
        drop(unsafe { KBox::from_raw(head.cast::<Version<T>>()) });
    }
}

impl<T> InUse<'_, T> {
    /// Whether somebody waits for this use to end.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.user.is_awaited()
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: Send + Sync + 'static> Drop for Replaceable<T> {
    fn drop(&mut self) {
        let version = self.0.load(Acquire);
        if !version.is_null() {
            // SAFETY: By the type invariant; users borrow the place, so there are none.
            drop(unsafe { KBox::from_raw(version) });
        }
    }
}
