// SPDX-License-Identifier: GPL-2.0
//! Work requests as the engine sees them: copied from the ring once and already validated.

use super::wc::WcStatus;
use crate::check::window::Bind;
use crate::ids::{Psn, QKey, Qpn, RKey};
use crate::wire::feth::Selectivity;

/// Longest message in bytes, 1 GiB: what the device advertises as `max_msg_sz`.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Operation of a send work request (`enum ib_wr_opcode`), without its parameters, which
/// [`SendBody`] has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// ATOMIC compare and swap.
    CmpSwp,
    /// ATOMIC fetch and add.
    FetchAdd,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
    /// FLUSH of previously written memory.
    Flush,
    /// SEND with invalidate of a key of the peer.
    SendInv,
    /// Invalidate a local key; no packet.
    LocalInv,
    /// Bind a memory window; no packet.
    BindMw,
    /// Fast registration of a region; no packet. Kernel consumers only.
    RegMr,
}

/// Modifiers of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// Generate a completion on success.
    pub signaled: bool,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Wait for all earlier READ and ATOMIC requests of the queue.
    pub fence: bool,
    /// The payload was copied from the request itself, not from a memory region.
    pub inline: bool,
}

/// How a request names its address handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AhName {
    /// By its number on the device.
    Number(u32),
    /// By the digest of its address vector
    /// ([`VectorKey::digest`](crate::abi::VectorKey::digest)), within the protection domain of
    /// the queue pair.
    Vector(u32),
}

/// Destination of a UD message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDest {
    /// Destination QP.
    pub qpn: Qpn,
    /// Q_Key of the request; its most significant bit selects that of the QP (IBTA 10.2.5).
    pub qkey: QKey,
    /// Address handle; resolved by the implementor of [`Tx`](super::backend::Tx).
    pub ah: AhName,
    /// Index of the P_Key; used only by QP1, other QPs send their own P_Key.
    pub pkey_index: u16,
}

/// Where a request accesses the memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAddr {
    /// Address of the first byte at the responder.
    pub addr: u64,
    /// Key of the region or window.
    pub rkey: RKey,
}

/// Parameters of a FLUSH (IBTA A19).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushKind {
    /// Placement type bits, [`Feth::GLOBAL`](crate::wire::Feth::GLOBAL) or
    /// [`Feth::PERSISTENT`](crate::wire::Feth::PERSISTENT) or both; not 0.
    pub placement: u8,
    /// A range or the whole region.
    pub selectivity: Selectivity,
}

/// Parameters of a fast registration, of a region whose pages are already mapped
/// (IBTA 10.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    /// New key of the region, with the same index.
    pub key: RKey,
    /// Address of the first byte in work requests and packets.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
    /// Rights, as `enum ib_access_flags`.
    pub access: u32,
}

/// A local operation on keys; sends no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalOp {
    /// Invalidate the key.
    Invalidate(RKey),
    /// Bind a memory window.
    Bind(Bind),
    /// Register a region.
    Register(Register),
}

/// A local operation was refused: key, protection domain, state, rights or bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalOpFault;

/// What a send work request asks for: the operation with its parameters (IBTA 10.8.2). Immediate
/// data is in wire order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendBody {
    /// SEND on a connection, or a frame of a raw packet QP.
    Send,
    /// SEND with immediate data.
    SendImm([u8; 4]),
    /// SEND with invalidate of this key of the peer.
    SendInv(RKey),
    /// SEND of a datagram.
    Datagram(UdDest),
    /// SEND of a datagram with immediate data.
    DatagramImm(UdDest, [u8; 4]),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE with immediate data.
    WriteImm(RemoteAddr, [u8; 4]),
    /// RDMA READ.
    Read(RemoteAddr),
    /// ATOMIC compare and swap.
    CmpSwp {
        /// The word.
        at: RemoteAddr,
        /// Value that the word must have.
        compare: u64,
        /// Its new value in this case.
        swap: u64,
    },
    /// ATOMIC fetch and add.
    FetchAdd {
        /// The word.
        at: RemoteAddr,
        /// Addend.
        add: u64,
    },
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite(RemoteAddr),
    /// FLUSH of previously written memory.
    Flush(RemoteAddr, FlushKind),
    /// A local operation; no packet.
    Local(LocalOp),
}

impl SendBody {
    /// The operation.
    pub const fn op(&self) -> SendOp {
        match self {
            Self::Send | Self::Datagram(_) => SendOp::Send,
            Self::SendImm(_) | Self::DatagramImm(..) => SendOp::SendImm,
            Self::SendInv(_) => SendOp::SendInv,
            Self::Write(_) => SendOp::Write,
            Self::WriteImm(..) => SendOp::WriteImm,
            Self::Read(_) => SendOp::Read,
            Self::CmpSwp { .. } => SendOp::CmpSwp,
            Self::FetchAdd { .. } => SendOp::FetchAdd,
            Self::AtomicWrite(_) => SendOp::AtomicWrite,
            Self::Flush(..) => SendOp::Flush,
            Self::Local(LocalOp::Invalidate(_)) => SendOp::LocalInv,
            Self::Local(LocalOp::Bind(_)) => SendOp::BindMw,
            Self::Local(LocalOp::Register(_)) => SendOp::RegMr,
        }
    }

    /// True if the request has a response of its own and so takes one of the peer's RDMA
    /// READ/ATOMIC resources (IBTA 9.7.3).
    #[inline]
    pub const fn needs_response(&self) -> bool {
        matches!(self, Self::Read(_)) || self.is_single()
    }

    /// True if the request and its response are one packet each.
    #[inline]
    pub const fn is_single(&self) -> bool {
        matches!(
            self,
            Self::CmpSwp { .. } | Self::FetchAdd { .. } | Self::AtomicWrite(_) | Self::Flush(..)
        )
    }

    /// True if the request is a message gathered from local memory.
    #[inline]
    pub const fn carries_payload(&self) -> bool {
        !self.needs_response() && !self.is_local()
    }

    /// True if the request is executed locally and sends no packet.
    #[inline]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// True if the message is a SEND of any kind.
    #[inline]
    pub const fn is_send(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendImm(_)
                | Self::SendInv(_)
                | Self::Datagram(_)
                | Self::DatagramImm(..)
        )
    }

    /// True if the message consumes a receive request, so that it may carry the solicited event
    /// bit.
    #[inline]
    pub const fn is_solicitable(&self) -> bool {
        self.is_send() || matches!(self, Self::WriteImm(..))
    }
}

/// One send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr {
    /// The consumer's identifier, returned in the completion.
    pub wr_id: u64,
    /// Operation and parameters.
    pub body: SendBody,
    /// Modifiers.
    pub flags: SendFlags,
    /// Bytes of the message: the sum of the scatter/gather entries or of the inline data;
    /// 0..=2^30, and 8 for ATOMIC. Bytes of the range to flush. 0 for local operations.
    pub length: u32,
    /// Scatter/gather entries; 0 if the payload is inline.
    pub num_sge: u8,
}

impl SendWr {
    /// Sets the length of a request that is not inline, from that of its scatter/gather list. The
    /// list of an ATOMIC takes the result, and may be longer.
    ///
    /// # Errors
    ///
    /// The status that the request completes with: `LOC_LEN_ERR` for more than [`MAX_MESSAGE`], and
    /// for an ATOMIC whose result does not fit; `LOC_QP_OP_ERR` for an ATOMIC on an address that is
    /// not aligned to 8 bytes (IBTA 9.4.5), which the peer would refuse.
    pub fn set_length(&mut self, length: u32) -> Result<(), WcStatus> {
        if length > MAX_MESSAGE {
            return Err(WcStatus::LocLenErr);
        }
        self.length = length;
        if let SendBody::CmpSwp { at, .. } | SendBody::FetchAdd { at, .. } = &self.body {
            if at.addr % 8 != 0 {
                return Err(WcStatus::LocQpOpErr);
            }
            if length < 8 {
                return Err(WcStatus::LocLenErr);
            }
            self.length = 8;
        }
        Ok(())
    }

    /// A SEND without payload; the initial value of unused WQEs.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        body: SendBody::Send,
        flags: SendFlags {
            signaled: false,
            solicited: false,
            fence: false,
            inline: false,
        },
        length: 0,
        num_sge: 0,
    };
}

/// PSNs of the packets of a send work request, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PsnRange {
    /// PSN of its first packet.
    pub first: Psn,
    /// PSN of its last packet; for READ, of the last response.
    pub last: Psn,
}

/// Send WQE: an entry of the engine's copy of the send queue, a work request and its progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWqe {
    /// The request.
    pub wr: SendWr,
    /// PSNs of its packets, valid after the first one has been sent. Only the engine writes it.
    pub psns: PsnRange,
    /// Response bytes already scattered (READ, ATOMIC). Only the engine writes it.
    pub placed: u32,
    /// If set, the request failed validation when it was copied from the ring; it completes with
    /// this status in order and is never sent.
    pub invalid: Option<super::wc::WcStatus>,
}

// The requester copies a WQE for each packet that it sends.
const _: () = assert!(size_of::<SendWqe>() <= 80);

impl SendWqe {
    /// A WQE for `wr`, which has not been sent yet.
    pub const fn new(wr: SendWr) -> Self {
        Self {
            wr,
            psns: PsnRange {
                first: Psn::new(0),
                last: Psn::new(0),
            },
            placed: 0,
            invalid: None,
        }
    }

    /// A WQE for a request that failed validation.
    pub const fn invalid(wr: SendWr, status: WcStatus) -> Self {
        let mut wqe = Self::new(wr);
        wqe.invalid = Some(status);
        wqe
    }
}

/// A receive work request as the engine sees it; the implementor of
/// [`Backend`](super::backend::Backend) keeps its scatter list until the next one is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// The consumer's identifier, returned in the completion.
    pub wr_id: u64,
    /// Total length of the scatter list in bytes.
    pub length: u32,
}
