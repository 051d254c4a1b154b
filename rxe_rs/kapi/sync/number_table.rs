// SPDX-License-Identifier: GPL-2.0
//! A table from random numbers to shared objects with lock-free look-ups.
//!
//! C header: [`include/linux/rhashtable.h`](srctree/include/linux/rhashtable.h)

use crate::{
    alloc::gfp_atomic_account,
    bindings,
    rand, //
};
use core::{
    cell::UnsafeCell,
    ops::RangeInclusive,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        rcu,
        Arc, //
    },
};

/// Random numbers tried before the range is searched in order.
const RANDOM_TRIES: u32 = 16;

/// The number is reserved and has no object.
const RESERVED: u32 = 0;
/// The object is being stored.
const STORING: u32 = 1;
/// Look-ups find the object.
const PUBLISHED: u32 = 2;

/// An entry of the table.
#[repr(C)]
struct Entry<T> {
    /// The links and the number, for the C side.
    c: bindings::rxe_rs_number,
    state: Atomic<u32>,
    /// Written by the caller that changes the state to [`STORING`], and not changed from
    /// [`PUBLISHED`] on.
    value: UnsafeCell<Option<Arc<T>>>,
}

/// A table of `Arc<T>` by random `u32` numbers, read under RCU.
///
/// In contrast to [`RcuTable`](super::RcuTable) it has no order and its memory does not depend on
/// how the numbers are spread. A number is reserved before its object exists
/// ([`reserve`](Self::reserve), then [`publish`](Self::publish)): look-ups do not find a reserved
/// number, and it is not allocated again. Look-ups are lock-free and allowed in any context.
///
/// A removed object may still be in use by look-ups that began earlier; the table drops its
/// reference after those have ended.
///
/// # Invariants
///
/// The pointer is to a table whose entries are `Entry<T>`s that came from a `KBox`. An entry that
/// a look-up can find is freed a grace period after its removal at the earliest.
pub struct NumberTable<T: Send + Sync + 'static> {
    numbers: NonNull<bindings::rxe_rs_numbers>,
    _entries: core::marker::PhantomData<KBox<Entry<T>>>,
}

// SAFETY: The table owns `Arc<T>`s, which may be shared and sent as `T: Send + Sync`; the C side
// has its own locks.
unsafe impl<T: Send + Sync + 'static> Send for NumberTable<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync + 'static> Sync for NumberTable<T> {}

impl<T: Send + Sync + 'static> NumberTable<T> {
    /// Creates an empty table.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        // SAFETY: By the type invariant the callback gets entries that came from a `KBox`.
        let numbers = unsafe { bindings::rxe_rs_numbers_alloc(Some(Self::free_entry_callback)) };
        // INVARIANT: A new table, without entries.
        Ok(Self {
            numbers: NonNull::new(numbers).ok_or(ENOMEM)?,
            _entries: core::marker::PhantomData,
        })
    }

    /// Reserves a random free number of `range`. Use it with [`publish`](Self::publish), or free it
    /// with [`remove`](Self::remove).
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the range is full, `EINVAL` if it is empty, `ENOMEM`.
    pub fn reserve(&self, range: RangeInclusive<u32>) -> Result<u32> {
        let (first, last) = (*range.start(), *range.end());
        if first > last {
            return Err(EINVAL);
        }
        let mut entry = KBox::new(
            Entry {
                // SAFETY: A plain structure of C, for which zeros are a valid value.
                c: unsafe { core::mem::zeroed() },
                state: Atomic::new(RESERVED),
                value: UnsafeCell::new(None),
            },
            gfp_atomic_account(),
        )?;
        let span = u64::from(last - first) + 1;
        let mut number = first;
        for _ in 0..RANDOM_TRIES {
            // Below `span`, so the sum is at most `last`.
            let offset = (u64::from(rand::random_u32()) * span) >> 32;
            number = first.wrapping_add(offset as u32);
            entry = match self.insert(entry, number) {
                Ok(()) => return Ok(number),
                Err((entry, e)) if e == EBUSY => entry,
                Err((_, e)) => return Err(e),
            };
        }
        let start = number;
        loop {
            number = if number == last { first } else { number + 1 };
            entry = match self.insert(entry, number) {
                Ok(()) => return Ok(number),
                Err((entry, e)) if e == EBUSY => entry,
                Err((_, e)) => return Err(e),
            };
            if number == start {
                return Err(ENOSPC);
            }
        }
    }

    /// Stores `value` at a reserved number, so that look-ups find it.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the number is not reserved.
    pub fn publish(&self, number: u32, value: Arc<T>) -> Result {
        let rcu = rcu::read_lock();
        let entry = self.entry(number, &rcu).ok_or(ENOENT)?;
        entry
            .state
            .cmpxchg(RESERVED, STORING, Relaxed)
            .map_err(|_| ENOENT)?;
        // SAFETY: Only the caller that changed the state to `STORING` accesses the value before it
        // is published, and the entry is not freed before the guard is dropped.
        unsafe { *entry.value.get() = Some(value) };
        entry.state.store(PUBLISHED, Release);
        Ok(())
    }

    /// Returns the object with `number`, if there is one, for the read-side critical section.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn borrow<'g>(&'g self, number: u32, rcu: &'g rcu::Guard) -> Option<&'g Arc<T>> {
        let entry = self.entry(number, rcu)?;
        if entry.state.load(Acquire) != PUBLISHED {
            return None;
        }
        // SAFETY: The value does not change after it has been published, and the entry is not freed
        // before the guard is dropped.
        unsafe { &*entry.value.get() }.as_ref()
    }

    /// Returns a reference to the object with `number`.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn get(&self, number: u32) -> Option<Arc<T>> {
        let rcu = rcu::read_lock();
        self.borrow(number, &rcu).cloned()
    }

    /// Removes the object with `number`, or ends its reservation. Returns false if there is
    /// neither.
    ///
    /// The table's reference is dropped after a grace period, in softirq: if it is the last one,
    /// `T` is dropped there and must not sleep.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn remove(&self, number: u32) -> bool {
        let rcu = rcu::read_lock();
        // Not a pointer from a reference, through which the entry must not be freed.
        let entry = self.lookup(number, &rcu);
        if entry.is_null() {
            return false;
        }
        // SAFETY: By the type invariant the table is live; the entry is not freed before the guard
        // is dropped.
        if !unsafe { bindings::rxe_rs_numbers_remove(self.numbers.as_ptr(), entry) } {
            return false;
        }
        // SAFETY: This call has removed the entry, so it is ours to free, once, after a grace
        // period; `rcu` is its first field, which nobody else uses.
        unsafe { bindings::call_rcu(entry.cast(), Some(Self::free_rcu_callback)) };
        true
    }

    /// Returns the entry of `number`, published or not.
    #[inline]
    fn entry<'g>(&'g self, number: u32, rcu: &'g rcu::Guard) -> Option<&'g Entry<T>> {
        let entry = self.lookup(number, rcu);
        // SAFETY: By the type invariant it is an `Entry<T>`, which is not freed before the guard is
        // dropped.
        unsafe { entry.cast::<Entry<T>>().as_ref() }
    }

    /// Returns a pointer to the entry of `number`, or null.
    #[inline]
    fn lookup(&self, number: u32, _rcu: &rcu::Guard) -> *mut bindings::rxe_rs_number {
        // SAFETY: By the type invariant the table is live; the guard is the required context.
        unsafe { bindings::rxe_rs_numbers_lookup(self.numbers.as_ptr(), number) }
    }

    /// Inserts `entry` as `number`; gives it back with the error.
    fn insert(
        &self,
        mut entry: KBox<Entry<T>>,
        number: u32,
    ) -> Result<(), (KBox<Entry<T>>, Error)> {
        entry.c.number = number;
        let raw = KBox::into_raw(entry);
        // SAFETY: By the type invariant the table is live. The entry came from a `KBox`, and the
        // table takes it over unless an error is returned.
        let err = unsafe { bindings::rxe_rs_numbers_insert(self.numbers.as_ptr(), raw.cast()) };
        kernel::error::to_result(err).map_err(|e| {
            // SAFETY: The table did not take it.
            (unsafe { KBox::from_raw(raw) }, e)
        })
    }

    /// # Safety
    ///
    /// `entry` came from a `KBox<Entry<T>>`, and nobody can access it.
    unsafe extern "C" fn free_entry_callback(entry: *mut bindings::rxe_rs_number) {
        // SAFETY: By the caller's guarantee.
        drop(unsafe { KBox::from_raw(entry.cast::<Entry<T>>()) });
    }

    /// # Safety
    ///
    /// `head` is the first field of an entry that has been removed and that nobody can access.
    unsafe extern "C" fn free_rcu_callback(head: *mut bindings::callback_head) {
        // SAFETY: By the caller's guarantee.
        unsafe { Self::free_entry_callback(head.cast()) };
    }
}

impl<T: Send + Sync + 'static> Drop for NumberTable<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the table is live, and nobody uses it any more.
        unsafe { bindings::rxe_rs_numbers_free(self.numbers.as_ptr()) };
    }
}
