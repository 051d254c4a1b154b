// SPDX-License-Identifier: GPL-2.0
//! Objects of the RDMA core with a driver's reference-counted context behind them.
//!
//! The core allocates and frees verbs objects itself, zeroed and with the size the driver names
//! (`size_ib_qp` and its like), and frees them as soon as `destroy_*` returns. A [`CoreObject`] is
//! such an object: the C structure at offset 0, then a slot that holds whatever the callbacks
//! need, usually an `Arc` of the driver's context. Code that uses the context after the
//! destruction holds a reference to it, and none holds a pointer to the object.

use core::mem::MaybeUninit;
use kernel::types::Opaque;

/// An object of the RDMA core with the driver's part behind it.
///
/// # Invariants
///
/// Between [`CoreObject::init`] and [`CoreObject::take`] the slot is initialized.
#[repr(C)]
pub(crate) struct CoreObject<C, S> {
    c: Opaque<C>,
    slot: MaybeUninit<S>,
}

impl<C, S> CoreObject<C, S> {
    /// Size to report to the core.
    pub(crate) const SIZE: usize = {
        // kmalloc() guarantees this alignment for all sizes.
        assert!(core::mem::align_of::<Self>() <= 8);
        core::mem::size_of::<Self>()
    };

    /// Fills the slot.
    ///
    /// # Safety
    ///
    /// `c` is the start of an allocation of at least [`Self::SIZE`] bytes, and the slot is not
    /// initialized. Nobody else accesses the slot during the call.
    pub(crate) unsafe fn init(c: *mut C, slot: S) {
        // SAFETY: The allocation is large enough by the caller's guarantee.
        // INVARIANT: The slot is initialized from here on.
        unsafe { (&raw mut (*c.cast::<Self>()).slot).write(MaybeUninit::new(slot)) };
    }

    /// Borrows the slot.
    ///
    /// # Safety
    ///
    /// `c` is a core object whose slot is initialized and stays so for `'a`.
    #[inline]
    pub(crate) unsafe fn slot<'a>(c: *mut C) -> &'a S {
        // SAFETY: By the caller's guarantee and the type invariant. Only the slot is borrowed, so
        // C may write its part at the same time.
        unsafe { (*c.cast::<Self>()).slot.assume_init_ref() }
    }

    /// Empties the slot.
    ///
    /// # Safety
    ///
    /// `c` is a core object whose slot is initialized, and nobody borrows it.
    pub(crate) unsafe fn take(c: *mut C) -> S {
        // SAFETY: By the caller's guarantee; the slot counts as uninitialized afterwards.
        unsafe { (&raw const (*c.cast::<Self>()).slot).read().assume_init() }
    }
}
