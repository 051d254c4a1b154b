// SPDX-License-Identifier: GPL-2.0
//! Memory regions.
//!
//! The driver allocates `ib_mr` itself, so the shell is a box of this file.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::advise::{Advice, Range};
use super::detail::Details;
use super::device::{self, Device};
use super::operation::Operation;
use super::pd::PdOps;
use super::segment::{Addition, RegionState, Removal};
use super::unsupported;
use crate::bindings;
use crate::mem::demand::USER_END;
use crate::mem::{DmaBuf, DmaMemory, Memory, OdpMem, PageList, SgMem, Umem};
use core::ffi::c_int;
use core::marker::PhantomData;
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
/// The memory is of huge pages.
pub const ACCESS_HUGETLB: u32 = bindings::ib_access_flags_IB_ACCESS_HUGETLB;
/// FLUSH to global visibility.
pub const ACCESS_FLUSH_GLOBAL: u32 = bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL;
/// Rights for which pages are pinned for writing.
pub const ACCESS_WRITABLE: u32 =
    ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC | ACCESS_MW_BIND;
/// Bits a driver may ignore.
pub const ACCESS_OPTIONAL: u32 = bindings::ib_access_flags_IB_ACCESS_OPTIONAL;

/// Arguments of `reg_user_mr` and `reg_user_mr_dmabuf`.
pub struct UserMr {
    /// The memory: pinned ([`Memory::User`]), [`Memory::Odp`] if `access` says so, or
    /// [`Memory::Buffer`].
    pub memory: Memory,
    /// Bytes; fewer than asked for if that was the whole address space.
    pub length: u64,
    /// Address of the first byte in the region.
    pub iova: u64,
    /// `ACCESS_*` bits without the optional ones.
    pub access: u32,
}

/// New translation of a registered region.
#[derive(Clone, Copy)]
pub struct NewRange {
    /// Address of the first byte in the calling process.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte in the region.
    pub iova: u64,
}

/// Pins memory of the process that called the running operation.
pub struct Pinner<'a>(PhantomData<&'a ()>);

impl Pinner<'_> {
    /// For the running operation, in the context of the process that called it.
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }

    /// Pins `length` bytes at `start` for `access` (`ACCESS_*` bits).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps or is empty, `ENOMEM` (also beyond `RLIMIT_MEMLOCK`),
    /// `EFAULT` if it is not mapped as the rights need it.
    pub fn pin(&self, start: u64, length: u64, access: u32) -> Result<Umem> {
        Umem::pin(start, length, access & ACCESS_WRITABLE != 0)
    }

    /// Maps `length` bytes at `offset` of the DMA buffer that is file `fd` of the calling process.
    ///
    /// # Errors
    ///
    /// As `DmaBuf::map`, which tells `reason` why in words.
    pub(crate) fn buffer(
        &self,
        fd: c_int,
        offset: u64,
        length: u64,
        reason: impl FnOnce(&CStr),
    ) -> Result<Memory> {
        Ok(Memory::Buffer(DmaBuf::map(fd, offset, length, reason)?))
    }

    /// Pins `length` bytes at `start`, or with [`ACCESS_ON_DEMAND`] takes note of where they are.
    ///
    /// # Errors
    ///
    /// As [`pin`](Self::pin) and [`OdpMem::new`].
    pub fn memory(&self, start: u64, length: u64, access: u32) -> Result<Memory> {
        if access & ACCESS_ON_DEMAND != 0 {
            let demand = OdpMem::new(start, length, access & ACCESS_WRITABLE != 0)?;
            return Ok(Memory::Odp(demand));
        }
        Ok(Memory::User(self.pin(start, length, access)?))
    }
}

/// What `rereg_user_mr` changes; everything else stays.
pub struct Rereg<'a, D: Device> {
    /// The domain.
    pub pd: Option<&'a Arc<D::Pd>>,
    /// `ACCESS_*` bits without the optional ones.
    pub access: Option<u32>,
    /// The memory.
    pub range: Option<NewRange>,
    /// Pins it, or gets it on demand.
    pub pinner: Pinner<'a>,
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

    /// Registers user memory. Process context.
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

    /// Prefetches parts of regions of memory that is got on demand. Process context.
    ///
    /// # Errors
    ///
    /// `EFAULT` for keys of no such region of the domain, ranges outside or not mapped, or rights
    /// that the region does not have; `EINVAL` for keys of windows; `ENOMEM`, `EINTR`.
    fn prefetch(
        dev: &Arc<Self::Device>,
        pd: &Arc<<Self::Device as Device>::Pd>,
        advice: &Advice,
        ranges: impl ExactSizeIterator<Item = Range>,
    ) -> Result;

    /// The region that has the key now.
    fn find(dev: &Arc<Self::Device>, lkey: u32) -> Option<Arc<Self>>;

    /// Says for `rdma resource` what the attributes do not. Process context.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    fn describe(&self, to: &mut Details<'_>) -> Result;

    /// Makes a region for fast registration, which grants nothing yet. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` if the list has more room than the device says.
    fn allocate(
        dev: &Arc<Self::Device>,
        pd: &Arc<<Self::Device as Device>::Pd>,
        pages: PageList,
    ) -> Result<MrCreated<Self>>;

    /// Makes a region of a kernel consumer that has no memory, and grants nothing, until it is
    /// [filled](Self::fill). Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn allocate_empty(
        dev: &Arc<Self::Device>,
        pd: &Arc<<Self::Device as Device>::Pd>,
    ) -> Result<MrCreated<Self>>;

    /// Gives such a region its first segment, `memory` at `iova`, and its rights (`ACCESS_*` bits).
    /// Process context.
    ///
    /// # Errors
    ///
    /// As `rxe_rs_mr_reg_sg` of `rxe_rs/include/rdma/rxe_rs.h` says; nothing has changed then.
    fn fill(
        &self,
        dev: &Arc<Self::Device>,
        memory: SgMem,
        iova: u64,
        access: u32,
    ) -> Result<RegionState>;

    /// Moves a segment to another address. Process context.
    ///
    /// # Errors
    ///
    /// As `rxe_rs_mr_move` of `rxe_rs/include/rdma/rxe_rs.h` says; nothing has changed then.
    fn relocate(
        &self,
        dev: &Arc<Self::Device>,
        rkey: u32,
        handle: u64,
        iova: u64,
    ) -> Result<RegionState>;

    /// The pages of a region for fast registration.
    fn pages(&self) -> Option<&PageList>;

    /// Changes a user's region; its keys stay. Accesses find either what it was or what it will
    /// be, and none what it was when this returns. Process context.
    ///
    /// # Errors
    ///
    /// `EBUSY` while windows are bound to it, `EINVAL`, `ENOMEM`, `ENOENT` if its key has been
    /// released, `EOPNOTSUPP` if it is not memory of a process, or if its memory would change
    /// between pinned and on demand without being named again; nothing has changed then.
    fn reregister(&self, dev: &Arc<Self::Device>, change: Rereg<'_, Self::Device>) -> Result;

    /// Adds memory to a region. Process context.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_add` of `uapi/rxe_rs.h` says; nothing has changed then.
    fn add(
        &self,
        dev: &Arc<Self::Device>,
        request: &Addition,
        pinner: &Pinner<'_>,
    ) -> Result<RegionState>;

    /// Takes memory away from a region: no access to it happens afterwards. Process context.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_remove` of `uapi/rxe_rs.h` says; nothing has changed then.
    fn remove(&self, dev: &Arc<Self::Device>, request: &Removal) -> Result<RegionState>;

    /// Ties a user's region to a queue pair: it ends, key and memory, when that fails, is reset or is
    /// destroyed. Process context.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_tie` of `uapi/rxe_rs.h` says; nothing has changed then.
    fn tie(
        self: &Arc<Self>,
        dev: &Arc<Self::Device>,
        qp: &Arc<<Self::Device as Device>::Qp>,
        rkey: u32,
    ) -> Result;

    /// Takes the region out of service: no access may happen afterwards. Process context.
    ///
    /// # Errors
    ///
    /// `EBUSY` while windows are bound to it; nothing has changed then.
    fn deregister(self: &Arc<Self>, dev: &Arc<Self::Device>) -> Result;
}

/// An `ib_mr` with the driver's context behind it.
#[repr(C)]
struct MrShell<T> {
    c: bindings::ib_mr,
    ctx: Arc<T>,
}

/// Trampolines of [`MemoryRegion`].
pub(crate) struct MrOps<D: Device>(PhantomData<D>);

impl<D: Device> MrOps<D> {
    fn shell(
        operation: &Operation,
        f: impl FnOnce() -> Result<MrCreated<D::Mr>>,
    ) -> *mut bindings::ib_mr {
        let make = || {
            // Nothing needs to be undone if the context cannot be made afterwards.
            let room = KBox::<MrShell<D::Mr>>::new_uninit(GFP_KERNEL_ACCOUNT)?;
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
        match operation.checked(make()) {
            Ok(shell) => KBox::into_raw(shell).cast(),
            Err(e) => Error::to_ptr(e),
        }
    }

    /// The access bits asked for, without the optional ones, if all of them are `known` and there
    /// are no hints about where the device may keep the data.
    fn user_access(access: c_int, dmah: *mut bindings::ib_dmah, known: u32) -> Result<u32> {
        let access = access as u32 & !ACCESS_OPTIONAL;
        if !dmah.is_null() || access & !known != 0 {
            return Err(unsupported());
        }
        Ok(access)
    }

    /// What a new region belongs to: the device, raw and as its context, and the domain.
    ///
    /// # Safety
    ///
    /// `pd` is a live PD of this driver, and stays so for `'a`.
    unsafe fn parents<'a>(
        pd: *mut bindings::ib_pd,
    ) -> (*mut bindings::ib_device, &'a Arc<D>, &'a Arc<D::Pd>) {
        // SAFETY: By the caller's promise; while the PD is alive its device is.
        unsafe {
            let raw_dev = (*pd).device;
            (raw_dev, device::ctx::<D>(raw_dev), PdOps::<D>::ctx(pd))
        }
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
        // SAFETY: The PD is alive, so its device is.
        let operation = unsafe { Operation::new((*pd).device, c"reg_user_mr") };
        Self::shell(&operation, || {
            let access = Self::user_access(access, dmah, D::Mr::ACCESS)?;
            // SAFETY: By the caller's promise.
            let (_, dev, ctx) = unsafe { Self::parents(pd) };
            let mut length = length;
            if access & ACCESS_ON_DEMAND != 0 && start == 0 && length == u64::MAX {
                // All of the address space, which has pages of any size (see ibv_reg_mr(3)).
                if iova != 0 || access & ACCESS_HUGETLB != 0 {
                    return Err(EINVAL);
                }
                length = USER_END;
            }
            let pinner = Pinner::new();
            let user = UserMr {
                memory: pinner.memory(start, length, access)?,
                length,
                iova,
                access,
            };
            D::Mr::register(dev, ctx, user)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live PD.
    #[allow(clippy::too_many_arguments)] // The core's.
    pub(crate) unsafe extern "C" fn reg_user_mr_dmabuf(
        pd: *mut bindings::ib_pd,
        offset: u64,
        length: u64,
        iova: u64,
        fd: c_int,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> *mut bindings::ib_mr {
        // SAFETY: The PD is alive, so its device is.
        let operation = unsafe { Operation::new((*pd).device, c"reg_user_mr_dmabuf") };
        Self::shell(&operation, || {
            let access = Self::user_access(access, dmah, D::Mr::ACCESS & !ACCESS_ON_DEMAND)?;
            // SAFETY: By the caller's promise.
            let (raw_dev, dev, ctx) = unsafe { Self::parents(pd) };
            let memory = Pinner::new().buffer(fd, offset, length, |reason| {
                // SAFETY: The device is alive.
                unsafe { bindings::rxe_rs_device_dbg(raw_dev, reason.as_char_ptr()) };
            })?;
            let user = UserMr {
                memory,
                length,
                iova,
                access,
            };
            D::Mr::register(dev, ctx, user)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live PD.
    pub(crate) unsafe extern "C" fn get_dma_mr(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // SAFETY: The PD is alive, so its device is.
        let operation = unsafe { Operation::new((*pd).device, c"get_dma_mr") };
        Self::shell(&operation, || {
            // SAFETY: By the caller's promise.
            let (_, dev, ctx) = unsafe { Self::parents(pd) };
            // SAFETY: Only kernel consumers reach this operation.
            let memory = unsafe { DmaMemory::new() };
            D::Mr::register_dma(dev, ctx, memory, access as u32 & !ACCESS_OPTIONAL)
        })
    }

    /// The context of a region.
    ///
    /// # Safety
    ///
    /// `mr` is a live region of this driver, and stays so for `'a`.
    pub(crate) unsafe fn ctx<'a>(mr: *mut bindings::ib_mr) -> &'a Arc<D::Mr> {
        // SAFETY: All regions of this driver are shells.
        unsafe { &(*mr.cast::<MrShell<D::Mr>>()).ctx }
    }

    /// # Safety
    ///
    /// Called by the core with a live PD of a kernel consumer.
    pub(crate) unsafe extern "C" fn alloc_mr(
        pd: *mut bindings::ib_pd,
        mr_type: bindings::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut bindings::ib_mr {
        // SAFETY: The PD is alive, so its device is.
        let operation = unsafe { Operation::new((*pd).device, c"alloc_mr") };
        Self::shell(&operation, || {
            // SAFETY: By the caller's promise.
            let (_, dev, ctx) = unsafe { Self::parents(pd) };
            if mr_type == bindings::RXE_RS_MR_TYPE_SEGMENTS {
                return D::Mr::allocate_empty(dev, ctx);
            }
            if mr_type != bindings::ib_mr_type_IB_MR_TYPE_MEM_REG {
                return Err(unsupported());
            }
            if max_num_sg == 0 || max_num_sg > dev.attributes().max_fast_reg_pages {
                return Err(EINVAL);
            }
            // SAFETY: User space has no way to allocate such a region.
            let pages = unsafe { PageList::new(max_num_sg)? };
            D::Mr::allocate(dev, ctx, pages)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live region and a well-formed list of memory mapped for the
    /// device.
    pub(crate) unsafe extern "C" fn map_mr_sg(
        mr: *mut bindings::ib_mr,
        sg: *mut bindings::scatterlist,
        sg_nents: c_int,
        sg_offset: *mut core::ffi::c_uint,
    ) -> c_int {
        // SAFETY: A live region has a live device.
        let operation = unsafe { Operation::new((*mr).device, c"map_mr_sg") };
        // SAFETY: A live region of this driver.
        let Some(pages) = (unsafe { Self::ctx(mr) }).pages() else {
            return operation.errno(Err(EINVAL));
        };
        // SAFETY: A field that the core has just set.
        let page_size = unsafe { (*mr).page_size };
        if !page_size.is_power_of_two() {
            return operation.errno(Err(EINVAL));
        }
        pages.clear();
        // SAFETY: By the caller's promise; the callback gets the same region.
        let mapped =
            unsafe { bindings::ib_sg_to_pages(mr, sg, sg_nents, sg_offset, Some(Self::set_page)) };
        // SAFETY: A field that the call above has set.
        pages.describe(page_size, unsafe { (*mr).iova });
        mapped
    }

    /// # Safety
    ///
    /// Called by [`map_mr_sg`](Self::map_mr_sg) through the core.
    unsafe extern "C" fn set_page(mr: *mut bindings::ib_mr, addr: u64) -> c_int {
        // SAFETY: A live region of this driver.
        match unsafe { Self::ctx(mr) }.pages() {
            Some(pages) if pages.push(addr) => 0,
            _ => ENOMEM.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live region of a user and a live PD of the same device; no other
    /// verb is called for the region meanwhile.
    #[allow(clippy::too_many_arguments)] // The core's.
    pub(crate) unsafe extern "C" fn rereg_user_mr(
        mr: *mut bindings::ib_mr,
        flags: c_int,
        start: u64,
        length: u64,
        iova: u64,
        access: c_int,
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        let has = |flag: bindings::ib_mr_rereg_flags| flags as u32 & flag != 0;
        let access = has(bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
            .then_some(access as u32 & !ACCESS_OPTIONAL);
        let run = || {
            // SAFETY: By the caller's promise.
            let (raw_dev, ctx) = unsafe { ((*mr).device, Self::ctx(mr)) };
            // SAFETY: The region is alive, so its device is.
            let dev = unsafe { device::ctx::<D>(raw_dev) };
            if access.is_some_and(|access| access & !D::Mr::ACCESS != 0) {
                return Err(unsupported());
            }
            let range = has(bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS).then_some(NewRange {
                start,
                length,
                iova,
            });
            let pd = has(bindings::ib_mr_rereg_flags_IB_MR_REREG_PD).then(|| {
                // SAFETY: By the caller's promise.
                unsafe { PdOps::<D>::ctx(pd) }
            });
            let change = Rereg {
                pd,
                access,
                range,
                pinner: Pinner::new(),
            };
            ctx.reregister(dev, change)
        };
        // SAFETY: The region is alive, so its device is.
        let operation = unsafe { Operation::new((*mr).device, c"rereg_user_mr") };
        match operation.checked(run()) {
            // In place.
            Ok(()) => core::ptr::null_mut(),
            Err(e) => e.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live region of this driver.
    pub(crate) unsafe extern "C" fn dereg_mr(
        mr: *mut bindings::ib_mr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: The region is alive, so its device is.
            let (ctx, dev) = unsafe { (Self::ctx(mr), device::ctx::<D>((*mr).device)) };
            // SAFETY: As above.
            let operation = unsafe { Operation::new((*mr).device, c"dereg_mr") };
            if let Err(e) = operation.checked(ctx.deregister(dev)) {
                return e.to_errno();
            }
        }
        // SAFETY: All regions of this driver are boxed shells, and this is the last use.
        drop(unsafe { KBox::from_raw(mr.cast::<MrShell<D::Mr>>()) });
        0
    }
}
