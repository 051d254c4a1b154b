// SPDX-License-Identifier: GPL-2.0
//! Memory regions.
//!
//! The driver allocates `ib_mr` itself, so the shell is a box of this file.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::detail::Details;
use super::device::{self, Device};
use super::pd::PdOps;
use super::unsupported;
use crate::bindings;
use crate::mem::{DmaMemory, Umem};
use core::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Right of a region: local write. Reading locally needs no right.
pub const ACCESS_LOCAL_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
/// Right of a region: RDMA WRITE.
pub const ACCESS_REMOTE_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
/// Right of a region: RDMA READ.
pub const ACCESS_REMOTE_READ: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_READ;
/// Right of a region: ATOMIC.
pub const ACCESS_REMOTE_ATOMIC: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
/// Right of a region: binding memory windows.
pub const ACCESS_MW_BIND: u32 = bindings::ib_access_flags_IB_ACCESS_MW_BIND;
/// Addresses in the region count from its start.
pub const ACCESS_ZERO_BASED: u32 = bindings::ib_access_flags_IB_ZERO_BASED;
/// Pages are taken on demand instead of pinned.
pub const ACCESS_ON_DEMAND: u32 = bindings::ib_access_flags_IB_ACCESS_ON_DEMAND;
/// Bits a driver may ignore.
pub const ACCESS_OPTIONAL: u32 = bindings::ib_access_flags_IB_ACCESS_OPTIONAL;

/// Arguments of `reg_user_mr`.
pub struct UserMr {
    /// The memory, pinned.
    pub umem: Umem,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte in the region.
    pub iova: u64,
    /// `ACCESS_*` bits without the optional ones.
    pub access: u32,
}

/// What a registration made.
pub struct MrCreated<T> {
    /// The context.
    pub ctx: Arc<T>,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A memory region of a driver.
pub trait MemoryRegion: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Mr = Self>;

    /// Access bits the driver understands, besides the optional ones.
    const ACCESS: u32;

    /// Registers pinned user memory. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps, `ENOMEM`.
    fn register(
        dev: &Arc<Self::Device>,
        pd: &Arc<<Self::Device as Device>::Pd>,
        user: UserMr,
    ) -> Result<MrCreated<Self>>;

    /// Registers all kernel memory for a kernel consumer's domain. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn register_dma(
        dev: &Arc<Self::Device>,
        pd: &Arc<<Self::Device as Device>::Pd>,
        memory: DmaMemory,
        access: u32,
    ) -> Result<MrCreated<Self>>;

    /// Says for `rdma resource` what the attributes do not. Process context.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    fn describe(&self, to: &mut Details<'_>) -> Result;

    /// Takes the region out of service: no access may happen afterwards. Process context.
    fn deregister(self: &Arc<Self>, dev: &Arc<Self::Device>);
}

/// An `ib_mr` with the driver's context behind it.
#[repr(C)]
struct MrShell<T> {
    c: bindings::ib_mr,
    ctx: Arc<T>,
}

/// Trampolines of [`MemoryRegion`].
pub(crate) struct MrOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> MrOps<D> {
    fn shell(f: impl FnOnce() -> Result<MrCreated<D::Mr>>) -> *mut bindings::ib_mr {
        let make = || {
            // Nothing needs to be undone if the context cannot be made afterwards.
            let room = KBox::<MrShell<D::Mr>>::new_uninit(GFP_KERNEL)?;
            let created = f()?;
            let mut c: bindings::ib_mr = pin_init::zeroed();
            c.lkey = created.lkey;
            c.rkey = created.rkey;
            Ok(KBox::write(
                room,
                MrShell {
                    c,
                    ctx: created.ctx,
                },
            ))
        };
        match make() {
            Ok(shell) => KBox::into_raw(shell).cast(),
            Err(e) => Error::to_ptr(e),
        }
    }

    /// # Safety
    ///
    /// `mr` is a live region of this driver, and stays so for `'a`.
    pub(crate) unsafe fn ctx<'a>(mr: *mut bindings::ib_mr) -> &'a Arc<D::Mr> {
        // SAFETY: All regions of this driver are boxed shells.
        unsafe { &(*mr.cast::<MrShell<D::Mr>>()).ctx }
    }

    /// # Safety
    ///
    /// Called by the core with a live PD.
    pub(crate) unsafe extern "C" fn reg_user_mr(
        pd: *mut bindings::ib_pd,
        start: u64,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        _udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        Self::shell(|| {
            let access = access as u32 & !ACCESS_OPTIONAL;
            if !dmah.is_null() || access & !D::Mr::ACCESS != 0 {
                return Err(unsupported());
            }
            // SAFETY: The PD is alive, so its device is.
            let (raw_dev, dev, ctx) = unsafe {
                let raw_dev = (*pd).device;
                (raw_dev, device::ctx::<D>(raw_dev), PdOps::<D>::ctx(pd))
            };
            // SAFETY: The device is alive, and this is the registering process.
            let umem = unsafe { Umem::pin(raw_dev, start, length, access)? };
            D::Mr::register(
                dev,
                ctx,
                UserMr {
                    umem,
                    length,
                    iova,
                    access,
                },
            )
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live PD.
    pub(crate) unsafe extern "C" fn get_dma_mr(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        Self::shell(|| {
            // SAFETY: The PD is alive, so its device is.
            let (dev, ctx) = unsafe { (device::ctx::<D>((*pd).device), PdOps::<D>::ctx(pd)) };
            // SAFETY: Only kernel consumers reach this operation.
            let memory = unsafe { DmaMemory::new() };
            D::Mr::register_dma(dev, ctx, memory, access as u32 & !ACCESS_OPTIONAL)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live region of this driver.
    pub(crate) unsafe extern "C" fn dereg_mr(
        mr: *mut bindings::ib_mr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: All regions of this driver are boxed shells, and this is the last use.
        let shell = unsafe { KBox::from_raw(mr.cast::<MrShell<D::Mr>>()) };
        // SAFETY: The region is alive, so its device is.
        let dev = unsafe { device::ctx::<D>(shell.c.device) };
        shell.ctx.deregister(dev);
        0
    }
}
