// SPDX-License-Identifier: GPL-2.0
//! Work requests as the engine sees them: copied from the ring once and already validated.

use crate::check::window::Bind;
use crate::ids::{Psn, QKey, Qpn, RKey};
use crate::wire::feth::Selectivity;

/// Longest message in bytes, 1 GiB: what the device advertises as `max_msg_sz`.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Operation of a send work request (IBTA 10.8.2, `enum ib_wr_opcode`).
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

impl SendOp {
    /// True if the request has a response of its own and so takes one of the peer's RDMA
    /// READ/ATOMIC resources (IBTA 9.7.3).
    #[inline]
    pub const fn needs_response(self) -> bool {
        matches!(
            self,
            SendOp::Read | SendOp::CmpSwp | SendOp::FetchAdd | SendOp::AtomicWrite | SendOp::Flush
        )
    }

    /// True if the request and its response are one packet each.
    #[inline]
    pub const fn is_single(self) -> bool {
        self.needs_response() && !matches!(self, SendOp::Read)
    }

    /// True if the request is a message gathered from local memory.
    #[inline]
    pub const fn carries_payload(self) -> bool {
        !self.needs_response() && !self.is_local()
    }

    /// True if the request is executed locally and sends no packet.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr)
    }

    /// True if the message consumes a receive request, so that it may carry the solicited event
    /// bit.
    #[inline]
    pub const fn is_solicitable(self) -> bool {
        matches!(
            self,
            SendOp::Send | SendOp::SendImm | SendOp::SendInv | SendOp::WriteImm
        )
    }
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

/// Destination of a UD message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDest {
    /// Destination QP.
    pub qpn: Qpn,
    /// Q_Key of the request; its most significant bit selects that of the QP (IBTA 10.2.5).
    pub qkey: QKey,
    /// Address handle number; resolved by the implementor of [`Tx`](super::backend::Tx).
    pub ah: u32,
    /// Index of the P_Key; used only by QP1, other QPs send their own P_Key.
    pub pkey_index: u16,
}

/// One send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr {
    /// The consumer's identifier, returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// Immediate data in wire order.
    pub imm: [u8; 4],
    /// Remote virtual address of WRITE, READ, ATOMIC and FLUSH.
    pub remote_addr: u64,
    /// Remote key of WRITE, READ, ATOMIC and FLUSH; the key to invalidate of SEND with invalidate
    /// and of local invalidate.
    pub rkey: RKey,
    /// Bytes of the message: the sum of the scatter/gather entries or of the inline data;
    /// 0..=2^30, and 8 for ATOMIC. Bytes of the range to flush.
    pub length: u32,
    /// Scatter/gather entries; 0 if the payload is inline.
    pub num_sge: u8,
    /// Compare value of compare and swap, addend of fetch and add.
    pub compare_add: u64,
    /// Swap value of compare and swap.
    pub swap: u64,
    /// Destination of UD messages.
    pub ud: UdDest,
}

impl SendWr {
    /// A SEND without payload; the initial value of unused WQEs.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags {
            signaled: false,
            solicited: false,
            fence: false,
            inline: false,
        },
        imm: [0; 4],
        remote_addr: 0,
        rkey: RKey(0),
        length: 0,
        num_sge: 0,
        compare_add: 0,
        swap: 0,
        ud: UdDest {
            qpn: Qpn::GSI,
            qkey: QKey(0),
            ah: 0,
            pkey_index: 0,
        },
    };
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

impl SendWr {
    /// The parameters of a FLUSH. They are stored in `imm`, which a FLUSH does not use.
    pub fn flush(&self) -> FlushKind {
        let [placement, all, ..] = self.imm;
        FlushKind {
            placement,
            selectivity: match all {
                0 => Selectivity::Range,
                _ => Selectivity::Region,
            },
        }
    }

    /// Turns this into a FLUSH with these parameters.
    pub fn set_flush(&mut self, kind: FlushKind) {
        let all = u8::from(kind.selectivity == Selectivity::Region);
        self.op = SendOp::Flush;
        self.imm = [kind.placement, all, 0, 0];
    }

    /// The parameters of a local operation; `None` for all other work requests.
    ///
    /// A local operation has no message, so its parameters are stored in the fields of one.
    pub fn local_op(&self) -> Option<LocalOp> {
        match self.op {
            SendOp::LocalInv => Some(LocalOp::Invalidate(self.rkey)),
            SendOp::BindMw => {
                let [a, b, c, d, e, f, g, h] = self.swap.to_ne_bytes();
                Some(LocalOp::Bind(Bind {
                    window: RKey(u32::from_ne_bytes([a, b, c, d])),
                    key: self.rkey,
                    region: u32::from_ne_bytes([e, f, g, h]),
                    addr: self.remote_addr,
                    length: self.compare_add,
                    access: u32::from_ne_bytes(self.imm),
                }))
            }
            SendOp::RegMr => Some(LocalOp::Register(Register {
                key: self.rkey,
                iova: self.remote_addr,
                length: self.compare_add,
                access: u32::from_ne_bytes(self.imm),
            })),
            _ => None,
        }
    }

    /// Turns this into a local operation.
    pub fn set_local_op(&mut self, op: &LocalOp) {
        match *op {
            LocalOp::Invalidate(key) => {
                self.op = SendOp::LocalInv;
                self.rkey = key;
            }
            LocalOp::Bind(bind) => {
                let [a, b, c, d] = bind.window.0.to_ne_bytes();
                let [e, f, g, h] = bind.region.to_ne_bytes();
                self.op = SendOp::BindMw;
                self.swap = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                self.rkey = bind.key;
                self.remote_addr = bind.addr;
                self.compare_add = bind.length;
                self.imm = bind.access.to_ne_bytes();
            }
            LocalOp::Register(reg) => {
                self.op = SendOp::RegMr;
                self.rkey = reg.key;
                self.remote_addr = reg.iova;
                self.compare_add = reg.length;
                self.imm = reg.access.to_ne_bytes();
            }
        }
    }
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
    /// All response data has arrived (READ, ATOMIC). Only the engine writes it.
    pub responded: bool,
    /// If set, the request failed validation when it was copied from the ring; it completes with
    /// this status in order and is never sent.
    pub invalid: Option<super::wc::WcStatus>,
}

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
            responded: false,
            invalid: None,
        }
    }

    /// A WQE for a request that failed validation.
    pub const fn invalid(wr: SendWr, status: super::wc::WcStatus) -> Self {
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
