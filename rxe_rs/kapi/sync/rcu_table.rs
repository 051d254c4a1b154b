// SPDX-License-Identifier: GPL-2.0
//! A table from small numbers to shared objects with lock-free look-ups.
//!
//! C header: [`include/linux/xarray.h`](srctree/include/linux/xarray.h)

use crate::{
    alloc::gfp_atomic_account,
    bindings, //
};
use core::{
    marker::PhantomData,
    ops::RangeInclusive,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
    types::Opaque, //
};

/// An entry of the table: the reference to the object and what freeing it later needs.
#[repr(C)]
struct Slot<T> {
    /// Used after the slot has been removed from the table.
    rcu: Opaque<bindings::callback_head>,
    value: Arc<T>,
}

/// A sparse table of `Arc<T>` indexed by `u32`, read under RCU.
///
/// Look-ups are lock-free and allowed in any context. Changes take the table's own irq-safe lock.
///
/// A removed object may still be in use by look-ups that began earlier; the table drops its
/// reference after those have ended (see [`remove`] and [`remove_if_sync`]).
///
/// [`remove`]: Self::remove
/// [`remove_if_sync`]: Self::remove_if_sync
#[pin_data(PinnedDrop)]
pub struct RcuTable<T: Send + Sync + 'static> {
    #[pin]
    xa: Opaque<bindings::xarray>,
    _slots: PhantomData<KBox<Slot<T>>>,
}

// SAFETY: The table owns `Arc<T>`s, which may be shared and sent as `T: Send + Sync`; the array
// has its own lock.
unsafe impl<T: Send + Sync + 'static> Send for RcuTable<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync + 'static> Sync for RcuTable<T> {}

impl<T: Send + Sync + 'static> RcuTable<T> {
    /// Creates an empty table.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `xa` is valid for writes.
            xa <- Opaque::ffi_init(|xa| unsafe { bindings::rxe_rs_table_init(xa) }),
            _slots: PhantomData,
        })
    }

    /// Stores `value` at the lowest free index of `range` and returns the index: entries that lie
    /// close to each other share memory.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the range is full, `ENOMEM`.
    pub fn insert_lowest(&self, range: RangeInclusive<u32>, value: Arc<T>) -> Result<u32> {
        let (first, last) = (*range.start(), *range.end());
        let slot = Self::slot(value)?;
        let mut index = 0;
        // SAFETY: The array is initialized, and `index` is ours; `slot` is a live allocation that
        // the array takes over unless an error is returned.
        let err = unsafe {
            bindings::rxe_rs_table_alloc(self.xa.get(), &mut index, slot.cast(), first, last)
        };
        match self.stored(err, slot) {
            Err(e) if e == EBUSY => Err(ENOSPC),
            done => done.map(|()| index),
        }
    }

    /// Stores `value` at `index`.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the index is in use, `ENOMEM`.
    pub fn insert_at(&self, index: u32, value: Arc<T>) -> Result {
        let slot = Self::slot(value)?;
        self.stored(self.insert_raw(index, slot), slot)
    }

    /// Returns the object at `index`, if there is one, for the read-side critical section.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn borrow<'g>(&'g self, index: u32, _rcu: &'g rcu::Guard) -> Option<&'g Arc<T>> {
        // SAFETY: The array is initialized.
        let slot = unsafe { bindings::rxe_rs_table_load(self.xa.get(), index) };
        // SAFETY: Only `Slot<T>`s are stored, and one that was found is freed after a grace period
        // at the earliest, which the guard prevents from ending.
        unsafe { slot.cast::<Slot<T>>().as_ref() }.map(|slot| &slot.value)
    }

    /// Returns the first object at or after `index`, with its index, for the read-side critical
    /// section.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn borrow_next<'g>(
        &'g self,
        index: u32,
        _rcu: &'g rcu::Guard,
    ) -> Option<(u32, &'g Arc<T>)> {
        let mut index = index;
        // SAFETY: The array is initialized and `index` is ours.
        let slot = unsafe { bindings::rxe_rs_table_next(self.xa.get(), &mut index) };
        // SAFETY: As in `borrow`.
        unsafe { slot.cast::<Slot<T>>().as_ref() }.map(|slot| (index, &slot.value))
    }

    /// Runs `f` on the object at `index`, if there is one. Takes no reference.
    ///
    /// # Context
    ///
    /// Any context; `f` must not sleep.
    #[inline]
    pub fn with<R>(&self, index: u32, rcu: &rcu::Guard, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.borrow(index, rcu).map(|value| f(value))
    }

    /// Returns a reference to the object at `index`.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn get(&self, index: u32) -> Option<Arc<T>> {
        let rcu = rcu::read_lock();
        self.borrow(index, &rcu).cloned()
    }

    /// Clears `index` (or ends its reservation). Returns true if an object was there.
    ///
    /// The table's reference is dropped after a grace period, in softirq: if it is the last one,
    /// `T` is dropped there and must not sleep.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn remove(&self, index: u32) -> bool {
        match self.erase(index) {
            Some(slot) => {
                // SAFETY: The slot has left the table and is ours to free, once; `rcu` is its
                // first field.
                unsafe { bindings::call_rcu(slot.as_ptr().cast(), Some(Self::free_slot_callback)) };
                true
            }
            None => false,
        }
    }

    /// Removes the objects for which `gone` returns true, waits for one grace period for all of
    /// them, and drops the table's references; returns their number.
    ///
    /// # Context
    ///
    /// Process context; sleeps. `gone` must not sleep.
    pub fn remove_if_sync(&self, mut gone: impl FnMut(&T) -> bool) -> u32 {
        let mut list: *mut Slot<T> = core::ptr::null_mut();
        let (mut from, mut count) = (0u32, 0u32);
        while let Some((index, value)) = self.next(from) {
            if gone(&value) {
                if let Some(slot) = self.erase(index) {
                    // SAFETY: The slot has been removed from the table; look-ups only use its
                    // value, so its first field can link it to the list.
                    unsafe { (*slot.as_ptr()).rcu.get().write(Self::link(list)) };
                    list = slot.as_ptr();
                    count = count.wrapping_add(1);
                }
            }
            let Some(next) = index.checked_add(1) else {
                break;
            };
            from = next;
        }
        if count != 0 {
            // SAFETY: No requirement but a context that may sleep.
            unsafe { bindings::synchronize_rcu() };
        }
        while let Some(slot) = NonNull::new(list) {
            // SAFETY: Linked above.
            list = unsafe { (*(*slot.as_ptr()).rcu.get()).next.cast() };
            // SAFETY: The slot came from a `KBox`, has left the table, and no reader is left.
            drop(unsafe { KBox::from_raw(slot.as_ptr()) });
        }
        count
    }

    fn link(next: *mut Slot<T>) -> bindings::callback_head {
        bindings::callback_head {
            next: next.cast(),
            func: None,
        }
    }

    /// Replaces the object at `index`. A look-up finds either the old or the new one at any time.
    /// The table's reference to the old one is dropped as by [`remove`](Self::remove).
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none, `ENOMEM`; nothing has changed then.
    pub fn replace(&self, index: u32, value: Arc<T>) -> Result {
        let old = self.exchange(index, value)?;
        // SAFETY: The slot has been removed from the table and is ours to free, once; `rcu` is its
        // first field.
        unsafe { bindings::call_rcu(old.as_ptr().cast(), Some(Self::free_slot_callback)) };
        Ok(())
    }

    /// Calls `f` on all objects in the order of their indices, until it returns false. Objects that
    /// are added or removed meanwhile may or may not be included.
    ///
    /// # Context
    ///
    /// Any context; `f` must not sleep.
    pub fn for_each(&self, mut f: impl FnMut(u32, &T) -> bool) {
        let _rcu = rcu::read_lock();
        let mut next: u64 = 0;
        while let Ok(mut index) = u32::try_from(next) {
            // SAFETY: The array is initialized and `index` is ours.
            let slot = unsafe { bindings::rxe_rs_table_next(self.xa.get(), &mut index) };
            // SAFETY: As in `with`; the read side lock is held.
            let Some(slot) = (unsafe { slot.cast::<Slot<T>>().as_ref() }) else {
                break;
            };
            if !f(index, &slot.value) {
                break;
            }
            next = u64::from(index) + 1;
        }
    }

    /// Returns the first object at or after `index`, with its index, for iterations that sleep
    /// between objects.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn next(&self, index: u32) -> Option<(u32, Arc<T>)> {
        let _rcu = rcu::read_lock();
        let mut index = index;
        // SAFETY: The array is initialized and `index` is ours.
        let slot = unsafe { bindings::rxe_rs_table_next(self.xa.get(), &mut index) };
        // SAFETY: As in `with`; the read side lock is held.
        let slot = unsafe { slot.cast::<Slot<T>>().as_ref() }?;
        Some((index, slot.value.clone()))
    }

    /// Stores `value` at `index` and returns the previous slot.
    fn exchange(&self, index: u32, value: Arc<T>) -> Result<NonNull<Slot<T>>> {
        let slot = Self::slot(value)?;
        // SAFETY: The array is initialized; `slot` is a live allocation that the array takes over
        // unless null is returned.
        let old = unsafe { bindings::rxe_rs_table_replace(self.xa.get(), index, slot.cast()) };
        let Some(old) = NonNull::new(old.cast::<Slot<T>>()) else {
            self.stored(ENOENT.to_errno(), slot)?;
            return Err(ENOENT);
        };
        Ok(old)
    }

    fn slot(value: Arc<T>) -> Result<*mut Slot<T>> {
        let slot = Slot {
            rcu: Opaque::uninit(),
            value,
        };
        Ok(KBox::into_raw(KBox::new(slot, gfp_atomic_account())?))
    }

    /// Frees the slot if storing it failed.
    fn stored(&self, err: i32, slot: *mut Slot<T>) -> Result {
        kernel::error::to_result(err).inspect_err(|_| {
            // SAFETY: It came from `KBox::into_raw` and the table did not take it.
            drop(unsafe { KBox::from_raw(slot) })
        })
    }

    fn insert_raw(&self, index: u32, slot: *mut Slot<T>) -> i32 {
        // SAFETY: The array is initialized; `slot` is a live allocation that the array takes over
        // unless an error is returned.
        unsafe { bindings::rxe_rs_table_insert(self.xa.get(), index, slot.cast()) }
    }

    fn erase(&self, index: u32) -> Option<NonNull<Slot<T>>> {
        // SAFETY: The array is initialized.
        NonNull::new(unsafe { bindings::rxe_rs_table_erase(self.xa.get(), index) }.cast())
    }

    /// # Safety
    ///
    /// `head` is the first field of a slot that came from a `KBox` and that nobody can access.
    unsafe extern "C" fn free_slot_callback(head: *mut bindings::callback_head) {
        // SAFETY: `remove` passed the first field of a slot that came from a `KBox` and that nobody
        // else can access any more.
        drop(unsafe { KBox::from_raw(head.cast::<Slot<T>>()) });
    }
}

#[pinned_drop]
impl<T: Send + Sync + 'static> PinnedDrop for RcuTable<T> {
    fn drop(self: Pin<&mut Self>) {
        let mut index = 0;
        loop {
            // Nobody else can access the table any more, so there are no readers to wait for.
            // SAFETY: The array is initialized.
            let slot = unsafe { bindings::rxe_rs_table_next(self.xa.get(), &mut index) };
            if slot.is_null() {
                break;
            }
            // SAFETY: The array is initialized.
            unsafe { bindings::rxe_rs_table_erase(self.xa.get(), index) };
            // SAFETY: Every entry is a slot that came from a `KBox`.
            drop(unsafe { KBox::from_raw(slot.cast::<Slot<T>>()) });
        }
        // SAFETY: The array is initialized and not used any more; this also ends reservations.
        unsafe { bindings::rxe_rs_table_destroy(self.xa.get()) };
    }
}
