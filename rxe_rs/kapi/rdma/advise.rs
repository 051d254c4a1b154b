// SPDX-License-Identifier: GPL-2.0
//! Advice about memory with on-demand paging (`ibv_advise_mr(3)`).
//!
//! C header:
//! [`include/uapi/rdma/ib_user_ioctl_verbs.h`](srctree/include/uapi/rdma/ib_user_ioctl_verbs.h)

use super::{
    device::{
        self,
        Device, //
    },
    mr::MemoryRegion,
    operation::Operation,
    pd::PdOps, //
};
use crate::{
    bindings,
    mem::odp::{
        AccessKind,
        FaultMode, //
    },
    series::unsupported,
};
use core::ffi::c_int;
use kernel::prelude::*;

/// Arguments of `ibv_advise_mr`, without the ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advice {
    /// The access that the pages are prefetched for.
    pub kind: AccessKind,
    /// Whether pages that the process has not mapped are faulted in.
    pub mode: FaultMode,
    /// The call waits for the prefetch and returns its error.
    pub wait: bool,
}

/// A part of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Key of the region.
    pub lkey: u32,
    /// Address of the first byte in the region.
    pub addr: u64,
    /// Length of the part in bytes; 0 is an empty part.
    pub length: u32,
}

/// # Safety
///
/// Called by the core with a live PD and `num_sge` entries.
pub(crate) unsafe extern "C" fn advise_mr_callback<D: Device>(
    pd: *mut bindings::ib_pd,
    advice: bindings::ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut bindings::ib_sge,
    num_sge: u32,
    _attrs: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    use bindings::{
        ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH as READ,
        ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT as NO_FAULT,
        ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE as WRITE,
        ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH as FLUSH,
    };

    // SAFETY: The PD is alive, so its device is.
    let operation = unsafe { Operation::new((*pd).device, c"advise_mr") };
    operation.run(|| {
        let (kind, mode) = match advice {
            READ => (AccessKind::Read, FaultMode::Fault),
            WRITE => (AccessKind::Write, FaultMode::Fault),
            NO_FAULT => (AccessKind::Read, FaultMode::Snapshot),
            _ => return Err(unsupported()),
        };
        if flags & !FLUSH != 0 || sg_list.is_null() {
            return Err(EINVAL);
        }
        let advice = Advice {
            kind,
            mode,
            wait: flags & FLUSH != 0,
        };
        // SAFETY: By the caller's guarantee.
        let list = unsafe { core::slice::from_raw_parts(sg_list, num_sge as usize) };
        let ranges = list.iter().map(|sge| Range {
            lkey: sge.lkey,
            addr: sge.addr,
            length: sge.length,
        });
        // SAFETY: The PD is alive, so its device is.
        let (dev, ctx) = unsafe { (device::ctx::<D>((*pd).device), PdOps::<D>::ctx(pd)) };
        D::Mr::prefetch(dev, ctx, &advice, ranges)?;
        Ok(0)
    })
}
