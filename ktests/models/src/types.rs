// SPDX-License-Identifier: GPL-2.0
//! `kernel::types`.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

/// Memory that C code uses.
#[repr(transparent)]
pub struct Opaque<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Opaque<T> {
    /// Returns uninitialised memory.
    pub const fn uninit() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Returns the value that `init` writes; it may be moved afterwards.
    pub fn ffi_init(init: impl FnOnce(*mut T)) -> Self {
        let this = Self::uninit();
        init(this.get());
        this
    }

    /// Returns the address.
    pub const fn get(&self) -> *mut T {
        UnsafeCell::raw_get(&raw const self.0).cast()
    }
}
