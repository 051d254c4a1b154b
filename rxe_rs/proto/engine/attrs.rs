// SPDX-License-Identifier: GPL-2.0
//! Types of the QP interface: service, state, attributes, events, progress.

use super::same_host::HostTag;
use super::wc::NetworkType;
use crate::drop::DropReason;
use crate::ids::{Mtu, QKey, Qpn};

/// Transport service of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The general services interface, QP1: an unreliable datagram QP that accepts any P_Key of the
    /// port.
    Gsi,
    /// Whole Ethernet frames, sent and received as they are (`IB_QPT_RAW_PACKET`).
    Raw,
}

impl Service {
    /// True for services whose work requests name the destination.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Service::Ud | Service::Gsi)
    }

    /// True for services whose QPs have exactly one peer.
    #[inline]
    pub const fn is_connected(self) -> bool {
        matches!(self, Service::Rc | Service::Uc)
    }
}

/// State of a QP (IBTA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Created or reset; no work request is accepted, arriving packets are dropped.
    Reset,
    /// Receives may be posted; arriving packets are dropped.
    Init,
    /// Ready to receive: requests of the peer are executed, no requests are sent.
    Rtr,
    /// Ready to send: fully operational.
    Rts,
    /// Send queue drained: started requests complete, new ones wait.
    Sqd,
    /// Send queue error: sends are flushed, the receive queue keeps working (UD, UC).
    Sqe,
    /// Error: all work requests are flushed.
    Err,
}

impl State {
    /// Checks that a QP in this state receives packets (IBTA 10.3.1).
    ///
    /// # Errors
    ///
    /// [`DropReason::NotReady`] before RTR, [`DropReason::BadState`] in ERR.
    #[inline]
    pub const fn receives(self) -> Result<(), DropReason> {
        match self {
            State::Rtr | State::Rts | State::Sqd | State::Sqe => Ok(()),
            State::Reset | State::Init => Err(DropReason::NotReady),
            State::Err => Err(DropReason::BadState),
        }
    }
}

/// Attributes of a QP, set by the owner before the state transition that needs them.
#[derive(Clone, Copy, Debug)]
pub struct Attrs {
    /// QP number.
    pub qpn: Qpn,
    /// QP number of the peer (connected services).
    pub dest_qpn: Qpn,
    /// Path MTU; for UD also the maximum message size.
    pub mtu: Mtu,
    /// Q_Key of the QP (UD).
    pub qkey: QKey,
    /// Local ACK timeout code, 0..=31; 0 disables the timer (IBTA 9.7.6.1.3).
    pub timeout: u8,
    /// Transport retries, 0..=7.
    pub retry_cnt: u8,
    /// RNR retries, 0..=7; 7 retries forever.
    pub rnr_retry: u8,
    /// Timer code of the RNR NAKs that this QP sends, 0..=31.
    pub min_rnr_timer: u8,
    /// READ and ATOMIC requests that may be outstanding at the peer, 0..=128.
    pub max_rd_atomic: u8,
    /// Responder resources for READ and ATOMIC requests of the peer, 0..=128.
    pub max_dest_rd_atomic: u8,
    /// The peer may READ.
    pub remote_read: bool,
    /// The peer may WRITE.
    pub remote_write: bool,
    /// The peer may execute ATOMICs.
    pub remote_atomic: bool,
    /// Raise an event when the send queue is drained in SQD.
    pub sqd_async_notify: bool,
    /// Placement type bits that FLUSH requests of the peer may set.
    pub remote_flush: u8,
    /// Token of the marks of this QP's requests, a random number, 1..=63 ([`repeat`]); 0: packets
    /// ahead of the expected one are not kept, neither here nor by the peer.
    ///
    /// [`repeat`]: super::repeat
    pub token: u8,
}

/// Greatest number of READ and ATOMIC requests in flight in one direction.
pub const MAX_RD_ATOMIC: u8 = 128;

/// Most pending responses to duplicates, and least if there are responder resources at all.
const DUPLICATES: core::ops::RangeInclusive<usize> = 2..=32;

/// Number of entries that [`Storage::pending`](super::backend::Storage::pending) must have for
/// `max_dest_rd_atomic` responder resources: a response for each, and responses to duplicates.
pub fn pending_responses(max_dest_rd_atomic: u8) -> usize {
    match replay_entries(max_dest_rd_atomic) {
        0 => 0,
        first => first.saturating_add(first.clamp(*DUPLICATES.start(), *DUPLICATES.end())),
    }
}

/// Number of entries that [`Storage::replay`](super::backend::Storage::replay) must have for
/// `max_dest_rd_atomic` responder resources.
pub fn replay_entries(max_dest_rd_atomic: u8) -> usize {
    usize::from(max_dest_rd_atomic)
}

impl Attrs {
    /// Attributes of a QP that was just created.
    pub const fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            dest_qpn: Qpn::new(0),
            mtu: Mtu::Mtu1024,
            qkey: QKey(0),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            remote_read: false,
            remote_write: false,
            remote_atomic: false,
            sqd_async_notify: false,
            remote_flush: 0,
            token: 0,
        }
    }
}

/// Asynchronous events raised since the last [`Qp::take_events`](super::qp::Qp::take_events)
/// (IBTA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// The first packet arrived in RTR.
    pub comm_est: bool,
    /// The QP failed for a local reason that no completion reports.
    pub fatal: bool,
    /// The peer sent an invalid request.
    pub request_error: bool,
    /// The peer violated memory protection.
    pub access_error: bool,
    /// The send queue is drained.
    pub sq_drained: bool,
    /// The QP entered ERR and takes no more WQEs from its shared receive queue.
    pub last_wqe: bool,
}

impl Events {
    /// True if there is nothing to report.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Result of [`Qp::poll_transmit`](super::qp::Qp::poll_transmit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing to send until the next input.
    Idle,
    /// The sink is full; there is more to send.
    More,
}

/// What [`Qp::poll_transmit`](super::qp::Qp::poll_transmit) would send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToSend {
    /// No packet, and no event waits to be taken.
    Nothing,
    /// Only an ACK. If requests are about to be posted, it can leave in one batch with them.
    Ack,
    /// Requests, responses or others, or an event waits; or it may be nothing after all.
    Other,
}

/// Metadata of a received packet.
#[derive(Clone, Copy, Debug)]
pub struct RxMeta<'a> {
    /// IP version.
    pub net: NetworkType,
    /// The IP header: 20 or 40 bytes.
    pub ip_header: &'a [u8],
    /// Index of the packet's P_Key in the port's table.
    pub pkey_index: u16,
    /// VLAN that it arrived on.
    pub vlan: Option<u16>,
    /// The tag that it arrived with.
    pub tag: HostTag,
    /// Path MTU of the sender, in bytes, if the packet is merged; else 0.
    pub merged: u32,
}
