// SPDX-License-Identifier: GPL-2.0
//! `kernel::prelude`.

pub use crate::pin_init;
pub use rxe_models_macros::{pin_data, pinned_drop};
pub use std::convert::Infallible;
pub use std::ffi::CStr;
pub use std::pin::Pin;

/// `CStrExt` of the kernel crate.
pub trait CStrExt {
    /// Returns the address of the string.
    fn as_char_ptr(&self) -> *const std::ffi::c_char;
}

impl CStrExt for CStr {
    fn as_char_ptr(&self) -> *const std::ffi::c_char {
        self.as_ptr()
    }
}

/// An errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(i32);

impl Error {
    /// Converts a negative errno.
    pub fn from_errno(errno: i32) -> Self {
        Self(errno)
    }

    /// Returns the negative errno.
    pub fn to_errno(self) -> i32 {
        self.0
    }
}

impl From<std::num::TryFromIntError> for Error {
    fn from(_: std::num::TryFromIntError) -> Self {
        EINVAL
    }
}

/// The result of an operation that can fail.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// No such entry.
pub const ENOENT: Error = Error(-2);
/// No memory.
pub const ENOMEM: Error = Error(-12);
/// Busy.
pub const EBUSY: Error = Error(-16);
/// Invalid argument.
pub const EINVAL: Error = Error(-22);
/// No space.
pub const ENOSPC: Error = Error(-28);

/// Allocation flags; allocations never fail here.
#[derive(Clone, Copy)]
pub struct Flags;

/// In process context.
pub const GFP_KERNEL_ACCOUNT: Flags = Flags;

/// An initializer of a pinned value; here it contains the value.
pub trait PinInit<T> {
    /// Returns the value.
    fn made(self) -> T;
}

impl<T> PinInit<T> for T {
    fn made(self) -> T {
        self
    }
}

/// `KBox` of the kernel crate.
pub struct KBox<T>(*mut T);

// SAFETY: It owns the value.
unsafe impl<T: Send> Send for KBox<T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for KBox<T> {}

impl<T> KBox<T> {
    /// Allocates memory for a value.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn new(value: T, _: Flags) -> Result<Self> {
        Ok(Self(Box::into_raw(Box::new(value))))
    }

    /// Allocates memory for an initializer, which here contains the value.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn pin_init(init: impl PinInit<T>, flags: Flags) -> Result<Pin<Self>> {
        // SAFETY: Only the type of the box says that the value is pinned.
        Ok(unsafe { Pin::new_unchecked(Self::new(init.made(), flags)?) })
    }

    /// Returns the pointer, and with it the ownership.
    pub fn into_raw(this: Self) -> *mut T {
        std::mem::ManuallyDrop::new(this).0
    }

    /// Takes ownership of a pointer.
    ///
    /// # Safety
    ///
    /// The pointer is from [`into_raw`](Self::into_raw), and nobody else uses it.
    pub unsafe fn from_raw(at: *mut T) -> Self {
        Self(at)
    }
}

impl<T> std::ops::Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: From a box, and owned.
        unsafe { &*self.0 }
    }
}

impl<T> std::ops::DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: From a box, and owned.
        unsafe { &mut *self.0 }
    }
}

#[cfg(not(feature = "loom"))]
impl<T> Drop for KBox<T> {
    fn drop(&mut self) {
        // SAFETY: From a box, and owned.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[cfg(feature = "loom")]
mod freed {
    use std::alloc::{dealloc, Layout};
    use std::cell::RefCell;

    thread_local! {
        /// Loom's threads are one thread of the host.
        static FREED: RefCell<Vec<(usize, Layout)>> = const { RefCell::new(Vec::new()) };
    }

    // The memory stays until the run is over, so that an access to a freed atomic is detected and
    // harmless.
    impl<T> Drop for super::KBox<T> {
        fn drop(&mut self) {
            // SAFETY: From a box, and owned.
            unsafe { self.0.drop_in_place() };
            FREED.with(|freed| {
                freed
                    .borrow_mut()
                    .push((self.0 as usize, Layout::new::<T>()))
            });
        }
    }

    /// Releases the memory that the last run freed.
    pub(crate) fn release() {
        FREED.with(|freed| {
            for (at, layout) in freed.take() {
                // SAFETY: From a box with that layout, whose value has been dropped.
                unsafe { dealloc(at as *mut u8, layout) };
            }
        });
    }
}

#[cfg(feature = "loom")]
pub(crate) use freed::release;
