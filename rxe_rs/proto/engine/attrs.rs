// SPDX-License-Identifier: GPL-2.0
//! What a queue pair is told, and what it tells: service, state, attributes, events, progress.

use super::wc::NetKind;
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
    /// The general services interface, QP1: an unreliable datagram QP that takes any P_Key.
    Gsi,
    /// Whole Ethernet frames, sent and received as they are (`IB_QPT_RAW_PACKET`).
    Raw,
}

impl Service {
    /// True for services whose messages name their destination in the request.
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

/// State of a QP (IBTA vol1 10.3.1, figure 124).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Created or reset; nothing is posted, nothing arrives.
    Reset,
    /// Receives may be posted; arriving packets are dropped.
    Init,
    /// Ready to receive: requests of the peer are executed, nothing is sent on our own.
    Rtr,
    /// Ready to send: fully operational.
    Rts,
    /// Send queue draining: begun requests finish, new ones wait.
    Sqd,
    /// Send queue error: sends are flushed, receives go on (UD, UC).
    Sqe,
    /// Error: everything posted is flushed.
    Err,
}

/// Attributes of a QP, set by the owner before the state transition that needs them.
#[derive(Clone, Copy, Debug)]
pub struct Attrs {
    /// Own number.
    pub qpn: Qpn,
    /// The peer's number (connected services).
    pub dest_qpn: Qpn,
    /// Path MTU; for UD the greatest message.
    pub mtu: Mtu,
    /// Own Q_Key (UD).
    pub qkey: QKey,
    /// Acknowledgement timeout code, 0..=31; 0 waits forever (IBTA vol1 9.7.6.1.3).
    pub timeout: u8,
    /// Transport retries, 0..=7.
    pub retry_cnt: u8,
    /// Receiver-not-ready retries, 0..=7; 7 retries forever.
    pub rnr_retry: u8,
    /// Timer code that our receiver-not-ready NAKs carry, 0..=31.
    pub min_rnr_timer: u8,
    /// READ and ATOMIC requests we may have outstanding at the peer, 0..=128.
    pub max_rd_atomic: u8,
    /// READ and ATOMIC requests of the peer we keep resources for, 0..=128.
    pub max_dest_rd_atomic: u8,
    /// The peer may READ.
    pub remote_read: bool,
    /// The peer may WRITE.
    pub remote_write: bool,
    /// The peer may execute ATOMICs.
    pub remote_atomic: bool,
    /// Raise an event when the send queue has drained in SQD.
    pub drain_notice: bool,
    /// Placement bits that the peer's FLUSHes may have.
    pub remote_flush: u8,
}

/// Greatest number of READ and ATOMIC requests in flight in one direction.
pub const MAX_RD_ATOMIC: u8 = 128;

/// Slots that [`Storage::pending`](super::backend::Storage::pending) must provide: all responder resources and some replays.
pub const PENDING_RESPONSES: usize = 160;

/// Slots that [`Storage::replay`](super::backend::Storage::replay) must provide.
pub const RESOURCES: usize = 128;

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
            drain_notice: false,
            remote_flush: 0,
        }
    }
}

/// Asynchronous events the QP raised since they were last taken (IBTA vol1 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// The first packet arrived while ready to receive.
    pub comm_est: bool,
    /// The QP failed for a local reason that no completion reports.
    pub fatal: bool,
    /// The peer sent an invalid request.
    pub request_error: bool,
    /// The peer violated memory protection.
    pub access_error: bool,
    /// The send queue is drained.
    pub sq_drained: bool,
    /// The QP failed and takes nothing more from its shared receive queue.
    pub last_wqe: bool,
}

impl Events {
    /// True if there is nothing to report.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a turn of [`Qp::poll_transmit`](super::qp::Qp::poll_transmit) left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing more to send until something happens.
    Idle,
    /// The sink ran full; there is more to send.
    More,
}

/// What the engine must know of an UD packet beside the packet.
#[derive(Clone, Copy, Debug)]
pub struct UdMeta<'a> {
    /// IP version.
    pub net: NetKind,
    /// The IP header: 20 or 40 bytes.
    pub ip_header: &'a [u8],
    /// Index of the packet's P_Key in the port's table.
    pub pkey_index: u16,
    /// VLAN it came by.
    pub vlan: Option<u16>,
}
