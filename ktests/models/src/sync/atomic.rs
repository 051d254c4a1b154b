// SPDX-License-Identifier: GPL-2.0
//! `kernel::sync::atomic`, on loom's atomics or those of `std`.

use std::sync::atomic::Ordering;

/// A memory order as a type.
pub trait Order {
    /// The order of a read-modify-write operation.
    const BOTH: Ordering;
}

/// An order that a load may have.
pub trait LoadOrder {
    /// That of C11.
    const LOAD: Ordering;
}

/// An order that a store may have.
pub trait StoreOrder {
    /// That of C11.
    const STORE: Ordering;
}

/// No ordering.
pub struct Relaxed;
/// Accesses after it are not moved before it.
pub struct Acquire;
/// Accesses before it are not moved after it.
pub struct Release;
/// Both. In the kernel it is a full barrier, on which no modelled code depends.
pub struct Full;

impl Order for Relaxed {
    const BOTH: Ordering = Ordering::Relaxed;
}
impl Order for Acquire {
    const BOTH: Ordering = Ordering::Acquire;
}
impl Order for Release {
    const BOTH: Ordering = Ordering::Release;
}
impl Order for Full {
    const BOTH: Ordering = Ordering::AcqRel;
}
impl LoadOrder for Relaxed {
    const LOAD: Ordering = Ordering::Relaxed;
}
impl LoadOrder for Acquire {
    const LOAD: Ordering = Ordering::Acquire;
}
impl StoreOrder for Relaxed {
    const STORE: Ordering = Ordering::Relaxed;
}
impl StoreOrder for Release {
    const STORE: Ordering = Ordering::Release;
}

#[cfg(feature = "loom")]
mod on_loom;
#[cfg(feature = "loom")]
pub(crate) use on_loom::{forget, start};
#[cfg(feature = "loom")]
pub use on_loom::{Place, Repr};

#[cfg(not(feature = "loom"))]
mod on_std;
#[cfg(not(feature = "loom"))]
pub use on_std::{Place, Repr};

/// An atomic.
#[repr(transparent)]
pub struct Atomic<T: Repr>(Place<T>);

// SAFETY: Accessed atomically; loom switches threads in its own primitives only.
unsafe impl<T: Repr> Sync for Atomic<T> {}
// SAFETY: As above.
unsafe impl<T: Repr> Send for Atomic<T> {}

impl Atomic<u32> {
    /// Returns the atomic at an address.
    ///
    /// # Safety
    ///
    /// As for the kernel's function.
    pub unsafe fn from_ptr<'a>(at: *mut u32) -> &'a Self {
        // SAFETY: By the safety requirements of this function.
        unsafe { Place::at(at) }
    }

    /// Adds; returns the previous value.
    pub fn fetch_add<O: Order>(&self, value: u32, _: O) -> u32 {
        self.0.add(value, O::BOTH)
    }

    /// Subtracts; returns the previous value.
    pub fn fetch_sub<O: Order>(&self, value: u32, _: O) -> u32 {
        self.0.add(value.wrapping_neg(), O::BOTH)
    }
}

impl<T: Repr> Atomic<T> {
    /// Returns an atomic with that initial value.
    pub const fn new(value: T) -> Self {
        Self(Place::new(value))
    }

    /// Loads.
    pub fn load<O: LoadOrder>(&self, _: O) -> T {
        T::load(&self.0, O::LOAD)
    }

    /// Stores.
    pub fn store<O: StoreOrder>(&self, value: T, _: O) {
        T::store(&self.0, value, O::STORE);
    }

    /// Exchanges.
    pub fn xchg<O: Order>(&self, value: T, _: O) -> T {
        T::swap(&self.0, value, O::BOTH)
    }

    /// Exchanges if the value is the expected one. In the kernel a failed exchange orders nothing.
    ///
    /// # Errors
    ///
    /// The current value.
    pub fn cmpxchg<O: Order>(&self, old: T, new: T, _: O) -> Result<T, T> {
        T::cmpxchg(&self.0, old, new, O::BOTH)
    }
}
