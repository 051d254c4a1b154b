// SPDX-License-Identifier: GPL-2.0
//! Atomics of `std`.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Types that can be atomic.
pub trait Repr: Copy + 'static {
    /// Loads.
    fn load(place: &Place<Self>, order: Ordering) -> Self;
    /// Stores.
    fn store(place: &Place<Self>, value: Self, order: Ordering);
    /// Exchanges.
    fn swap(place: &Place<Self>, value: Self, order: Ordering) -> Self;
    /// Exchanges if the value is the expected one.
    ///
    /// # Errors
    ///
    /// The current value.
    fn cmpxchg(place: &Place<Self>, old: Self, new: Self, order: Ordering) -> Result<Self, Self>;
}

/// The place of an atomic.
#[repr(transparent)]
pub struct Place<T>(UnsafeCell<T>);

impl<T: Repr> Place<T> {
    /// Returns an atomic with that initial value.
    pub const fn new(first: T) -> Self {
        Self(UnsafeCell::new(first))
    }
}

impl Place<u32> {
    /// Returns the atomic at an address.
    ///
    /// # Safety
    ///
    /// As for the kernel's `Atomic::from_ptr`.
    pub unsafe fn at<'a>(at: *mut u32) -> &'a super::Atomic<u32> {
        // SAFETY: By the caller's promise; the layout is that of a number.
        unsafe { &*at.cast() }
    }

    /// Adds; returns the previous value.
    pub fn add(&self, value: u32, order: Ordering) -> u32 {
        // SAFETY: Accessed atomically alone, and borrowed.
        unsafe { AtomicU32::from_ptr(self.0.get()) }.fetch_add(value, order)
    }
}

macro_rules! repr {
    ([$($generic:ident)?] $type:ty, $native:ty) => {
        impl<$($generic: 'static)?> Place<$type> {
            fn native(&self) -> &$native {
                // SAFETY: Accessed atomically alone, and borrowed.
                unsafe { <$native>::from_ptr(self.0.get()) }
            }
        }

        impl<$($generic: 'static)?> Repr for $type {
            fn load(place: &Place<Self>, order: Ordering) -> Self {
                place.native().load(order)
            }

            fn store(place: &Place<Self>, value: Self, order: Ordering) {
                place.native().store(value, order);
            }

            fn swap(place: &Place<Self>, value: Self, order: Ordering) -> Self {
                place.native().swap(value, order)
            }

            fn cmpxchg(place: &Place<Self>, old: Self, new: Self, order: Ordering) -> Result<Self, Self> {
                place.native().compare_exchange(old, new, order, Ordering::Relaxed)
            }
        }
    };
}

repr!([] u32, AtomicU32);
repr!([] bool, AtomicBool);
repr!([T] *mut T, AtomicPtr<T>);
