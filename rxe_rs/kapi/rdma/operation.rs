// SPDX-License-Identifier: GPL-2.0
//! Debug messages about operations that fail.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h) (`ibdev_dbg`)

use crate::bindings;
use core::ffi::c_int;
use kernel::prelude::*;

/// A call of an operation by the core, for the debug message if it fails.
///
/// The errno alone rarely explains what was wrong. With dynamic debug enabled for the module, each
/// call that fails logs a line with the device, the operation and the error;
/// [`DeviceHandle::refuse`](super::device::DeviceHandle::refuse) adds the reason before it where
/// the error has more than one.
///
/// # Invariants
///
/// The device is alive.
pub(crate) struct Operation {
    dev: *const bindings::ib_device,
    name: &'static CStr,
}

impl Operation {
    /// Creates the value for a call of operation `name` on `dev`.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Safety
    ///
    /// `dev` is alive until the value is dropped.
    #[inline]
    pub(crate) unsafe fn new(dev: *const bindings::ib_device, name: &'static CStr) -> Self {
        // INVARIANT: By the caller's guarantee.
        Self { dev, name }
    }

    /// Returns `result`; logs a debug message if it is an error.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub(crate) fn checked<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.log(*error);
        }
        result
    }

    /// Calls `body`; returns the integer that the core expects.
    #[inline]
    pub(crate) fn run(&self, body: impl FnOnce() -> Result<c_int>) -> c_int {
        match self.checked(body()) {
            Ok(value) => value,
            Err(error) => error.to_errno(),
        }
    }

    /// Returns the integer that the core expects for `result`.
    #[inline]
    pub(crate) fn errno(&self, result: Result) -> c_int {
        self.run(|| result.map(|()| 0))
    }

    #[cold]
    fn log(&self, error: Error) {
        // SAFETY: The device is alive by the type invariant, and the name is a C string.
        unsafe {
            bindings::rxe_rs_device_dbg_error(self.dev, self.name.as_char_ptr(), error.to_errno());
        }
    }
}
