// SPDX-License-Identifier: GPL-2.0
//! Queue pairs.
//!
//! A driver implements [`QueuePair`]; the callbacks translate the core's calls. Work requests of
//! kernel consumers are passed as chains ([`SendChain`], [`RecvChain`]); those of user space are in
//! rings that the driver reads itself, and are announced by the [`doorbell`](QueuePair::doorbell).
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod attr;

use super::{
    detail::Details,
    device::Device,
    event::QpEvents,
    object::CoreObject,
    operation::Operation,
    udata::{
        Mapping,
        UserCall, //
    },
    wr::{
        RecvChain,
        SendChain, //
    },
};
use crate::{
    bindings,
    mem::{
        DmaMemory,
        Memory, //
    },
    series::unsupported,
};
use core::ffi::c_int;
use kernel::{
    prelude::*,
    sync::Arc, //
};

pub use attr::{
    QpCap,
    QpChange,
    QpReport,
    QpState, //
};

/// Transport of a QP; other types are refused before the driver is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpType {
    /// The general services interface, QP1.
    Gsi,
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Ethernet frames; the core restricts it to privileged users.
    Raw,
}

/// For the requests of kernel consumers.
static ALL_MEMORY: Memory = Memory::Dma(
    // SAFETY: Only QPs of kernel consumers get it.
    unsafe { DmaMemory::new() },
);

/// Identifies a QP to the consumer of its completions; grants no access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpToken(pub(crate) *mut bindings::ib_qp);

// SAFETY: The pointer is only returned to the core, never dereferenced here.
unsafe impl Send for QpToken {}
// SAFETY: As above.
unsafe impl Sync for QpToken {}

impl QpToken {
    /// Identifies no QP.
    pub const NONE: Self = Self(core::ptr::null_mut());
}

/// The consumer that a QP is created for.
pub enum QpConsumer<'a> {
    /// A process, with its call.
    Process(UserCall<'a>),
    /// A kernel consumer, with the memory that [`LOCAL_DMA_LKEY`](super::mr::LOCAL_DMA_LKEY)
    /// stands for.
    Kernel(&'static Memory),
}

/// Arguments of `create_qp`.
pub struct QpInit<'a, D: Device> {
    /// Transport.
    pub qp_type: QpType,
    /// Requested sizes, unchecked.
    pub cap: QpCap,
    /// Every send request generates a completion, whatever its flags are.
    pub signal_all: bool,
    /// Flags of `enum ib_qp_create_flags`.
    pub create_flags: u32,
    /// Requested port; only meaningful for [`QpType::Gsi`].
    pub port: u32,
    /// Protection domain.
    pub pd: &'a D::Pd,
    /// The CQ of send completions.
    pub send_cq: &'a Arc<D::Cq>,
    /// The CQ of receive completions.
    pub recv_cq: &'a Arc<D::Cq>,
    /// The shared receive queue, instead of a receive queue of the QP's own.
    pub srq: Option<&'a Arc<D::Srq>>,
    /// For [`Wc::qp`](super::wc::Wc::qp).
    pub token: QpToken,
    /// Raises asynchronous events of this QP.
    pub events: &'a Arc<QpEvents>,
    /// The caller.
    pub consumer: QpConsumer<'a>,
}

/// Result of `create_qp`.
pub struct QpCreated<T> {
    /// The context.
    pub ctx: Arc<T>,
    /// Number of the QP.
    pub qpn: u32,
    /// Granted sizes, at least those requested.
    pub cap: QpCap,
    /// Mmap entries of the rings; removed when the QP is destroyed.
    pub maps: [Option<Mapping>; 2],
}

/// A queue pair of a driver. To use the context after a call, clone the `Arc`.
pub trait QueuePair: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Qp = Self>;

    /// Creates a QP in state [`QpState::Reset`].
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes beyond the device's limits, `EOPNOTSUPP` for flags not supported,
    /// `ENOMEM`. Nothing may remain published.
    fn create(dev: &Arc<Self::Device>, init: QpInit<'_, Self::Device>) -> Result<QpCreated<Self>>;

    /// Changes attributes, all or none.
    ///
    /// # Context
    ///
    /// Process context; may sleep. Calls for one QP may be concurrent.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a transition or value that is not allowed.
    fn modify(&self, dev: &Arc<Self::Device>, change: &QpChange<'_>) -> Result;

    /// Reports all attributes.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn query(&self) -> QpReport;

    /// Counts in `counter` as well from now on, or only in the device's counters.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn bind_counter(&self, counter: Option<Arc<<Self::Device as Device>::Counter>>);

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

    /// Stops the QP: afterwards it raises no event and generates no completion. Others may still
    /// have references to the context.
    ///
    /// # Context
    ///
    /// Process context; may sleep. Never concurrent with other calls.
    fn destroy(self: &Arc<Self>, dev: &Arc<Self::Device>);

    /// Handles sends that user space has posted to its ring.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that accepts no sends.
    fn doorbell(self: &Arc<Self>) -> Result;

    /// Posts sends of a kernel consumer: take requests with [`SendChain::current`] and
    /// [`SendChain::advance`] until there is none.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// The request current at the time is reported as the bad one.
    fn post_send(self: &Arc<Self>, chain: &mut SendChain<'_, Self::Device>) -> Result;

    /// Posts receives of a kernel consumer, as [`post_send`](Self::post_send).
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// The request current at the time is reported as the bad one.
    fn post_recv(self: &Arc<Self>, chain: &mut RecvChain<'_>) -> Result;

    /// Ties a user's region to the QP: key and memory are revoked when the QP fails, is reset or is
    /// destroyed.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_tie` of `uapi/rxe_rs.h` documents; nothing has changed then.
    fn tie(
        self: &Arc<Self>,
        dev: &Arc<Self::Device>,
        mr: &Arc<<Self::Device as Device>::Mr>,
        rkey: u32,
    ) -> Result;

    /// Attaches the QP to the multicast `group`, a GID, whose messages it then receives as well.
    /// The core calls it for datagram QPs only, and detaches every group before it destroys a QP.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond the device's limits, or why the network device cannot join.
    fn attach(self: &Arc<Self>, dev: &Arc<Self::Device>, group: &[u8; 16]) -> Result;

    /// Reverts [`attach`](Self::attach).
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not attached.
    fn detach(self: &Arc<Self>, dev: &Arc<Self::Device>, group: &[u8; 16]) -> Result;
}

/// Slot of the object of a QP.
pub(crate) struct QpSlot<T> {
    ctx: Arc<T>,
    events: Arc<QpEvents>,
    _maps: [Option<Mapping>; 2],
}

impl<T> QpSlot<T> {
    /// The context.
    pub(crate) fn ctx(&self) -> &Arc<T> {
        &self.ctx
    }
}

/// The object that the core allocates.
pub(crate) type QpObject<T> = CoreObject<bindings::ib_qp, QpSlot<T>>;

/// Callbacks of [`QueuePair`].
pub(crate) struct QpOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> QpOps<D> {
    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn create_qp_callback(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*qp).device, c"create_qp") };
        operation.run(|| {
            // SAFETY: The core passes valid arguments and filled in `qp`.
            let (qp_ref, init) = unsafe { (&mut *qp, &mut *attr) };
            let qp_type = match init.qp_type {
                bindings::ib_qp_type_IB_QPT_GSI => QpType::Gsi,
                bindings::ib_qp_type_IB_QPT_RC => QpType::Rc,
                bindings::ib_qp_type_IB_QPT_UC => QpType::Uc,
                bindings::ib_qp_type_IB_QPT_UD => QpType::Ud,
                bindings::ib_qp_type_IB_QPT_RAW_PACKET => QpType::Raw,
                _ => return Err(unsupported()),
            };
            if !init.rwq_ind_tbl.is_null() || !init.xrcd.is_null() {
                return Err(unsupported());
            }
            if init.send_cq.is_null() || init.recv_cq.is_null() || qp_ref.pd.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: The device, PD and CQs are of this driver and outlive the QP.
            let (dev, pd, send_cq, recv_cq) = unsafe {
                (
                    super::device::ctx::<D>(qp_ref.device),
                    super::pd::PdOps::<D>::ctx(qp_ref.pd),
                    super::cq::CqOps::<D>::ctx(init.send_cq),
                    super::cq::CqOps::<D>::ctx(init.recv_cq),
                )
            };
            // SAFETY: The argument of this very call.
            let consumer = match unsafe { UserCall::from_raw(udata) } {
                Some(call) => QpConsumer::Process(call),
                None if udata.is_null() => QpConsumer::Kernel(&ALL_MEMORY),
                // A process without a context. It must not get the memory of the kernel.
                None => return Err(EINVAL),
            };
            let events = QpEvents::new(qp)?;
            let created = D::Qp::create(
                dev,
                QpInit {
                    qp_type,
                    cap: QpCap::from_raw(&init.cap),
                    signal_all: init.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR,
                    create_flags: init.create_flags,
                    port: init.port_num,
                    pd,
                    send_cq,
                    recv_cq,
                    srq: (!init.srq.is_null()).then(|| {
                        // SAFETY: The SRQ is of this driver and outlives the QP.
                        unsafe { super::srq::SrqOps::<D>::ctx(init.srq) }
                    }),
                    token: QpToken(qp),
                    events: &events,
                    consumer,
                },
            )?;
            qp_ref.qp_num = created.qpn;
            created.cap.store(&mut init.cap);
            let slot = QpSlot {
                ctx: created.ctx,
                events,
                _maps: created.maps,
            };
            // SAFETY: The core allocated `QpObject::SIZE` bytes and `qp` is not shared yet.
            unsafe { QpObject::<D::Qp>::init(qp, slot) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live QP.
    pub(crate) unsafe extern "C" fn modify_qp_callback(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*qp).device, c"modify_qp") };
        operation.run(|| {
            // SAFETY: A live QP of this driver on a live device.
            let (slot, dev) = unsafe {
                (
                    QpObject::<D::Qp>::slot(qp),
                    super::device::ctx::<D>((*qp).device),
                )
            };
            let mask = u32::try_from(mask).map_err(|_| EINVAL)?;
            if mask & !bindings::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS != 0 {
                return Err(unsupported());
            }
            // SAFETY: The core passes a valid attribute.
            let attr = unsafe { &*attr };
            let change = QpChange { attr, mask };
            slot.ctx.modify(dev, &change)?;
            Ok(0)
        })
    }

    /// Attributes that would let others forge packets of the connection (PSNs, number of the peer's
    /// QP) are reported to callers that request them in `mask`, as programs and kernel consumers
    /// do, and to the owner. The core's dump of all QPs (`rdma resource show qp`), which requests
    /// none, is open to every user: without CAP_NET_ADMIN it shows zeroes.
    ///
    /// # Safety
    ///
    /// Called by the core with a live QP.
    pub(crate) unsafe extern "C" fn query_qp_callback(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        // The core does not clear the memory and copies the whole response to user space.
        // SAFETY: Both are valid for writes, and may be all zeros.
        unsafe {
            attr.write_bytes(0, 1);
            init.write_bytes(0, 1);
        }
        // SAFETY: A live QP of this driver and valid places for the response.
        let (slot, qp, attr, init) =
            unsafe { (QpObject::<D::Qp>::slot(qp), &*qp, &mut *attr, &mut *init) };
        let report = slot.ctx.query();
        report.store(attr);
        // SAFETY: A live QP; process context.
        if !unsafe { bindings::rxe_rs_qp_query_allowed(qp) } {
            attr::hide_unasked(attr, mask as u32);
        }
        init.event_handler = qp.event_handler;
        init.qp_context = qp.qp_context;
        init.send_cq = qp.send_cq;
        init.recv_cq = qp.recv_cq;
        init.srq = qp.srq;
        report.cap.store(&mut init.cap);
        init.qp_type = qp.qp_type;
        init.sq_sig_type = if report.signal_all {
            bindings::ib_sig_type_IB_SIGNAL_ALL_WR
        } else {
            bindings::ib_sig_type_IB_SIGNAL_REQ_WR
        };
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live QP that nobody else uses any more.
    pub(crate) unsafe extern "C" fn destroy_qp_callback(
        qp: *mut bindings::ib_qp,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: A live QP of this driver on a live device.
            let (slot, dev) = unsafe {
                (
                    QpObject::<D::Qp>::slot(qp),
                    super::device::ctx::<D>((*qp).device),
                )
            };
            slot.ctx.destroy(dev);
            slot.events.stop();
        }
        // SAFETY: The last use; the core frees the object next.
        drop(unsafe { QpObject::<D::Qp>::take(qp) });
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live QP and a multicast GID.
    pub(crate) unsafe extern "C" fn attach_mcast_callback(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
        let result = unsafe { Self::with_group(qp, gid, D::Qp::attach) };
        // SAFETY: A live object has a live device, which outlives the call.
        unsafe { Operation::new((*qp).device, c"attach_mcast") }.errno(result)
    }

    /// # Safety
    ///
    /// As of [`attach_mcast_callback`](Self::attach_mcast_callback).
    pub(crate) unsafe extern "C" fn detach_mcast_callback(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
        let result = unsafe { Self::with_group(qp, gid, D::Qp::detach) };
        // SAFETY: A live object has a live device, which outlives the call.
        unsafe { Operation::new((*qp).device, c"detach_mcast") }.errno(result)
    }

    /// # Safety
    ///
    /// As of [`attach_mcast_callback`](Self::attach_mcast_callback).
    unsafe fn with_group(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        f: impl FnOnce(&Arc<D::Qp>, &Arc<D>, &[u8; 16]) -> Result,
    ) -> Result {
        // SAFETY: By the caller's guarantee; all members of the union are plain bytes.
        let (slot, dev, group) = unsafe {
            (
                QpObject::<D::Qp>::slot(qp),
                super::device::ctx::<D>((*qp).device),
                *(*gid).raw.as_ref(),
            )
        };
        f(&slot.ctx, dev, &group)
    }

    /// # Safety
    ///
    /// Called by the core with a live QP and a chain of work requests, or from user space
    /// with whatever the process passed.
    pub(crate) unsafe extern "C" fn post_send_callback(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad_wr: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: A live QP of this driver.
        let slot = unsafe { QpObject::<D::Qp>::slot(qp) };
        // SAFETY: As above; these fields do not change.
        let (user, qp_type) = unsafe { (!(*qp).uobject.is_null(), (*qp).qp_type) };
        // SAFETY: A live object has a live device, which outlives the call.
        let operation = unsafe { Operation::new((*qp).device, c"post_send") };
        let result = if user {
            // The requests are in the ring; those passed through the system call are ignored.
            slot.ctx.doorbell()
        } else {
            // SAFETY: A kernel consumer passes a well-formed chain.
            let mut chain = unsafe { SendChain::<D>::new(wr, qp_type) };
            let result = slot.ctx.post_send(&mut chain);
            if result.is_err() {
                // SAFETY: The core passes a valid place.
                unsafe { *bad_wr = chain.as_ptr() };
            }
            return operation.errno(result);
        };
        if result.is_err() {
            // SAFETY: The core passes a valid place.
            unsafe { *bad_wr = wr };
        }
        operation.errno(result)
    }

    /// # Safety
    ///
    /// Called by the core with a live QP and a chain of work requests.
    pub(crate) unsafe extern "C" fn post_recv_callback(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: A live QP of this driver.
        let slot = unsafe { QpObject::<D::Qp>::slot(qp) };
        // SAFETY: As above; the field does not change.
        let user = unsafe { !(*qp).uobject.is_null() };
        // SAFETY: The core passes a well-formed chain.
        let mut chain = unsafe { RecvChain::new(wr) };
        let result = if user {
            Err(EINVAL)
        } else {
            slot.ctx.post_recv(&mut chain)
        };
        if result.is_err() {
            // SAFETY: The core passes a valid place.
            unsafe { *bad_wr = chain.as_ptr() };
        }
        // SAFETY: A live object has a live device, which outlives the call.
        unsafe { Operation::new((*qp).device, c"post_recv") }.errno(result)
    }
}
