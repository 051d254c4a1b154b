// SPDX-License-Identifier: GPL-2.0
//! Queue pairs.
//!
//! A driver implements [`QueuePair`]; the trampolines translate the core's calls. Work requests
//! of kernel consumers come as chains ([`SendChain`], [`RecvChain`]); those of user space stay in
//! rings the driver reads itself, and only ring the [`doorbell`](QueuePair::doorbell).
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::av::AddressVector;
use super::detail::Details;
use super::device::Device;
use super::event::QpEvents;
use super::object::Shell;
use super::udata::{Mapping, UserCall};
use super::unsupported;
use super::wr::{RecvChain, SendChain};
use crate::bindings;
use core::ffi::c_int;
use kernel::error::from_result;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Transport of a QP; other types are refused before the driver is asked.
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
    /// Ethernet frames; the core lets only privileged users have it.
    Raw,
}

/// State of a QP (IBTA vol1 10.3.1); the numbers are those of `enum ib_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Reset.
    Reset,
    /// Initialised.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Send queue error.
    Sqe,
    /// Error.
    Err,
}

impl QpState {
    fn from_raw(raw: bindings::ib_qp_state) -> Option<Self> {
        Some(match raw {
            bindings::ib_qp_state_IB_QPS_RESET => Self::Reset,
            bindings::ib_qp_state_IB_QPS_INIT => Self::Init,
            bindings::ib_qp_state_IB_QPS_RTR => Self::Rtr,
            bindings::ib_qp_state_IB_QPS_RTS => Self::Rts,
            bindings::ib_qp_state_IB_QPS_SQD => Self::Sqd,
            bindings::ib_qp_state_IB_QPS_SQE => Self::Sqe,
            bindings::ib_qp_state_IB_QPS_ERR => Self::Err,
            _ => return None,
        })
    }

    fn to_raw(self) -> bindings::ib_qp_state {
        match self {
            Self::Reset => bindings::ib_qp_state_IB_QPS_RESET,
            Self::Init => bindings::ib_qp_state_IB_QPS_INIT,
            Self::Rtr => bindings::ib_qp_state_IB_QPS_RTR,
            Self::Rts => bindings::ib_qp_state_IB_QPS_RTS,
            Self::Sqd => bindings::ib_qp_state_IB_QPS_SQD,
            Self::Sqe => bindings::ib_qp_state_IB_QPS_SQE,
            Self::Err => bindings::ib_qp_state_IB_QPS_ERR,
        }
    }
}

/// Sizes of a QP, as asked for and as granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receive requests.
    pub max_recv_wr: u32,
    /// Entries of a send scatter/gather list.
    pub max_send_sge: u32,
    /// Entries of a receive scatter list.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

impl QpCap {
    fn from_raw(cap: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }

    fn store(&self, to: &mut bindings::ib_qp_cap) {
        to.max_send_wr = self.max_send_wr;
        to.max_recv_wr = self.max_recv_wr;
        to.max_send_sge = self.max_send_sge;
        to.max_recv_sge = self.max_recv_sge;
        to.max_inline_data = self.max_inline_data;
    }
}

/// Names a QP towards the consumer of its completions; carries no access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpToken(pub(crate) *mut bindings::ib_qp);

// SAFETY: The pointer is only handed back to the core, never followed here.
unsafe impl Send for QpToken {}
// SAFETY: As above.
unsafe impl Sync for QpToken {}

impl QpToken {
    /// Names no QP.
    pub const NONE: Self = Self(core::ptr::null_mut());
}

/// Everything `create_qp` is given.
pub struct QpInit<'a, D: Device> {
    /// Transport.
    pub qp_type: QpType,
    /// Sizes asked for, unchecked.
    pub cap: QpCap,
    /// Every send request completes visibly, whatever its flags say.
    pub signal_all: bool,
    /// Flags of `enum ib_qp_create_flags`.
    pub create_flags: u32,
    /// Port the consumer asked for; only meaningful for [`QpType::Gsi`].
    pub port: u32,
    /// Protection domain.
    pub pd: &'a Arc<D::Pd>,
    /// Where sends complete.
    pub send_cq: &'a Arc<D::Cq>,
    /// Where receives complete.
    pub recv_cq: &'a Arc<D::Cq>,
    /// Where receives come from, instead of a queue of the QP's own.
    pub srq: Option<&'a Arc<D::Srq>>,
    /// For [`Wc::qp`](super::cq::Wc::qp).
    pub token: QpToken,
    /// Raises asynchronous events of this QP.
    pub events: &'a Arc<QpEvents>,
    /// The calling process; `None` for a kernel consumer.
    pub user: Option<UserCall<'a>>,
}

/// What `create_qp` made.
pub struct QpCreated<T> {
    /// The context.
    pub ctx: Arc<T>,
    /// Number of the QP.
    pub qpn: u32,
    /// Sizes granted, at least those asked for.
    pub cap: QpCap,
    /// Ring mappings offered to user space; withdrawn when the QP is destroyed.
    pub maps: [Option<Mapping>; 2],
}

/// Arguments of `modify_qp`. Every getter returns `None` unless the attribute is to be changed.
pub struct QpChange<'a> {
    attr: &'a bindings::ib_qp_attr,
    mask: u32,
}

impl QpChange<'_> {
    fn has(&self, bit: bindings::ib_qp_attr_mask) -> Option<()> {
        (self.mask & bit != 0).then_some(())
    }

    /// The raw mask, bits of `enum ib_qp_attr_mask`.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// State to go to.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown state.
    pub fn state(&self) -> Result<Option<QpState>> {
        match self.has(bindings::ib_qp_attr_mask_IB_QP_STATE) {
            Some(()) => Ok(Some(QpState::from_raw(self.attr.qp_state).ok_or(EINVAL)?)),
            None => Ok(None),
        }
    }

    /// State the consumer believes the QP to be in.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown state.
    pub fn cur_state(&self) -> Result<Option<QpState>> {
        match self.has(bindings::ib_qp_attr_mask_IB_QP_CUR_STATE) {
            Some(()) => Ok(Some(
                QpState::from_raw(self.attr.cur_qp_state).ok_or(EINVAL)?,
            )),
            None => Ok(None),
        }
    }

    /// Remote rights, bits of `enum ib_access_flags`.
    pub fn access_flags(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS)?;
        u32::try_from(self.attr.qp_access_flags).ok()
    }

    /// Index into the P_Key table.
    pub fn pkey_index(&self) -> Option<u16> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_PKEY_INDEX)?;
        Some(self.attr.pkey_index)
    }

    /// Port, checked by the core.
    pub fn port(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_PORT)?;
        Some(self.attr.port_num)
    }

    /// Q_Key.
    pub fn qkey(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_QKEY)?;
        Some(self.attr.qkey)
    }

    /// Primary path.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not a RoCEv2 path.
    pub fn av(&self) -> Result<Option<AddressVector>> {
        if self.has(bindings::ib_qp_attr_mask_IB_QP_AV).is_none() {
            return Ok(None);
        }
        // SAFETY: The attribute comes from the core in a running modify_qp.
        unsafe { AddressVector::from_raw(&self.attr.ah_attr) }.map(Some)
    }

    /// Path MTU in bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an unknown code.
    pub fn path_mtu(&self) -> Result<Option<u32>> {
        if self.has(bindings::ib_qp_attr_mask_IB_QP_PATH_MTU).is_none() {
            return Ok(None);
        }
        mtu_from_raw(self.attr.path_mtu).ok_or(EINVAL).map(Some)
    }

    /// Local ACK timeout, 4.096 µs times two to this power; 0 means none. 5 bits.
    pub fn timeout(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_TIMEOUT)?;
        Some(self.attr.timeout)
    }

    /// Transport retries. 3 bits.
    pub fn retry_cnt(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_RETRY_CNT)?;
        Some(self.attr.retry_cnt)
    }

    /// Receiver-not-ready retries; 7 means for ever. 3 bits.
    pub fn rnr_retry(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_RNR_RETRY)?;
        Some(self.attr.rnr_retry)
    }

    /// Receive PSN.
    pub fn rq_psn(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_RQ_PSN)?;
        Some(self.attr.rq_psn)
    }

    /// Send PSN.
    pub fn sq_psn(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_SQ_PSN)?;
        Some(self.attr.sq_psn)
    }

    /// Outstanding READ and ATOMIC requests as initiator.
    pub fn max_rd_atomic(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC)?;
        Some(self.attr.max_rd_atomic)
    }

    /// Outstanding READ and ATOMIC requests as target.
    pub fn max_dest_rd_atomic(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC)?;
        Some(self.attr.max_dest_rd_atomic)
    }

    /// Code of the RNR NAK timer to send (IBTA vol1 table 45). 5 bits.
    pub fn min_rnr_timer(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER)?;
        Some(self.attr.min_rnr_timer)
    }

    /// QP number of the peer.
    pub fn dest_qpn(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_DEST_QPN)?;
        Some(self.attr.dest_qp_num)
    }

    /// Ask for an event when the send queue has drained.
    pub fn sqd_notify(&self) -> Option<bool> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY)?;
        Some(self.attr.en_sqd_async_notify != 0)
    }

    /// New sizes.
    pub fn cap(&self) -> Option<QpCap> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_CAP)?;
        Some(QpCap::from_raw(&self.attr.cap))
    }

    /// The change touches the alternate path or the migration state.
    pub fn touches_migration(&self) -> bool {
        let bits = bindings::ib_qp_attr_mask_IB_QP_ALT_PATH
            | bindings::ib_qp_attr_mask_IB_QP_PATH_MIG_STATE;
        self.mask & bits != 0
    }
}

/// Answer to `query_qp`.
#[derive(Clone, Copy, Debug)]
pub struct QpReport {
    /// State.
    pub state: QpState,
    /// The send queue is still draining on its way to [`QpState::Sqd`].
    pub sq_draining: bool,
    /// Path MTU in bytes, a power of two from 256 to 4096.
    pub path_mtu: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Receive PSN.
    pub rq_psn: u32,
    /// Send PSN.
    pub sq_psn: u32,
    /// QP number of the peer.
    pub dest_qpn: u32,
    /// Remote rights.
    pub access_flags: u32,
    /// Sizes.
    pub cap: QpCap,
    /// Primary path.
    pub av: Option<AddressVector>,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Port.
    pub port: u32,
    /// Outstanding READ and ATOMIC requests as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding READ and ATOMIC requests as target.
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR NAK timer.
    pub min_rnr_timer: u8,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
    /// Receiver-not-ready retries.
    pub rnr_retry: u8,
    /// Every send request completes visibly.
    pub signal_all: bool,
}

/// A queue pair of a driver. The context is shared: whoever needs it beyond a call clones the
/// `Arc`.
pub trait QueuePair: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Qp = Self>;

    /// Creates a QP in state [`QpState::Reset`]. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes beyond the device's limits, `EOPNOTSUPP` for flags not supported,
    /// `ENOMEM`. Nothing may remain published.
    fn create(dev: &Arc<Self::Device>, init: QpInit<'_, Self::Device>) -> Result<QpCreated<Self>>;

    /// Changes attributes, all or none. Process context; calls for one QP may come concurrently.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a transition or value that is not allowed.
    fn modify(&self, dev: &Arc<Self::Device>, change: &QpChange<'_>) -> Result;

    /// Reports all attributes. Process context.
    fn query(&self) -> QpReport;

    /// Counts in `counter` too from now on, or only with the device. Process context.
    fn bind_counter(&self, counter: Option<Arc<<Self::Device as Device>::Counter>>);

    /// Says for `rdma resource` what the attributes do not. Process context.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    fn describe(&self, to: &mut Details<'_>) -> Result;

    /// Takes the QP out of service: afterwards it raises no event and makes no completion. Others
    /// may still hold the context. Process context, never concurrent with other calls.
    fn destroy(self: &Arc<Self>, dev: &Arc<Self::Device>);

    /// User space has posted sends to its ring. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that takes no sends.
    fn doorbell(self: &Arc<Self>) -> Result;

    /// A kernel consumer posts sends: take requests with [`SendChain::current`] and
    /// [`SendChain::advance`] until there is none. Any context.
    ///
    /// # Errors
    ///
    /// The request current at the time is reported as the bad one.
    fn post_send(self: &Arc<Self>, chain: &mut SendChain<'_, Self::Device>) -> Result;

    /// A kernel consumer posts receives, as [`post_send`](Self::post_send). Any context.
    ///
    /// # Errors
    ///
    /// The request current at the time is reported as the bad one.
    fn post_recv(self: &Arc<Self>, chain: &mut RecvChain<'_>) -> Result;

    /// Messages to the multicast `group`, a GID, are to be delivered to this QP too. The core asks
    /// for datagram QPs only, and detaches every group before it destroys a QP. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond the device's limits, or why the network device cannot join.
    fn attach(self: &Arc<Self>, dev: &Arc<Self::Device>, group: &[u8; 16]) -> Result;

    /// Undoes [`attach`](Self::attach). Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not attached.
    fn detach(self: &Arc<Self>, dev: &Arc<Self::Device>, group: &[u8; 16]) -> Result;
}

/// What the shell of a QP holds.
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

/// The object the core allocates.
pub(crate) type QpShell<T> = Shell<bindings::ib_qp, QpSlot<T>>;

/// Trampolines of [`QueuePair`].
pub(crate) struct QpOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> QpOps<D> {
    /// # Safety
    ///
    /// Called by the core with a fresh shell.
    pub(crate) unsafe extern "C" fn create_qp(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
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
                    // SAFETY: The argument of this very call.
                    user: unsafe { UserCall::from_raw(udata) },
                },
            )?;
            qp_ref.qp_num = created.qpn;
            created.cap.store(&mut init.cap);
            let slot = QpSlot {
                ctx: created.ctx,
                events,
                _maps: created.maps,
            };
            // SAFETY: The core allocated `QpShell::SIZE` bytes and nobody knows `qp` yet.
            unsafe { QpShell::<D::Qp>::init(qp, slot) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live QP.
    pub(crate) unsafe extern "C" fn modify_qp(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A live QP of this driver on a live device.
            let (slot, dev) = unsafe {
                (
                    QpShell::<D::Qp>::slot(qp),
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

    /// # Safety
    ///
    /// Called by the core with a live QP.
    pub(crate) unsafe extern "C" fn query_qp(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        _mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        // The core hands out memory as it was freed and copies all of the answer to the user.
        // SAFETY: Valid places for the answer; both structures may be all zeroes.
        unsafe {
            attr.write_bytes(0, 1);
            init.write_bytes(0, 1);
        }
        // SAFETY: A live QP of this driver and valid places for the answer.
        let (slot, qp, attr, init) =
            unsafe { (QpShell::<D::Qp>::slot(qp), &*qp, &mut *attr, &mut *init) };
        let report = slot.ctx.query();
        attr.qp_state = report.state.to_raw();
        attr.cur_qp_state = report.state.to_raw();
        attr.path_mtu = mtu_to_raw(report.path_mtu);
        attr.path_mig_state = bindings::ib_mig_state_IB_MIG_MIGRATED;
        attr.qkey = report.qkey;
        attr.rq_psn = report.rq_psn;
        attr.sq_psn = report.sq_psn;
        attr.dest_qp_num = report.dest_qpn;
        attr.qp_access_flags = report.access_flags as c_int;
        report.cap.store(&mut attr.cap);
        attr.ah_attr.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        attr.alt_ah_attr.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        if let Some(av) = &report.av {
            av.store(&mut attr.ah_attr);
        }
        attr.pkey_index = report.pkey_index;
        attr.sq_draining = u8::from(report.sq_draining);
        attr.max_rd_atomic = report.max_rd_atomic;
        attr.max_dest_rd_atomic = report.max_dest_rd_atomic;
        attr.min_rnr_timer = report.min_rnr_timer;
        attr.port_num = report.port;
        attr.timeout = report.timeout;
        attr.retry_cnt = report.retry_cnt;
        attr.rnr_retry = report.rnr_retry;
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
    pub(crate) unsafe extern "C" fn destroy_qp(
        qp: *mut bindings::ib_qp,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: A live QP of this driver on a live device.
            let (slot, dev) = unsafe {
                (
                    QpShell::<D::Qp>::slot(qp),
                    super::device::ctx::<D>((*qp).device),
                )
            };
            slot.ctx.destroy(dev);
            slot.events.stop();
        }
        // SAFETY: The last use; the core frees the object next.
        drop(unsafe { QpShell::<D::Qp>::take(qp) });
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live QP and a multicast GID.
    pub(crate) unsafe extern "C" fn attach_mcast(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the caller's promise.
        errno(unsafe { Self::with_group(qp, gid, D::Qp::attach) })
    }

    /// # Safety
    ///
    /// As of [`attach_mcast`](Self::attach_mcast).
    pub(crate) unsafe extern "C" fn detach_mcast(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        _lid: u16,
    ) -> c_int {
        // SAFETY: By the caller's promise.
        errno(unsafe { Self::with_group(qp, gid, D::Qp::detach) })
    }

    /// # Safety
    ///
    /// As of [`attach_mcast`](Self::attach_mcast).
    unsafe fn with_group(
        qp: *mut bindings::ib_qp,
        gid: *mut bindings::ib_gid,
        f: impl FnOnce(&Arc<D::Qp>, &Arc<D>, &[u8; 16]) -> Result,
    ) -> Result {
        // SAFETY: By the caller's promise; all members of the union are plain bytes.
        let (slot, dev, group) = unsafe {
            (
                QpShell::<D::Qp>::slot(qp),
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
    pub(crate) unsafe extern "C" fn post_send(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad_wr: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: A live QP of this driver.
        let slot = unsafe { QpShell::<D::Qp>::slot(qp) };
        // SAFETY: As above; these fields do not change.
        let (user, qp_type) = unsafe { (!(*qp).uobject.is_null(), (*qp).qp_type) };
        let result = if user {
            // The ring counts; requests passed through the system call are not looked at.
            slot.ctx.doorbell()
        } else {
            // SAFETY: A kernel consumer passes a well-formed chain.
            let mut chain = unsafe { SendChain::<D>::new(wr, qp_type) };
            let result = slot.ctx.post_send(&mut chain);
            if result.is_err() {
                // SAFETY: The core passes a valid place.
                unsafe { *bad_wr = chain.as_ptr() };
            }
            return errno(result);
        };
        if result.is_err() {
            // SAFETY: The core passes a valid place.
            unsafe { *bad_wr = wr };
        }
        errno(result)
    }

    /// # Safety
    ///
    /// Called by the core with a live QP and a chain of work requests.
    pub(crate) unsafe extern "C" fn post_recv(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: A live QP of this driver.
        let slot = unsafe { QpShell::<D::Qp>::slot(qp) };
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
        errno(result)
    }
}

/// The integer the core expects.
#[inline]
pub(crate) fn errno(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// Bytes of `enum ib_mtu`.
pub(crate) fn mtu_from_raw(raw: bindings::ib_mtu) -> Option<u32> {
    match raw {
        bindings::ib_mtu_IB_MTU_256 => Some(256),
        bindings::ib_mtu_IB_MTU_512 => Some(512),
        bindings::ib_mtu_IB_MTU_1024 => Some(1024),
        bindings::ib_mtu_IB_MTU_2048 => Some(2048),
        bindings::ib_mtu_IB_MTU_4096 => Some(4096),
        _ => None,
    }
}

/// The largest `enum ib_mtu` not above `bytes`.
pub(crate) fn mtu_to_raw(bytes: u32) -> bindings::ib_mtu {
    match bytes {
        4096.. => bindings::ib_mtu_IB_MTU_4096,
        2048.. => bindings::ib_mtu_IB_MTU_2048,
        1024.. => bindings::ib_mtu_IB_MTU_1024,
        512.. => bindings::ib_mtu_IB_MTU_512,
        _ => bindings::ib_mtu_IB_MTU_256,
    }
}
