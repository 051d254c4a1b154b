// SPDX-License-Identifier: GPL-2.0
//! Memory windows. Work requests bind them; the verbs only allocate and deallocate them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::{
        self,
        Device, //
    },
    object::CoreObject,
    operation::Operation,
    pd::PdOps, //
};
use crate::bindings;
use core::ffi::c_int;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Type of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MwType {
    /// Type 1.
    One,
    /// Type 2, A or B according to the device's attributes.
    Two,
}

/// A memory window of a driver.
pub trait MemoryWindow: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Mw = Self>;

    /// Creates a window that is not bound, and returns it with its key.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `ENOSPC` when the device's limit is exhausted.
    fn create(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
        kind: MwType,
    ) -> Result<(Arc<Self>, u32)>;

    /// Destroys the window, bound or not: it must grant no access afterwards.
    ///
    /// # Context
    ///
    /// Process context.
    fn destroy(self: &Arc<Self>, dev: &Arc<Self::Device>);
}

/// The object that the core allocates.
pub(crate) type MwObject<T> = CoreObject<bindings::ib_mw, Arc<T>>;

/// Callbacks of [`MemoryWindow`].
pub(crate) struct MwOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> MwOps<D> {
    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn alloc_mw_callback(
        mw: *mut bindings::ib_mw,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*mw).device, c"alloc_mw") };
        operation.run(|| {
            // SAFETY: The core filled in the live device and domain, and the type.
            let (dev, pd, raw_type) = unsafe {
                (
                    device::ctx::<D>((*mw).device),
                    PdOps::<D>::ctx((*mw).pd),
                    (*mw).type_,
                )
            };
            let kind = match raw_type {
                bindings::ib_mw_type_IB_MW_TYPE_1 => MwType::One,
                bindings::ib_mw_type_IB_MW_TYPE_2 => MwType::Two,
                _ => return Err(EINVAL),
            };
            let (ctx, key) = D::Mw::create(dev, pd, kind)?;
            // SAFETY: A field of a fresh object.
            unsafe { (*mw).rkey = key };
            // SAFETY: The core allocated `MwObject::SIZE` bytes and `mw` is not shared yet.
            unsafe { MwObject::<D::Mw>::init(mw, ctx) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live window.
    pub(crate) unsafe extern "C" fn dealloc_mw_callback(mw: *mut bindings::ib_mw) -> c_int {
        // SAFETY: The last use; the device is alive, and the core frees `mw` next.
        let (ctx, dev) = unsafe { (MwObject::<D::Mw>::take(mw), device::ctx::<D>((*mw).device)) };
        ctx.destroy(dev);
        0
    }
}
