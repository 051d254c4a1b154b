// SPDX-License-Identifier: GPL-2.0
//! Driver-specific methods of the uverbs ioctl: adding and removing memory of registered regions,
//! and tying regions to a queue pair. The former are also exported to kernel consumers.
//!
//! C headers: `uapi/rxe_rs.h`; the declarations for the core are in `uverbs.c`.
//! `rxe_rs/include/rdma/rxe_rs.h`; the functions are in `segments.c`.

use super::{
    device::{
        self,
        Device, //
    },
    mr::{
        MemoryRegion,
        MrOps,
        Pinner,
        ACCESS_FLUSH_GLOBAL,
        ACCESS_LOCAL_WRITE,
        ACCESS_OPTIONAL,
        ACCESS_REMOTE_ATOMIC,
        ACCESS_REMOTE_READ,
        ACCESS_REMOTE_WRITE, //
    },
    operation::Operation,
    qp::{
        QpObject,
        QueuePair, //
    },
};
use crate::{
    bindings,
    mem::{
        Memory,
        SgMem, //
    },
    series::unsupported,
};
use core::{
    ffi::c_int,
    marker::PhantomData, //
};
use kernel::prelude::*;

/// Most segments of a region.
pub const MAX_SEGMENTS: usize = bindings::RXE_RS_MAX_SEGMENTS as usize;

/// Handle of the segment that a region is registered with.
pub const FIRST_SEGMENT: u64 = bindings::RXE_RS_FIRST_SEGMENT as u64;

/// The memory of a new segment, unchecked.
pub enum Source {
    /// In the calling process, at this address.
    Process(u64),
    /// In the DMA buffer that is this file of the calling process, at this offset.
    Buffer(c_int, u64),
    /// A scatterlist of a kernel consumer.
    Sg(SgMem),
}

impl Source {
    /// Returns the address or offset.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn start(&self) -> u64 {
        match *self {
            Source::Process(addr) => addr,
            Source::Buffer(_, offset) => offset,
            // Scatterlists may begin anywhere in a page.
            Source::Sg(_) => 0,
        }
    }

    /// Pins `length` bytes of it for `access` (`ACCESS_*` bits), or has the exporter pin and map
    /// the buffer.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As [`Pinner::pin`] and `DmaBuf::map`; `reason` is called with the latter's description.
    pub fn get(
        &self,
        pinner: &Pinner<'_>,
        length: u64,
        access: u32,
        reason: impl FnOnce(&CStr),
    ) -> Result<Memory> {
        match self {
            Source::Process(addr) => Ok(Memory::User(pinner.pin(*addr, length, access)?)),
            Source::Buffer(fd, offset) => pinner.buffer(*fd, *offset, length, reason),
            Source::Sg(list) => Ok(Memory::Sg(list.part(0, length)?)),
        }
    }
}

/// Access rights that regions with segments of a kernel consumer may have, besides the optional
/// ones.
const LISTED_ACCESS: u32 = ACCESS_LOCAL_WRITE
    | ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_FLUSH_GLOBAL;

/// A request to add a segment, unchecked.
pub struct Addition {
    /// The memory.
    pub source: Source,
    /// Length of the segment in bytes; unchecked, 0 included.
    pub length: u64,
    /// Address of the first byte in the region.
    pub iova: u64,
    /// Key of the region, as given by the caller.
    pub rkey: u32,
}

/// A request to remove segments, unchecked.
pub struct Removal {
    /// Key of the region, as given by the caller.
    pub rkey: u32,
    /// The segments.
    pub what: Which,
}

/// Selects segments of a region.
pub enum Which {
    /// The one with this handle.
    Handle(u64),
    /// Those that contain these bytes: the address of the first one in the region, and their
    /// number.
    Range(u64, u64),
}

/// The state of a region after a change.
#[derive(Default)]
pub struct RegionState {
    /// L_Key and R_Key; 0 if they have been released.
    pub key: u32,
    /// Handle of the added segment.
    pub handle: u64,
    /// Address of the first byte of all segments, and length from there to the last one, in bytes.
    pub bounds: (u64, u64),
    /// The same for the segments that are contiguous with the added one.
    pub run: (u64, u64),
    /// Length of all segments together, in bytes.
    pub bytes: u64,
    /// Number of segments.
    pub segments: u32,
}

/// Returns the definition of the methods for the core.
pub(crate) fn methods() -> *const bindings::uapi_definition {
    (&raw const bindings::rxe_rs_uverbs_methods).cast()
}

/// Sets the driver's callbacks of the methods and of the functions for kernel consumers.
pub(crate) fn setup<D: Device>() {
    // SAFETY: The tables are static, and good for all devices of this driver, which are the only
    // ones with the methods.
    unsafe {
        bindings::rxe_rs_uverbs_setup(Methods::<D>::UVERBS);
        bindings::rxe_rs_segments_setup(Methods::<D>::EXPORTED);
    }
}

/// Reports the new state of a region to the core and the caller.
///
/// # Safety
///
/// `mr` is a live region that no other verb is called for, `to` is valid.
unsafe fn report(mr: *mut bindings::ib_mr, now: &RegionState, to: *mut bindings::rxe_rs_mr_state) {
    let released = now.segments == 0;
    let state = bindings::rxe_rs_mr_state {
        lkey: now.key,
        rkey: now.key,
        handle: now.handle,
        start: now.bounds.0,
        length: now.bounds.1,
        run_start: now.run.0,
        run_length: now.run.1,
        bytes: now.bytes,
        segments: now.segments,
        flags: if released {
            bindings::RXE_RS_RELEASED
        } else {
            0
        },
    };
    // SAFETY: By the caller's guarantee. Dumps may read these fields meanwhile.
    unsafe {
        (&raw mut (*mr).length).write_volatile(now.bytes);
        (&raw mut (*mr).iova).write_volatile(now.bounds.0);
        if released {
            (&raw mut (*mr).lkey).write_volatile(0);
            (&raw mut (*mr).rkey).write_volatile(0);
        }
        to.write(state);
    }
}

/// Callbacks of the methods.
struct Methods<D: Device>(PhantomData<D>);

impl<D: Device> Methods<D> {
    const UVERBS: &'static bindings::rxe_rs_mr_methods = &bindings::rxe_rs_mr_methods {
        add: Some(Self::add_callback),
        remove: Some(Self::remove_callback),
        tie: Some(Self::tie_callback),
    };

    const EXPORTED: &'static bindings::rxe_rs_segment_ops = &bindings::rxe_rs_segment_ops {
        fill: Some(Self::fill_callback),
        add: Some(Self::add_sg_callback),
        remove: Some(Self::remove_callback),
        move_: Some(Self::relocate_callback),
    };

    /// # Safety
    ///
    /// Called by the C side with a live region of a user, for which no other verb is called
    /// meanwhile, and two structures of its own.
    unsafe extern "C" fn add_callback(
        mr: *mut bindings::ib_mr,
        request: *const bindings::rxe_rs_mr_add,
        state: *mut bindings::rxe_rs_mr_state,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; a live region has a live device.
        let (raw_dev, ctx, request) = unsafe { ((*mr).device, MrOps::<D>::ctx(mr), &*request) };
        // SAFETY: The device is alive, and is so during the call.
        let (dev, pinner) = unsafe { (device::ctx::<D>(raw_dev), Pinner::new(raw_dev)) };
        // SAFETY: As above.
        let operation = unsafe { Operation::new(raw_dev, c"mr_add") };
        let source = match request.flags {
            0 if request.fd == 0 => Source::Process(request.addr),
            bindings::RXE_RS_ADD_DMABUF => Source::Buffer(request.fd, request.addr),
            _ => return operation.errno(Err(EINVAL)),
        };
        if request.reserved != 0 {
            return operation.errno(Err(EINVAL));
        }
        let addition = Addition {
            source,
            length: request.length,
            iova: request.iova,
            rkey: request.rkey,
        };
        operation.errno(ctx.add(dev, &addition, &pinner).map(|now| {
            // SAFETY: By the caller's guarantee.
            unsafe { report(mr, &now, state) }
        }))
    }

    /// # Safety
    ///
    /// Called by the C side with a live region of a kernel consumer, for which no other verb is
    /// called meanwhile, a list of the consumer's memory, which stays until it is removed, and a
    /// place for the answer.
    unsafe extern "C" fn fill_callback(
        mr: *mut bindings::ib_mr,
        sg: *mut bindings::scatterlist,
        nents: c_int,
        iova: u64,
        access: c_int,
        state: *mut bindings::rxe_rs_mr_state,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; a live region has a live device.
        let (raw_dev, ctx) = unsafe { ((*mr).device, MrOps::<D>::ctx(mr)) };
        // SAFETY: The device is alive, and is so during the call.
        let dev = unsafe { device::ctx::<D>(raw_dev) };
        // SAFETY: As above.
        let operation = unsafe { Operation::new(raw_dev, c"mr_reg_sg") };
        let fill = || {
            let access = access as u32 & !ACCESS_OPTIONAL;
            if access & !LISTED_ACCESS != 0 {
                return Err(unsupported());
            }
            // SAFETY: By the caller's guarantee.
            let list = unsafe { SgMem::new(sg, nents)? };
            let now = ctx.fill(dev, list, iova, access)?;
            // SAFETY: By the caller's guarantee.
            unsafe { report(mr, &now, state) };
            Ok(())
        };
        operation.errno(fill())
    }

    /// # Safety
    ///
    /// As [`fill_callback`](Self::fill_callback).
    unsafe extern "C" fn add_sg_callback(
        mr: *mut bindings::ib_mr,
        sg: *mut bindings::scatterlist,
        nents: c_int,
        iova: u64,
        state: *mut bindings::rxe_rs_mr_state,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; a live region has a live device.
        let (raw_dev, ctx, rkey) = unsafe { ((*mr).device, MrOps::<D>::ctx(mr), (*mr).rkey) };
        // SAFETY: The device is alive, and is so during the call.
        let dev = unsafe { device::ctx::<D>(raw_dev) };
        // SAFETY: As above.
        let operation = unsafe { Operation::new(raw_dev, c"mr_add_sg") };
        let add = || {
            // SAFETY: By the caller's guarantee.
            let list = unsafe { SgMem::new(sg, nents)? };
            let addition = Addition {
                length: list.len(),
                source: Source::Sg(list),
                iova,
                rkey,
            };
            // SAFETY: As above.
            let pinner = unsafe { Pinner::new(raw_dev) };
            let now = ctx.add(dev, &addition, &pinner)?;
            // SAFETY: By the caller's guarantee.
            unsafe { report(mr, &now, state) };
            Ok(())
        };
        operation.errno(add())
    }

    /// # Safety
    ///
    /// As [`fill_callback`](Self::fill_callback), without a list.
    unsafe extern "C" fn relocate_callback(
        mr: *mut bindings::ib_mr,
        handle: u64,
        iova: u64,
        state: *mut bindings::rxe_rs_mr_state,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; a live region has a live device.
        let (raw_dev, ctx, rkey) = unsafe { ((*mr).device, MrOps::<D>::ctx(mr), (*mr).rkey) };
        // SAFETY: The device is alive, and is so during the call.
        let dev = unsafe { device::ctx::<D>(raw_dev) };
        // SAFETY: As above.
        let operation = unsafe { Operation::new(raw_dev, c"mr_move") };
        operation.errno(ctx.relocate(dev, rkey, handle, iova).map(|now| {
            // SAFETY: By the caller's guarantee.
            unsafe { report(mr, &now, state) }
        }))
    }

    /// # Safety
    ///
    /// As [`add_callback`](Self::add_callback), or as [`fill_callback`](Self::fill_callback).
    unsafe extern "C" fn remove_callback(
        mr: *mut bindings::ib_mr,
        request: *const bindings::rxe_rs_mr_remove,
        state: *mut bindings::rxe_rs_mr_state,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; a live region has a live device.
        let (raw_dev, ctx, request) = unsafe { ((*mr).device, MrOps::<D>::ctx(mr), &*request) };
        // SAFETY: The device is alive, and is so during the call.
        let dev = unsafe { device::ctx::<D>(raw_dev) };
        // SAFETY: As above.
        let operation = unsafe { Operation::new(raw_dev, c"mr_remove") };
        let what = match request.flags {
            bindings::RXE_RS_BY_HANDLE if request.start == 0 && request.length == 0 => {
                Which::Handle(request.handle)
            }
            bindings::RXE_RS_BY_RANGE if request.handle == 0 => {
                Which::Range(request.start, request.length)
            }
            _ => return operation.errno(Err(EINVAL)),
        };
        let removal = Removal {
            rkey: request.rkey,
            what,
        };
        operation.errno(ctx.remove(dev, &removal).map(|now| {
            // SAFETY: By the caller's guarantee.
            unsafe { report(mr, &now, state) }
        }))
    }

    /// # Safety
    ///
    /// Called by the C side with a live region of a user, for which no other verb is called
    /// meanwhile, a live queue pair of the same user and a structure of its own.
    unsafe extern "C" fn tie_callback(
        mr: *mut bindings::ib_mr,
        qp: *mut bindings::ib_qp,
        request: *const bindings::rxe_rs_mr_tie,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; a live region has a live device.
        let (raw_dev, ctx, request) = unsafe { ((*mr).device, MrOps::<D>::ctx(mr), &*request) };
        // SAFETY: The device is alive, and is so during the call; so is the queue pair.
        let (dev, qp) = unsafe { (device::ctx::<D>(raw_dev), QpObject::<D::Qp>::slot(qp).ctx()) };
        // SAFETY: As above.
        let operation = unsafe { Operation::new(raw_dev, c"mr_tie") };
        if request.flags != 0 || request.reserved != 0 {
            return operation.errno(Err(EINVAL));
        }
        operation.errno(qp.tie(dev, ctx, request.rkey))
    }
}
