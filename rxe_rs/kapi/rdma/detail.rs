// SPDX-License-Identifier: GPL-2.0
//! What a driver adds to the lines of `rdma -dd resource show`.
//!
//! C header: [`include/rdma/restrack.h`](srctree/include/rdma/restrack.h)

use super::{
    cq::{
        CompletionQueue,
        CqObject, //
    },
    device::{
        self,
        Device, //
    },
    mr::MemoryRegion,
    qp::{
        QpObject,
        QueuePair, //
    },
};
use crate::{
    bindings,
    error::errno, //
};
use core::marker::PhantomData;
use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*, //
};

/// The driver-specific attributes of one object in a netlink message.
///
/// # Context
///
/// Process context.
pub struct Details<'a> {
    msg: *mut bindings::sk_buff,
    _msg: PhantomData<&'a mut bindings::sk_buff>,
}

impl Details<'_> {
    /// Adds a number.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full: return it, and the core continues with another message.
    pub fn number(&mut self, name: &'static CStr, value: u32) -> Result {
        // SAFETY: The message is alive by construction; the name is copied.
        to_result(unsafe { bindings::rdma_nl_put_driver_u32(self.msg, name.as_char_ptr(), value) })
    }

    /// Adds a number of 64 bits.
    ///
    /// # Errors
    ///
    /// As [`number`](Self::number).
    pub fn wide(&mut self, name: &'static CStr, value: u64) -> Result {
        // SAFETY: As above.
        to_result(unsafe { bindings::rdma_nl_put_driver_u64(self.msg, name.as_char_ptr(), value) })
    }

    /// Adds bits, shown in hexadecimal.
    ///
    /// # Errors
    ///
    /// As [`number`](Self::number).
    pub fn bits(&mut self, name: &'static CStr, value: u32) -> Result {
        // SAFETY: As above.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.msg, name.as_char_ptr(), value)
        })
    }
}

/// Runs `f` within the part of the message that is the driver's; leaves nothing behind if it fails.
///
/// # Safety
///
/// `msg` is a live message that nobody else has.
unsafe fn nested(msg: *mut bindings::sk_buff, f: impl FnOnce(&mut Details<'_>) -> Result) -> c_int {
    // SAFETY: By the caller's guarantee.
    let nest = unsafe { bindings::rxe_rs_details_start(msg) };
    if nest.is_null() {
        return EMSGSIZE.to_errno();
    }
    let result = f(&mut Details {
        msg,
        _msg: PhantomData,
    });
    // SAFETY: The nest was opened in this message just now.
    unsafe {
        match result {
            Ok(()) => bindings::rxe_rs_details_end(msg, nest),
            Err(_) => bindings::rxe_rs_details_cancel(msg, nest),
        }
    }
    errno(result)
}

/// Callbacks that describe objects.
pub(crate) struct DetailOps<D: Device>(PhantomData<D>);

impl<D: Device> DetailOps<D> {
    /// # Safety
    ///
    /// Called by the core with a message and a live QP of this driver.
    pub(crate) unsafe extern "C" fn fill_res_qp_entry_callback(
        msg: *mut bindings::sk_buff,
        qp: *mut bindings::ib_qp,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
        unsafe { nested(msg, |to| QpObject::<D::Qp>::slot(qp).ctx().describe(to)) }
    }

    /// # Safety
    ///
    /// Called by the core with a message and a live CQ of this driver.
    pub(crate) unsafe extern "C" fn fill_res_cq_entry_callback(
        msg: *mut bindings::sk_buff,
        cq: *mut bindings::ib_cq,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
        unsafe { nested(msg, |to| CqObject::<D::Cq>::slot(cq).ctx().describe(to)) }
    }

    /// # Safety
    ///
    /// Called by the core with a message and a live MR of this driver.
    pub(crate) unsafe extern "C" fn fill_res_mr_entry_callback(
        msg: *mut bindings::sk_buff,
        mr: *mut bindings::ib_mr,
    ) -> c_int {
        // The driver finds the context by its key, which is also right after a deregistration.
        // SAFETY: By the caller's guarantee.
        let (dev, lkey) = unsafe { (device::ctx::<D>((*mr).device), (*mr).lkey) };
        let found = D::Mr::find(dev, lkey);
        // SAFETY: By the caller's guarantee.
        unsafe {
            nested(msg, |to| match &found {
                Some(ctx) => ctx.describe(to),
                None => Ok(()),
            })
        }
    }
}
