// SPDX-License-Identifier: GPL-2.0
//! Address handles.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    av::AddressVector,
    device::{
        self,
        Device, //
    },
    object::CoreObject,
    operation::Operation,
    pd::PdOps,
    udata::UserCall, //
};
use crate::bindings;
use core::ffi::c_int;
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};

/// An address handle of a driver.
pub trait AddressHandle: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Ah = Self>;

    /// Creates an address handle.
    ///
    /// # Context
    ///
    /// Any context the allocation `flags` allow.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `ENOSPC` when the device's limit is exhausted.
    fn create(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
        av: AddressVector,
        user: Option<UserCall<'_>>,
        flags: Flags,
    ) -> Result<Self>;

    /// Changes the address vector: requests posted from now on use the new one.
    ///
    /// # Context
    ///
    /// Process context or softirq; must not sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or why the new address vector is refused; nothing has changed then.
    fn modify(&self, dev: &Arc<Self::Device>, av: AddressVector) -> Result;

    /// Returns the address vector.
    ///
    /// # Context
    ///
    /// Process context or softirq; must not sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the handle has been destroyed.
    fn query(&self, dev: &Arc<Self::Device>) -> Result<AddressVector>;

    /// Destroys the handle: it cannot be used for requests any more.
    ///
    /// # Context
    ///
    /// Process context if it was created for a process; else also softirq, where it must not
    /// sleep.
    fn destroy(self, dev: &Arc<Self::Device>);
}

/// The object that the core allocates.
pub(crate) type AhObject<T> = CoreObject<bindings::ib_ah, T>;

/// Callbacks of [`AddressHandle`].
pub(crate) struct AhOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> AhOps<D> {
    /// # Safety
    ///
    /// `ah` is a live handle of this driver, and stays so for `'a`.
    #[inline]
    pub(crate) unsafe fn ctx<'a>(ah: *mut bindings::ib_ah) -> &'a D::Ah {
        // SAFETY: By the caller's guarantee.
        unsafe { AhObject::<D::Ah>::slot(ah) }
    }

    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn create_ah_callback(
        ah: *mut bindings::ib_ah,
        init: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*ah).device, c"create_ah") };
        operation.run(|| {
            // SAFETY: The core filled in the live device and PD and passes valid attributes.
            let (dev, pd, av, sleepable) = unsafe {
                (
                    device::ctx::<D>((*ah).device),
                    PdOps::<D>::ctx((*ah).pd),
                    AddressVector::from_raw((*init).ah_attr)?,
                    (*init).flags & bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0,
                )
            };
            // SAFETY: The argument of this very call.
            let user = unsafe { UserCall::from_raw(udata) };
            let flags = if sleepable || user.is_some() {
                GFP_KERNEL_ACCOUNT
            } else {
                GFP_ATOMIC
            };
            let ctx = D::Ah::create(dev, pd, av, user, flags)?;
            // SAFETY: The core allocated `AhObject::SIZE` bytes and `ah` is not shared yet.
            unsafe { AhObject::<D::Ah>::init(ah, ctx) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live handle and valid attributes.
    pub(crate) unsafe extern "C" fn modify_ah_callback(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*ah).device, c"modify_ah") };
        operation.run(|| {
            // SAFETY: A live handle of this driver, its device, and valid attributes.
            let (ctx, dev, av) = unsafe {
                (
                    Self::ctx(ah),
                    device::ctx::<D>((*ah).device),
                    AddressVector::from_raw(attr)?,
                )
            };
            ctx.modify(dev, av)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live handle.
    pub(crate) unsafe extern "C" fn query_ah_callback(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: A live handle of this driver, its device, and a valid place for the response.
        let (ctx, dev, attr) =
            unsafe { (Self::ctx(ah), device::ctx::<D>((*ah).device), &mut *attr) };
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*ah).device, c"query_ah") };
        operation.run(|| {
            ctx.query(dev)?.store(attr);
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live handle that nobody else uses.
    pub(crate) unsafe extern "C" fn destroy_ah_callback(
        ah: *mut bindings::ib_ah,
        _flags: u32,
    ) -> c_int {
        // SAFETY: The last use; the device is alive, and the core frees `ah` next.
        let (ctx, dev) = unsafe { (AhObject::<D::Ah>::take(ah), device::ctx::<D>((*ah).device)) };
        ctx.destroy(dev);
        0
    }
}
