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
            Release, //
        },
        rcu,
        Arc, //
    },
};

/// Random numbers tried before the range is searched in order.
const RANDOM_TRIES: u32 = 16;

/// The number is reserved: the entry belongs to its [`Reservation`].
const RESERVED: u32 = 0;
/// Look-ups find the object, if there is one.
const PUBLISHED: u32 = 1;

/// An entry of the table.
#[repr(C)]
struct Entry<T> {
    /// The links and the number, for the C side.
    c: bindings::rxe_rs_number,
    state: Atomic<u32>,
    /// Not changed from [`PUBLISHED`] on.
    value: UnsafeCell<Option<Arc<T>>>,
}

/// A table of `Arc<T>` by random `u32` numbers, read under RCU.
///
/// In contrast to [`RcuTable`](super::RcuTable) it has no order and its memory does not depend on
/// how the numbers are spread. A number is [reserved](Self::reserve) before its object exists, and
/// the object is [published](Reservation::publish) then: look-ups do not find a reserved number,
/// and it is not allocated again. Look-ups are lock-free and allowed in any context.
///
/// A removed object may still be in use by look-ups that began earlier; the table drops its
/// reference after those have ended.
///
/// # Invariants
///
/// The pointer is to a table whose entries are `Entry<T>`s that came from a `KBox`. An entry that
/// a look-up can find is freed a grace period after its removal at the earliest. An entry in the
/// state `RESERVED` is only changed and removed by its [`Reservation`].
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

    /// Reserves a random free number of `range`.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the range is full, `EINVAL` if it is empty, `ENOMEM`.
    pub fn reserve(&self, range: RangeInclusive<u32>) -> Result<Reservation<'_, T>> {
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
                Ok(reservation) => return Ok(reservation),
                Err((entry, e)) if e == EBUSY => entry,
                Err((_, e)) => return Err(e),
            };
        }
        let start = number;
        loop {
            number = if number == last { first } else { number + 1 };
            entry = match self.insert(entry, number) {
                Ok(reservation) => return Ok(reservation),
                Err((entry, e)) if e == EBUSY => entry,
                Err((_, e)) => return Err(e),
            };
            if number == start {
                return Err(ENOSPC);
            }
        }
    }

    /// Returns the object with `number`, if there is one, for the read-side critical section.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn borrow<'g>(&'g self, number: u32, rcu: &'g rcu::Guard) -> Option<&'g Arc<T>> {
        // SAFETY: By the type invariant it is an `Entry<T>`, which is not freed before the guard is
        // dropped.
        let entry = unsafe { self.lookup(number, rcu).cast::<Entry<T>>().as_ref() }?;
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

    /// Removes the object with `number`, or makes the number free if it has been
    /// [kept](Reservation::keep). Returns false if it is free or reserved.
    ///
    /// The table's reference is dropped after a grace period, in softirq: if it is the last one,
    /// `T` is dropped there and must not sleep.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn remove(&self, number: u32) -> bool {
        let rcu = rcu::read_lock();
        let entry = self.lookup(number, &rcu);
        // SAFETY: By the type invariant it is an `Entry<T>`, which is not freed before the guard is
        // dropped.
        match unsafe { entry.cast::<Entry<T>>().as_ref() } {
            Some(found) if found.state.load(Acquire) == PUBLISHED => {}
            _ => return false,
        }
        // SAFETY: The entry is published. It is not freed before the guard is dropped. The pointer
        // is not from a reference, through which the entry must not be freed.
        unsafe { self.unlink(entry) }
    }

    /// Removes `entry`, and frees it after a grace period. Returns false if another call has
    /// removed it.
    ///
    /// # Safety
    ///
    /// It is an entry of the table that is published, or reserved by the caller, and that is not
    /// freed during the call.
    unsafe fn unlink(&self, entry: *mut bindings::rxe_rs_number) -> bool {
        // SAFETY: By the type invariant the table is live; the entry is by the caller's guarantee.
        if !unsafe { bindings::rxe_rs_numbers_remove(self.numbers.as_ptr(), entry) } {
            return false;
        }
        // SAFETY: This call has removed the entry, so it is ours to free, once, after a grace
        // period; `rcu` is its first field, which nobody else uses.
        unsafe { bindings::call_rcu(entry.cast(), Some(Self::free_rcu_callback)) };
        true
    }

    /// Returns a pointer to the entry of `number`, or null.
    #[inline]
    fn lookup(&self, number: u32, _rcu: &rcu::Guard) -> *mut bindings::rxe_rs_number {
        // SAFETY: By the type invariant the table is live; the guard is the required context.
        unsafe { bindings::rxe_rs_numbers_lookup(self.numbers.as_ptr(), number) }
    }

    /// Inserts the new entry `entry` as `number`; gives it back with the error.
    fn insert(
        &self,
        mut entry: KBox<Entry<T>>,
        number: u32,
    ) -> Result<Reservation<'_, T>, (KBox<Entry<T>>, Error)> {
        entry.c.number = number;
        let raw = KBox::into_raw(entry);
        // SAFETY: By the type invariant the table is live. The entry came from a `KBox`, and the
        // table takes it over unless an error is returned.
        let err = unsafe { bindings::rxe_rs_numbers_insert(self.numbers.as_ptr(), raw.cast()) };
        match kernel::error::to_result(err) {
            // INVARIANT: A new entry of the table, whose state is `RESERVED`.
            Ok(()) => Ok(Reservation {
                table: self,
                entry: raw,
                number,
            }),
            // SAFETY: The table did not take it.
            Err(e) => Err((unsafe { KBox::from_raw(raw) }, e)),
        }
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

/// A reserved number, which look-ups do not find. Dropping it makes the number free.
///
/// # Invariants
///
/// `entry` is an entry of `table` in the state `RESERVED`, and no other reservation is for it.
pub struct Reservation<'t, T: Send + Sync + 'static> {
    table: &'t NumberTable<T>,
    entry: *mut Entry<T>,
    number: u32,
}

impl<T: Send + Sync + 'static> Reservation<'_, T> {
    /// Returns the number.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Stores `value`, so that look-ups find it until it is [removed](NumberTable::remove).
    ///
    /// # Context
    ///
    /// Any context.
    pub fn publish(self, value: Arc<T>) {
        self.end(Some(value));
    }

    /// Keeps the number from being allocated, without an object, until it is
    /// [removed](NumberTable::remove).
    ///
    /// # Context
    ///
    /// Any context.
    pub fn keep(self) {
        self.end(None);
    }

    fn end(self, value: Option<Arc<T>>) {
        // Another thread may remove the entry as soon as it is published.
        let _rcu = rcu::read_lock();
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: By the type invariants of both types the entry is live, and nobody else accesses
        // its value before it is published. It is not freed before the guard is dropped.
        unsafe {
            *(*this.entry).value.get() = value;
            (*this.entry).state.store(PUBLISHED, Release);
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the entry is one of the table, reserved by this value, so
        // that nobody else frees it.
        unsafe { self.table.unlink(self.entry.cast()) };
    }
}

impl<T: Send + Sync + 'static> Drop for NumberTable<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the table is live, and nobody uses it any more.
        unsafe { bindings::rxe_rs_numbers_free(self.numbers.as_ptr()) };
    }
}
