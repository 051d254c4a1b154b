// SPDX-License-Identifier: GPL-2.0
//! Attributes of queue pairs, between the core's structures and the driver.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::{
    bindings,
    rdma::{
        attr::mtu_to_raw,
        av::AddressVector, //
    },
};
use core::ffi::c_int;
use kernel::prelude::*;

/// State of a QP (IBTA 10.3.1); the numbers are those of `enum ib_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Reset.
    Reset,
    /// Initialized.
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

/// Sizes of a QP, requested and granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Number of outstanding send requests.
    pub max_send_wr: u32,
    /// Number of outstanding receive requests.
    pub max_recv_wr: u32,
    /// Number of entries of a send gather list.
    pub max_send_sge: u32,
    /// Number of entries of a receive scatter list.
    pub max_recv_sge: u32,
    /// Length of the inline data of a send request, in bytes.
    pub max_inline_data: u32,
}

impl QpCap {
    pub(super) fn from_raw(cap: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }

    pub(super) fn store(&self, to: &mut bindings::ib_qp_cap) {
        to.max_send_wr = self.max_send_wr;
        to.max_recv_wr = self.max_recv_wr;
        to.max_send_sge = self.max_send_sge;
        to.max_recv_sge = self.max_recv_sge;
        to.max_inline_data = self.max_inline_data;
    }
}

/// Arguments of `modify_qp`. Every getter returns `None` unless the attribute is to be changed.
///
/// # Context
///
/// Process context, within [`QueuePair::modify`](super::QueuePair::modify).
pub struct QpChange<'a> {
    pub(super) attr: &'a bindings::ib_qp_attr,
    pub(super) mask: u32,
}

impl QpChange<'_> {
    fn has(&self, bit: bindings::ib_qp_attr_mask) -> Option<()> {
        (self.mask & bit != 0).then_some(())
    }

    /// The raw mask, bits of `enum ib_qp_attr_mask`.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// The new state.
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

    /// The state that the consumer assumes the QP to be in.
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

    /// Remote rights, bits of `enum ib_access_flags`. A process may set any bit.
    pub fn access_flags(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS)?;
        Some(self.attr.qp_access_flags as u32)
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

    /// Local ACK timeout code, 0..=31: 4.096 µs times two to this power; 0 means none.
    pub fn timeout(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_TIMEOUT)?;
        Some(self.attr.timeout)
    }

    /// Number of transport retries, 0..=7.
    pub fn retry_cnt(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_RETRY_CNT)?;
        Some(self.attr.retry_cnt)
    }

    /// Number of receiver-not-ready retries, 0..=7; 7 means forever.
    pub fn rnr_retry(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_RNR_RETRY)?;
        Some(self.attr.rnr_retry)
    }

    /// PSN of the first request to receive, 24 bits.
    pub fn rq_psn(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_RQ_PSN)?;
        Some(self.attr.rq_psn)
    }

    /// PSN of the first request to send, 24 bits.
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

    /// Code of the RNR NAK timer to send (IBTA 9.7.5.2.8). 5 bits.
    pub fn min_rnr_timer(&self) -> Option<u8> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER)?;
        Some(self.attr.min_rnr_timer)
    }

    /// QP number of the peer.
    pub fn dest_qpn(&self) -> Option<u32> {
        self.has(bindings::ib_qp_attr_mask_IB_QP_DEST_QPN)?;
        Some(self.attr.dest_qp_num)
    }

    /// Whether to raise an event when the send queue has drained.
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

/// Response of `query_qp`.
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
    /// PSN of the next request to receive, 24 bits.
    pub rq_psn: u32,
    /// PSN of the next request to send, 24 bits.
    pub sq_psn: u32,
    /// QP number of the peer.
    pub dest_qpn: u32,
    /// `ACCESS_REMOTE_*` bits that the peer has.
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
    /// Code of the RNR NAK timer, 0..=31.
    pub min_rnr_timer: u8,
    /// Local ACK timeout code, 0..=31: 4.096 µs times two to this power; 0 means none.
    pub timeout: u8,
    /// Number of transport retries, 0..=7.
    pub retry_cnt: u8,
    /// Number of receiver-not-ready retries, 0..=7; 7 means forever.
    pub rnr_retry: u8,
    /// Every send request generates a completion.
    pub signal_all: bool,
}

impl QpReport {
    /// Fills in `attr`, which is all zeroes.
    pub(super) fn store(&self, attr: &mut bindings::ib_qp_attr) {
        attr.qp_state = self.state.to_raw();
        attr.cur_qp_state = self.state.to_raw();
        attr.path_mtu = mtu_to_raw(self.path_mtu);
        attr.path_mig_state = bindings::ib_mig_state_IB_MIG_MIGRATED;
        attr.qkey = self.qkey;
        attr.rq_psn = self.rq_psn;
        attr.sq_psn = self.sq_psn;
        attr.dest_qp_num = self.dest_qpn;
        attr.qp_access_flags = self.access_flags as c_int;
        self.cap.store(&mut attr.cap);
        attr.ah_attr.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        attr.alt_ah_attr.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        if let Some(av) = &self.av {
            av.store(&mut attr.ah_attr);
        }
        attr.pkey_index = self.pkey_index;
        attr.sq_draining = u8::from(self.sq_draining);
        attr.max_rd_atomic = self.max_rd_atomic;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.port_num = self.port;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
    }
}

/// Clears the attributes that identify packets of the connection, except those that `mask` (bits of
/// `enum ib_qp_attr_mask`) requests.
pub(super) fn hide_unasked(attr: &mut bindings::ib_qp_attr, mask: u32) {
    if mask & bindings::ib_qp_attr_mask_IB_QP_RQ_PSN == 0 {
        attr.rq_psn = 0;
    }
    if mask & bindings::ib_qp_attr_mask_IB_QP_SQ_PSN == 0 {
        attr.sq_psn = 0;
    }
    if mask & bindings::ib_qp_attr_mask_IB_QP_DEST_QPN == 0 {
        attr.dest_qp_num = 0;
    }
}

/// Returns the bytes that a value of `enum ib_mtu` stands for, `None` if it is none.
fn mtu_from_raw(raw: bindings::ib_mtu) -> Option<u32> {
    match raw {
        bindings::ib_mtu_IB_MTU_256 => Some(256),
        bindings::ib_mtu_IB_MTU_512 => Some(512),
        bindings::ib_mtu_IB_MTU_1024 => Some(1024),
        bindings::ib_mtu_IB_MTU_2048 => Some(2048),
        bindings::ib_mtu_IB_MTU_4096 => Some(4096),
        _ => None,
    }
}
