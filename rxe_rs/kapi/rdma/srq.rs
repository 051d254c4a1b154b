// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::{
        self,
        Device, //
    },
    event::SrqEvents,
    object::CoreObject,
    operation::Operation,
    pd::PdOps,
    udata::UserCall,
    wr::RecvChain, //
};
use crate::{
    bindings,
    series::unsupported, //
};
use core::ffi::c_int;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Arguments of SRQ creation; the limit is not among them, as it is armed by `modify_srq`
/// (IBTA 11.2).
pub struct SrqInit<'a, D: Device> {
    /// Requested number of outstanding WQEs; unchecked.
    pub max_wr: u32,
    /// Requested entries of a scatter list; unchecked.
    pub max_sge: u32,
    /// Protection domain of the keys in the scatter lists.
    pub pd: &'a D::Pd,
    /// Raises asynchronous events of this queue; holds no reference to the driver's context.
    pub events: &'a Arc<SrqEvents>,
    /// The calling process; `None` for a kernel consumer.
    pub user: Option<UserCall<'a>>,
}

/// Attributes that a modification changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqChange {
    /// Outstanding requests, at least.
    pub max_wr: Option<u32>,
    /// Raise [`SrqEvents::limit_reached`] once when fewer requests than this are left; 0 disarms.
    pub limit: Option<u32>,
}

/// Attributes of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqReport {
    /// Number of outstanding requests.
    pub max_wr: u32,
    /// Number of entries of a scatter list.
    pub max_sge: u32,
    /// The limit that is armed, or 0.
    pub limit: u32,
}

/// A shared receive queue of a driver, of the basic type.
pub trait SharedReceiveQueue: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Srq = Self>;

    /// Creates a queue.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the device's limits, `ENOMEM`.
    fn create(dev: &Arc<Self::Device>, init: SrqInit<'_, Self::Device>) -> Result<Arc<Self>>;

    /// Changes attributes, all or none. `user` is the calling process of a user queue.
    ///
    /// # Context
    ///
    /// Process context; may sleep. Calls may be concurrent.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the device's limits, for a limit above the size, and for a size below the
    /// number of requests outstanding; `ENOMEM`, `EFAULT`.
    fn modify(
        &self,
        dev: &Arc<Self::Device>,
        change: SrqChange,
        user: Option<&UserCall<'_>>,
    ) -> Result;

    /// Reports all attributes.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn query(&self) -> SrqReport;

    /// Stops the queue: it must raise no event afterwards and must remove its mmap entries. The
    /// core makes sure that no QP uses it any more.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn destroy(self: &Arc<Self>, dev: &Arc<Self::Device>);

    /// Posts receives of a kernel consumer: take requests with [`RecvChain::current`] and
    /// [`RecvChain::advance`] until there is none.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// The request current at the time is reported as the bad one.
    fn post_recv(&self, chain: &mut RecvChain<'_>) -> Result;
}

/// Slot of the object of an SRQ.
pub(crate) struct SrqSlot<T> {
    ctx: Arc<T>,
    events: Arc<SrqEvents>,
}

/// The object that the core allocates.
pub(crate) type SrqObject<T> = CoreObject<bindings::ib_srq, SrqSlot<T>>;

/// Callbacks of [`SharedReceiveQueue`].
pub(crate) struct SrqOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> SrqOps<D> {
    /// # Safety
    ///
    /// `srq` is a live SRQ of this driver, and stays so for `'a`.
    pub(crate) unsafe fn ctx<'a>(srq: *mut bindings::ib_srq) -> &'a Arc<D::Srq> {
        // SAFETY: By the caller's guarantee.
        unsafe { &SrqObject::<D::Srq>::slot(srq).ctx }
    }

    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn create_srq_callback(
        srq: *mut bindings::ib_srq,
        init: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*srq).device, c"create_srq") };
        operation.run(|| {
            // SAFETY: The core passes valid arguments.
            let attr = unsafe { &mut (*init).attr };
            // SAFETY: The core filled in the type, the live device and its live domain.
            let (srq_type, dev, pd) = unsafe {
                (
                    (*srq).srq_type,
                    device::ctx::<D>((*srq).device),
                    PdOps::<D>::ctx((*srq).pd),
                )
            };
            if srq_type != bindings::ib_srq_type_IB_SRQT_BASIC {
                return Err(unsupported());
            }
            let events = SrqEvents::new(srq)?;
            let ctx = D::Srq::create(
                dev,
                SrqInit {
                    max_wr: attr.max_wr,
                    max_sge: attr.max_sge,
                    pd,
                    events: &events,
                    // SAFETY: The argument of this very call.
                    user: unsafe { UserCall::from_raw(udata) },
                },
            )?;
            store(&ctx.query(), attr);
            // SAFETY: The core allocated `SrqObject::SIZE` bytes and `srq` is not shared yet.
            unsafe { SrqObject::<D::Srq>::init(srq, SrqSlot { ctx, events }) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live SRQ.
    pub(crate) unsafe extern "C" fn modify_srq_callback(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*srq).device, c"modify_srq") };
        operation.run(|| {
            // SAFETY: A live SRQ of this driver on a live device; `attr` is valid.
            let (ctx, dev, attr) =
                unsafe { (Self::ctx(srq), device::ctx::<D>((*srq).device), &*attr) };
            let (size, limit) = (
                bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR,
                bindings::ib_srq_attr_mask_IB_SRQ_LIMIT,
            );
            if mask & !(size | limit) != 0 {
                return Err(EINVAL);
            }
            let change = SrqChange {
                max_wr: (mask & size != 0).then_some(attr.max_wr),
                limit: (mask & limit != 0).then_some(attr.srq_limit),
            };
            // SAFETY: The argument of this very call.
            let user = unsafe { UserCall::from_raw(udata) };
            ctx.modify(dev, change, user.as_ref())?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live SRQ.
    pub(crate) unsafe extern "C" fn query_srq_callback(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        // SAFETY: A live SRQ of this driver and a valid place for the response.
        let (ctx, attr) = unsafe { (Self::ctx(srq), &mut *attr) };
        store(&ctx.query(), attr);
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live SRQ that nobody else uses any more.
    pub(crate) unsafe extern "C" fn destroy_srq_callback(
        srq: *mut bindings::ib_srq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: A live SRQ of this driver on a live device.
            let (slot, dev) = unsafe {
                (
                    SrqObject::<D::Srq>::slot(srq),
                    device::ctx::<D>((*srq).device),
                )
            };
            slot.ctx.destroy(dev);
            slot.events.stop();
        }
        // SAFETY: The last use; the core frees the object next.
        drop(unsafe { SrqObject::<D::Srq>::take(srq) });
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live SRQ and a chain of work requests.
    pub(crate) unsafe extern "C" fn post_srq_recv_callback(
        srq: *mut bindings::ib_srq,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: A live SRQ of this driver; the field does not change.
        let (ctx, user) = unsafe { (Self::ctx(srq), !(*srq).uobject.is_null()) };
        // SAFETY: The core passes a well-formed chain.
        let mut chain = unsafe { RecvChain::new(wr) };
        let result = if user {
            // User space posts to its ring.
            Err(EINVAL)
        } else {
            ctx.post_recv(&mut chain)
        };
        if result.is_err() {
            // SAFETY: The core passes a valid place.
            unsafe { *bad_wr = chain.as_ptr() };
        }
        // SAFETY: A live object has a live device, which outlives the call.
        unsafe { Operation::new((*srq).device, c"post_srq_recv") }.errno(result)
    }
}

fn store(report: &SrqReport, to: &mut bindings::ib_srq_attr) {
    to.max_wr = report.max_wr;
    to.max_sge = report.max_sge;
    to.srq_limit = report.limit;
}
