// SPDX-License-Identifier: GPL-2.0
//! Management datagrams (MADs) that a driver processes itself.
//!
//! C header: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h)

use super::device::{
    ctx,
    Device,
    PORT, //
};
use crate::bindings;
use kernel::ffi::c_int;

/// Length of a management datagram in bytes.
pub const MAD_LEN: usize = bindings::IB_MGMT_MAD_SIZE as usize;

/// Result of processing a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MadResult {
    /// The driver does not process it; the core passes it on.
    Pass,
    /// The core sends the reply.
    Reply,
}

/// `process_mad`.
///
/// # Safety
///
/// Called by the core with a live device, and two datagrams.
pub(crate) unsafe extern "C" fn process_mad_callback<D: Device>(
    dev: *mut bindings::ib_device,
    _flags: c_int,
    port: u32,
    _wc: *const bindings::ib_wc,
    _grh: *const bindings::ib_grh,
    request: *const bindings::ib_mad,
    reply: *mut bindings::ib_mad,
    _len: *mut usize,
    _pkey_index: *mut u16,
) -> c_int {
    const { assert!(core::mem::size_of::<bindings::ib_mad>() == MAD_LEN) };
    if port != PORT || request.is_null() || reply.is_null() {
        return bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS as c_int;
    }
    // SAFETY: The core passes a live device and two datagrams of full size, which are plain bytes;
    // it alone has them during the call.
    let (ctx, request, reply) = unsafe {
        (
            ctx::<D>(dev),
            &*request.cast::<[u8; MAD_LEN]>(),
            &mut *reply.cast::<[u8; MAD_LEN]>(),
        )
    };
    let result = match ctx.mad(request, reply) {
        MadResult::Pass => bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS,
        MadResult::Reply => {
            bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                | bindings::ib_mad_result_IB_MAD_RESULT_REPLY
        }
    };
    result as c_int
}
