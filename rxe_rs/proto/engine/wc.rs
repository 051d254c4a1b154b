// SPDX-License-Identifier: GPL-2.0
//! Work completions (`struct ib_wc`).

use super::wr::SendOp;
use crate::ids::RKey;

/// Completion status; the numbers are those of `enum ib_wc_status` (IBTA 11.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WcStatus {
    /// The request completed successfully.
    Success = 0,
    /// A message was longer than the receive buffer or the path MTU allows.
    LocLenErr = 1,
    /// The request itself was malformed.
    LocQpOpErr = 2,
    /// A local scatter/gather entry failed its key, bounds or rights check.
    LocProtErr = 4,
    /// The QP entered the error state before the request was executed.
    WrFlushErr = 5,
    /// Memory management operation error: a bind, an invalidation or a registration failed.
    MwBindErr = 6,
    /// The response of the peer did not match the request.
    BadRespErr = 7,
    /// A protection error on a local data buffer while receiving an RDMA WRITE with immediate.
    LocAccessErr = 8,
    /// The peer refused the request as invalid.
    RemInvReqErr = 9,
    /// The peer refused the access to its memory.
    RemAccessErr = 10,
    /// The peer could not complete the request.
    RemOpErr = 11,
    /// The transport retry count was exceeded.
    RetryExcErr = 12,
    /// The receiver-not-ready retry count was exceeded.
    RnrRetryExcErr = 13,
    /// Any other error.
    GeneralErr = 21,
}

impl WcStatus {
    /// The value of `enum ib_wc_status`.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        match self {
            WcStatus::Success => 0,
            WcStatus::LocLenErr => 1,
            WcStatus::LocQpOpErr => 2,
            WcStatus::LocProtErr => 4,
            WcStatus::WrFlushErr => 5,
            WcStatus::MwBindErr => 6,
            WcStatus::BadRespErr => 7,
            WcStatus::LocAccessErr => 8,
            WcStatus::RemInvReqErr => 9,
            WcStatus::RemAccessErr => 10,
            WcStatus::RemOpErr => 11,
            WcStatus::RetryExcErr => 12,
            WcStatus::RnrRetryExcErr => 13,
            WcStatus::GeneralErr => 21,
        }
    }
}

/// What completed; the numbers are those of `enum ib_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcOpcode {
    /// A SEND of the send queue.
    Send,
    /// An RDMA WRITE.
    RdmaWrite,
    /// An RDMA READ.
    RdmaRead,
    /// An ATOMIC compare and swap.
    CompSwap,
    /// An ATOMIC fetch and add.
    FetchAdd,
    /// An ATOMIC WRITE.
    AtomicWrite,
    /// A FLUSH.
    Flush,
    /// A memory window was bound.
    BindMw,
    /// A key was invalidated.
    LocalInv,
    /// A region was registered.
    RegMr,
    /// A SEND arrived.
    Recv,
    /// An RDMA WRITE with immediate data arrived.
    RecvRdmaWithImm,
}

impl WcOpcode {
    /// The completion opcode of a send request.
    #[inline]
    pub const fn of(op: SendOp) -> Self {
        match op {
            SendOp::Send | SendOp::SendImm | SendOp::SendInv => WcOpcode::Send,
            SendOp::Write | SendOp::WriteImm => WcOpcode::RdmaWrite,
            SendOp::Read => WcOpcode::RdmaRead,
            SendOp::CmpSwp => WcOpcode::CompSwap,
            SendOp::FetchAdd => WcOpcode::FetchAdd,
            SendOp::AtomicWrite => WcOpcode::AtomicWrite,
            SendOp::Flush => WcOpcode::Flush,
            SendOp::BindMw => WcOpcode::BindMw,
            SendOp::LocalInv => WcOpcode::LocalInv,
            SendOp::RegMr => WcOpcode::RegMr,
        }
    }

    /// The value of `enum ib_wc_opcode`.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        match self {
            WcOpcode::Send => 0,
            WcOpcode::RdmaWrite => 1,
            WcOpcode::RdmaRead => 2,
            WcOpcode::CompSwap => 3,
            WcOpcode::FetchAdd => 4,
            WcOpcode::BindMw => 5,
            WcOpcode::LocalInv => 6,
            WcOpcode::Flush => 8,
            WcOpcode::AtomicWrite => 9,
            WcOpcode::RegMr => 10,
            WcOpcode::Recv => 128,
            WcOpcode::RecvRdmaWithImm => 129,
        }
    }
}

/// IP version of the network header of a UD message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkType {
    /// IPv4: the 20 byte header is in the second half of the 40 bytes.
    V4,
    /// IPv6.
    V6,
}

/// One completion (IBTA 11.4.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wc {
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// What completed; meaningful on success only.
    pub opcode: WcOpcode,
    /// Number of bytes moved; of a receive completion the length of the message.
    pub byte_len: u32,
    /// Immediate data in wire order, if any.
    pub imm: Option<[u8; 4]>,
    /// Local key that the message invalidated.
    pub invalidated: Option<RKey>,
    /// Local QP number.
    pub qpn: u32,
    /// QP number of the sender (UD) or of the connected peer.
    pub src_qpn: u32,
    /// Index of the P_Key of the message (QP1).
    pub pkey_index: u16,
    /// Set if the first 40 bytes of the receive buffer hold the network header.
    pub grh: Option<NetworkType>,
    /// VLAN that a datagram arrived on.
    pub vlan: Option<u16>,
    /// The completion is solicited for an armed CQ: the sender set the solicited event bit, or the
    /// completion is an error (IBTA 11.4.2.2).
    pub solicited: bool,
}

impl Wc {
    /// A completion of the send queue.
    pub const fn send(wr_id: u64, op: SendOp, status: WcStatus, byte_len: u32, qpn: u32) -> Self {
        Self {
            wr_id,
            status,
            opcode: WcOpcode::of(op),
            byte_len,
            imm: None,
            invalidated: None,
            qpn,
            src_qpn: 0,
            pkey_index: 0,
            grh: None,
            vlan: None,
            solicited: !matches!(status, WcStatus::Success),
        }
    }

    /// An unsuccessful completion of the receive queue.
    pub const fn recv_error(wr_id: u64, status: WcStatus, qpn: u32) -> Self {
        Self {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn,
            src_qpn: 0,
            pkey_index: 0,
            grh: None,
            vlan: None,
            solicited: true,
        }
    }
}
