// SPDX-License-Identifier: GPL-2.0
//! Memory regions.
//!
//! The driver allocates `ib_mr` itself, so the object is allocated in this file.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    advise::{
        Advice,
        Range, //
    },
    detail::Details,
    device::{
        self,
        Device, //
    },
    operation::Operation,
    pd::PdOps,
    segment::{
        Addition,
        RegionState,
        Removal, //
    },
};
use crate::{
    bindings,
    mem::{
        odp::USER_END,
        DmaBuf,
        DmaMemory,
        Memory,
        OdpMem,
        PageList,
        SgMem,
        Umem, //
    },
    series::unsupported,
};
use core::{
    ffi::c_int,
    marker::PhantomData, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Access right: local write. Local read needs no right.
pub const ACCESS_LOCAL_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
/// Access right: RDMA WRITE.
pub const ACCESS_REMOTE_WRITE: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
/// Access right: RDMA READ.
pub const ACCESS_REMOTE_READ: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_READ;
/// Access right: ATOMIC.
pub const ACCESS_REMOTE_ATOMIC: u32 = bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC;
/// Access right: binding memory windows.
pub const ACCESS_MW_BIND: u32 = bindings::ib_access_flags_IB_ACCESS_MW_BIND;
/// Addresses in the region start at 0.
pub const ACCESS_ZERO_BASED: u32 = bindings::ib_access_flags_IB_ZERO_BASED;
/// On-demand paging instead of pinned pages.
pub const ACCESS_ON_DEMAND: u32 = bindings::ib_access_flags_IB_ACCESS_ON_DEMAND;
/// The memory consists of huge pages.
pub const ACCESS_HUGETLB: u32 = bindings::ib_access_flags_IB_ACCESS_HUGETLB;
/// FLUSH to global visibility.
pub const ACCESS_FLUSH_GLOBAL: u32 = bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL;
/// Rights for which pages are pinned for writing.
pub const ACCESS_WRITABLE: u32 =
    ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC | ACCESS_MW_BIND;
/// Bits a driver may ignore.
pub const ACCESS_OPTIONAL: u32 = bindings::ib_access_flags_IB_ACCESS_OPTIONAL;

/// Key of all memory for local accesses of kernel consumers, which thus need no region for that
/// (`ib_device::local_dma_lkey`).
pub const LOCAL_DMA_LKEY: u32 = 0;

/// Arguments of `reg_user_mr` and `reg_user_mr_dmabuf`.
pub struct UserMr {
    /// The memory: pinned ([`Memory::User`]), [`Memory::Odp`] if `access` says so, or
    /// [`Memory::Buffer`].
    pub memory: Memory,
    /// Bytes; less than requested if the request was the whole address space.
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
    /// Length of the memory in bytes.
    pub length: u64,
    /// Address of the first byte in the region.
    pub iova: u64,
}

impl NewRange {
    /// Returns the length of the memory for `access` (`ACCESS_*` bits), which is less than was
    /// requested if that was the whole address space, with on-demand paging (see ibv_reg_mr(3)).
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that has another address in the region, or is to consist of huge pages.
    pub fn length_for(&self, access: u32) -> Result<u64> {
        if access & ACCESS_ON_DEMAND == 0 || self.start != 0 || self.length != u64::MAX {
            return Ok(self.length);
        }
        // The address space has pages of any size.
        if self.iova != 0 || access & ACCESS_HUGETLB != 0 {
            return Err(EINVAL);
        }
        Ok(USER_END)
    }
}

/// Pins memory of the process that called the running verb.
///
/// # Context
///
/// Process context, that of the caller of the running verb; sleeps.
///
/// # Invariants
///
/// The device is alive.
pub struct Pinner<'a> {
    dev: *mut bindings::ib_device,
    _verb: PhantomData<&'a ()>,
}

impl Pinner<'_> {
    /// For the running verb of `dev`, in the context of its caller.
    ///
    /// # Safety
    ///
    /// `dev` is alive until the value is dropped.
    pub(crate) unsafe fn new(dev: *mut bindings::ib_device) -> Self {
        // INVARIANT: By the caller's guarantee.
        Self {
            dev,
            _verb: PhantomData,
        }
    }

    /// Pins `length` bytes at `start` for `access` (`ACCESS_*` bits).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps or is empty, `ENOMEM` (also beyond `RLIMIT_MEMLOCK`),
    /// `EPERM` if that is 0, `EFAULT` if it is not mapped with the required access.
    pub fn pin(&self, start: u64, length: u64, access: u32) -> Result<Umem> {
        Umem::pin(start, length, access & ACCESS_WRITABLE != 0)
    }

    /// Pins the DMA buffer that is file `fd` of the calling process, and maps `length` bytes at
    /// `offset` of it.
    ///
    /// # Errors
    ///
    /// As `DmaBuf::map`, which calls `reason` with a description.
    pub(crate) fn buffer(
        &self,
        fd: c_int,
        offset: u64,
        length: u64,
        reason: impl FnOnce(&CStr),
    ) -> Result<Memory> {
        // SAFETY: The device is alive by the type invariant.
        let part = unsafe { DmaBuf::map(self.dev, fd, offset, length, reason)? };
        Ok(Memory::Buffer(part))
    }

    /// Pins `length` bytes at `start`, or mirrors them with [`ACCESS_ON_DEMAND`].
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

/// Changes of `rereg_user_mr`; everything else stays.
pub struct Rereg<'a, D: Device> {
    /// The protection domain.
    pub pd: Option<&'a D::Pd>,
    /// `ACCESS_*` bits without the optional ones.
    pub access: Option<u32>,
    /// The memory.
    pub range: Option<NewRange>,
    /// Pins it, or mirrors it for on-demand paging.
    pub pinner: Pinner<'a>,
}

/// Result of a registration.
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

    /// Registers user memory.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps, `ENOMEM`.
    fn register(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
        user: UserMr,
    ) -> Result<MrCreated<Self>>;

    /// Registers all kernel memory for a kernel consumer's protection domain.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn register_dma(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
        memory: DmaMemory,
        access: u32,
    ) -> Result<MrCreated<Self>>;

    /// Prefetches parts of regions with on-demand paging.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` for keys of no such region of the protection domain, ranges outside or not mapped,
    /// or rights that the region does not have; `EINVAL` for keys of windows; `ENOMEM`, `EINTR`.
    fn prefetch(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
        advice: &Advice,
        ranges: impl ExactSizeIterator<Item = Range>,
    ) -> Result;

    /// Returns the region that has the key now.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn find(dev: &Arc<Self::Device>, lkey: u32) -> Option<Arc<Self>>;

    /// Adds driver-specific attributes for `rdma resource`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    fn describe(&self, to: &mut Details<'_>) -> Result;

    /// Allocates an FRWR region, which is not registered yet.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EINVAL` if the list is longer than the device's limit.
    fn allocate(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
        pages: PageList,
    ) -> Result<MrCreated<Self>>;

    /// Allocates a region of a kernel consumer that has no memory, and grants no access, until it
    /// is [filled](Self::fill).
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn allocate_empty(
        dev: &Arc<Self::Device>,
        pd: &<Self::Device as Device>::Pd,
    ) -> Result<MrCreated<Self>>;

    /// Sets the first segment of such a region, `memory` at `iova`, and its rights (`ACCESS_*`
    /// bits).
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As `rxe_rs_mr_reg_sg` of `rxe_rs/include/rdma/rxe_rs.h` documents; nothing has changed then.
    fn fill(
        &self,
        dev: &Arc<Self::Device>,
        memory: SgMem,
        iova: u64,
        access: u32,
    ) -> Result<RegionState>;

    /// Moves a segment to another address.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As `rxe_rs_mr_move` of `rxe_rs/include/rdma/rxe_rs.h` documents; nothing has changed then.
    fn relocate(
        &self,
        dev: &Arc<Self::Device>,
        rkey: u32,
        handle: u64,
        iova: u64,
    ) -> Result<RegionState>;

    /// Returns the page list of an FRWR region.
    ///
    /// # Context
    ///
    /// Process context; must not sleep.
    fn pages(&self) -> Option<&PageList>;

    /// Changes a user's region; its keys stay. Accesses find either the old or the new
    /// registration, and only the new one after this returns.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` while windows are bound to it, `EINVAL`, `ENOMEM`, `ENOENT` if its key has been
    /// released, `EOPNOTSUPP` if it is not memory of a process, or if it would change between
    /// pinning and on-demand paging without a new translation; nothing has changed then.
    fn reregister(&self, dev: &Arc<Self::Device>, change: Rereg<'_, Self::Device>) -> Result;

    /// Adds a segment to a region.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_add` of `uapi/rxe_rs.h` documents; nothing has changed then.
    fn add(
        &self,
        dev: &Arc<Self::Device>,
        request: &Addition,
        pinner: &Pinner<'_>,
    ) -> Result<RegionState>;

    /// Removes memory from a region: it is not accessed afterwards.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_remove` of `uapi/rxe_rs.h` documents; nothing has changed then.
    fn remove(&self, dev: &Arc<Self::Device>, request: &Removal) -> Result<RegionState>;

    /// Deregisters the region: it is not accessed afterwards.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` while windows are bound to it; nothing has changed then.
    fn deregister(self: &Arc<Self>, dev: &Arc<Self::Device>) -> Result;
}

/// An `ib_mr` with the driver's context behind it.
#[repr(C)]
struct MrObject<T> {
    c: bindings::ib_mr,
    ctx: Arc<T>,
}

/// Callbacks of [`MemoryRegion`].
pub(crate) struct MrOps<D: Device>(PhantomData<D>);

impl<D: Device> MrOps<D> {
    /// Allocates an object for the region that `f` creates. `bounds` are address and length as the
    /// caller has requested them: the core enters them itself for some calls only, and reports them
    /// in `QUERY_MR` and to netlink.
    fn object(
        operation: &Operation,
        bounds: (u64, u64),
        f: impl FnOnce() -> Result<MrCreated<D::Mr>>,
    ) -> *mut bindings::ib_mr {
        let make = || {
            // Nothing must be undone if the context cannot be created afterwards.
            let uninit = KBox::<MrObject<D::Mr>>::new_uninit(GFP_KERNEL_ACCOUNT)?;
            let created = f()?;
            let mut c: bindings::ib_mr = pin_init::zeroed();
            c.lkey = created.lkey;
            c.rkey = created.rkey;
            (c.iova, c.length) = bounds;
            Ok(KBox::write(
                uninit,
                MrObject {
                    c,
                    ctx: created.ctx,
                },
            ))
        };
        match operation.checked(make()) {
            Ok(object) => KBox::into_raw(object).cast(),
            Err(e) => Error::to_ptr(e),
        }
    }

    /// Returns the requested access bits, without the optional ones, if all of them are `known` and
    /// there are no TPH hints for the placement of data (`dmah`).
    fn user_access(access: c_int, dmah: *mut bindings::ib_dmah, known: u32) -> Result<u32> {
        let access = access as u32 & !ACCESS_OPTIONAL;
        if !dmah.is_null() || access & !known != 0 {
            return Err(unsupported());
        }
        Ok(access)
    }

    /// Returns the parents of a new region: the device, raw and as its context, and the protection
    /// domain.
    ///
    /// # Safety
    ///
    /// `pd` is a live PD of this driver, and stays so for `'a`.
    unsafe fn parents<'a>(
        pd: *mut bindings::ib_pd,
    ) -> (*mut bindings::ib_device, &'a Arc<D>, &'a D::Pd) {
        // SAFETY: By the caller's guarantee; while the PD is alive its device is.
        unsafe {
            let raw_dev = (*pd).device;
            (raw_dev, device::ctx::<D>(raw_dev), PdOps::<D>::ctx(pd))
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live PD.
    pub(crate) unsafe extern "C" fn reg_user_mr_callback(
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
        Self::object(&operation, (iova, length), || {
            let access = Self::user_access(access, dmah, D::Mr::ACCESS)?;
            // SAFETY: By the caller's guarantee.
            let (raw_dev, dev, ctx) = unsafe { Self::parents(pd) };
            let range = NewRange {
                start,
                length,
                iova,
            };
            let length = range.length_for(access)?;
            // SAFETY: The device is alive during the call.
            let pinner = unsafe { Pinner::new(raw_dev) };
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
    pub(crate) unsafe extern "C" fn reg_user_mr_dmabuf_callback(
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
        Self::object(&operation, (iova, length), || {
            let access = Self::user_access(access, dmah, D::Mr::ACCESS & !ACCESS_ON_DEMAND)?;
            // SAFETY: By the caller's guarantee.
            let (raw_dev, dev, ctx) = unsafe { Self::parents(pd) };
            // SAFETY: The device is alive during the call.
            let pinner = unsafe { Pinner::new(raw_dev) };
            let memory = pinner.buffer(fd, offset, length, |reason| {
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
    pub(crate) unsafe extern "C" fn get_dma_mr_callback(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // SAFETY: The PD is alive, so its device is.
        let operation = unsafe { Operation::new((*pd).device, c"get_dma_mr") };
        Self::object(&operation, (0, 0), || {
            // SAFETY: By the caller's guarantee.
            let (_, dev, ctx) = unsafe { Self::parents(pd) };
            // SAFETY: Only kernel consumers can call this verb.
            let memory = unsafe { DmaMemory::new() };
            D::Mr::register_dma(dev, ctx, memory, access as u32 & !ACCESS_OPTIONAL)
        })
    }

    /// Returns the context of a region.
    ///
    /// # Safety
    ///
    /// `mr` is a live region of this driver, and stays so for `'a`.
    pub(crate) unsafe fn ctx<'a>(mr: *mut bindings::ib_mr) -> &'a Arc<D::Mr> {
        // SAFETY: All regions of this driver are `MrObject`s.
        unsafe { &(*mr.cast::<MrObject<D::Mr>>()).ctx }
    }

    /// # Safety
    ///
    /// Called by the core with a live PD of a kernel consumer.
    pub(crate) unsafe extern "C" fn alloc_mr_callback(
        pd: *mut bindings::ib_pd,
        mr_type: bindings::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut bindings::ib_mr {
        // SAFETY: The PD is alive, so its device is.
        let operation = unsafe { Operation::new((*pd).device, c"alloc_mr") };
        Self::object(&operation, (0, 0), || {
            // SAFETY: By the caller's guarantee.
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
    pub(crate) unsafe extern "C" fn map_mr_sg_callback(
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
        // SAFETY: By the caller's guarantee; the callback gets the same region.
        let mapped = unsafe {
            bindings::ib_sg_to_pages(mr, sg, sg_nents, sg_offset, Some(Self::set_page_callback))
        };
        // SAFETY: A field that the call above has set.
        pages.describe(page_size, unsafe { (*mr).iova });
        mapped
    }

    /// # Safety
    ///
    /// Called by [`map_mr_sg_callback`](Self::map_mr_sg_callback) through the core.
    unsafe extern "C" fn set_page_callback(mr: *mut bindings::ib_mr, addr: u64) -> c_int {
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
    pub(crate) unsafe extern "C" fn rereg_user_mr_callback(
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
            // SAFETY: By the caller's guarantee.
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
                // SAFETY: By the caller's guarantee.
                unsafe { PdOps::<D>::ctx(pd) }
            });
            let change = Rereg {
                pd,
                access,
                range,
                // SAFETY: The device is alive during the call.
                pinner: unsafe { Pinner::new(raw_dev) },
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
    pub(crate) unsafe extern "C" fn dereg_mr_callback(
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
        // SAFETY: All regions of this driver are boxed `MrObject`s, and this is the last use.
        drop(unsafe { KBox::from_raw(mr.cast::<MrObject<D::Mr>>()) });
        0
    }
}
