// SPDX-License-Identifier: GPL-2.0
//! Protection domains and user contexts.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::{
        self,
        Device, //
    },
    object::CoreObject,
    operation::Operation, //
};
use crate::bindings;
use core::ffi::c_int;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A protection domain of a driver.
pub trait ProtectionDomain: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Pd = Self>;

    /// Creates a protection domain.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `ENOSPC` when the device's limit is exhausted.
    fn create(dev: &Arc<Self::Device>) -> Result<Self>;

    /// Destroys the domain; the core makes sure that no object uses it any more.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn destroy(self, dev: &Arc<Self::Device>);
}

/// The object that the core allocates.
pub(crate) type PdObject<T> = CoreObject<bindings::ib_pd, T>;

/// Callbacks of [`ProtectionDomain`].
pub(crate) struct PdOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> PdOps<D> {
    /// # Safety
    ///
    /// `pd` is a live domain of this driver, and stays so for `'a`.
    pub(crate) unsafe fn ctx<'a>(pd: *mut bindings::ib_pd) -> &'a D::Pd {
        // SAFETY: By the caller's guarantee.
        unsafe { PdObject::<D::Pd>::slot(pd) }
    }

    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn alloc_pd_callback(
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*pd).device, c"alloc_pd") };
        operation.run(|| {
            // SAFETY: The core filled in the live device.
            let dev = unsafe { device::ctx::<D>((*pd).device) };
            let ctx = D::Pd::create(dev)?;
            // SAFETY: The core allocated `PdObject::SIZE` bytes and `pd` is not shared yet.
            unsafe { PdObject::<D::Pd>::init(pd, ctx) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live domain that nothing uses any more.
    pub(crate) unsafe extern "C" fn dealloc_pd_callback(
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The last use; the device is alive, and the core frees `pd` next.
        let (ctx, dev) = unsafe { (PdObject::<D::Pd>::take(pd), device::ctx::<D>((*pd).device)) };
        ctx.destroy(dev);
        0
    }
}

/// `alloc_ucontext`: the driver has no data per user context.
///
/// # Safety
///
/// Called by the core.
pub(crate) unsafe extern "C" fn alloc_ucontext_callback(
    _context: *mut bindings::ib_ucontext,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    0
}

/// `dealloc_ucontext`.
///
/// # Safety
///
/// Called by the core.
pub(crate) unsafe extern "C" fn dealloc_ucontext_callback(_context: *mut bindings::ib_ucontext) {}

/// `disassociate_ucontext`: the pages of mapped rings are held by the mappings themselves, or by
/// the ring to which the mapping has a reference, and `rxe_rs_ring_detach_all` takes the operations
/// of this module from mappings before it is unloaded, so nothing needs to be torn down.
///
/// # Safety
///
/// Called by the core.
pub(crate) unsafe extern "C" fn disassociate_ucontext_callback(
    _context: *mut bindings::ib_ucontext,
) {
}
