// SPDX-License-Identifier: GPL-2.0
//! Request packets: segmentation, headers, the AckReq bit.

use super::pad_of;
use crate::engine::attrs::Service;
use crate::engine::backend::{Backend, Dest, LocalFault, Tx, TxFault};
use crate::engine::qp::Qp;
use crate::engine::wc::WcStatus;
use crate::engine::wr::{SendOp, SendWqe};
use crate::ids::Psn;
use crate::wire::bth::Bth;
use crate::wire::opcode::{Opcode, Operation, Transport};
use crate::wire::repr::Headers;

/// At least one of this many packets requests an acknowledgement.
const ACK_EVERY: u32 = 32;

impl Qp {
    /// The BTH of a packet to the connected peer, request or response.
    pub(in crate::engine) fn bth(
        &self,
        operation: Operation,
        psn: Psn,
        pad: u8,
        backend: &impl Backend,
    ) -> Bth {
        let uc = if self.service == Service::Uc {
            Opcode::new(Transport::Uc, operation)
        } else {
            None
        };
        let opcode = uc.unwrap_or(Opcode::rc(operation));
        Bth {
            pad,
            pkey: backend.pkey(),
            ..Bth::new(opcode, self.attrs.dest_qpn, psn)
        }
    }

    /// Sends the next packet of a SEND or WRITE (IBTA 9.2, IBTA 9.8.2). On UC the request completes
    /// with its last packet.
    pub(super) fn send_payload(
        &mut self,
        wqe: &SendWqe,
        produced: u32,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let wr = &wqe.wr;
        let index = self.req.cur;
        let offset = self.req.offset;
        let mtu = self.attrs.mtu.bytes();
        let left = wr.length.saturating_sub(offset);
        let payload_len = left.min(mtu);
        let first = offset == 0;
        let last = left <= mtu;
        let mut bth = self.bth(
            operation(wr.op, first, last),
            self.req.psn,
            pad_of(payload_len),
            backend,
        );
        if last {
            bth.se = wr.flags.solicited && wr.op.is_solicitable();
        }
        let rc = self.service == Service::Rc;
        let since = self.req.since_ack_req.saturating_add(1);
        let next = index.wrapping_add(1);
        let queue_ends = last && Self::ends_at(next, produced, backend);
        let window_ends = self.req.in_flight().saturating_add(1) >= self.req.window.limit();
        bth.ack_req = rc && (queue_ends || window_ends || since >= ACK_EVERY || self.req.ack_now);
        let ack_req = bth.ack_req;
        let mut headers = Headers::new(bth);
        if first && matches!(wr.op, SendOp::Write | SendOp::WriteImm) {
            headers = headers.reth(wr.remote_addr, wr.rkey, wr.length);
        }
        if last && matches!(wr.op, SendOp::SendImm | SendOp::WriteImm) {
            headers = headers.imm(wr.imm);
        }
        if last && wr.op == SendOp::SendInv {
            headers = headers.ieth(wr.rkey);
        }
        let source = &*backend;
        let size = usize::try_from(payload_len).unwrap_or(0);
        tx.packet(Dest::Peer, &headers, size, |dst| {
            source.gather(index, offset, dst)
        })?;
        self.gso.on_request(self.req.psn, tx.gso_index());
        self.req.since_ack_req = if ack_req { 0 } else { since };
        self.req.ack_now &= !ack_req;
        self.req.psn = self.req.psn.next();
        if last {
            self.req.cur = next;
            self.req.offset = 0;
            if !rc {
                // UC: complete when it is sent.
                self.complete_oldest(wqe, WcStatus::Success, backend);
                self.note_drained();
            }
        } else {
            self.req.offset = offset.saturating_add(payload_len);
        }
        Ok(())
    }

    /// Requests the missing data of a READ, `max_len` bytes at most.
    pub(super) fn send_read(
        &mut self,
        wqe: &SendWqe,
        max_len: u32,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let wr = &wqe.wr;
        let placed = wqe.placed;
        let done = placed.checked_div(self.attrs.mtu.bytes()).unwrap_or(0);
        let psn = wqe.psns.first.wrapping_add(done);
        let bth = self.bth(Operation::ReadRequest, psn, 0, backend);
        let addr = wr.remote_addr.wrapping_add(u64::from(placed));
        let length = wr.length.saturating_sub(placed).min(max_len);
        let headers = Headers::new(bth).reth(addr, wr.rkey, length);
        tx.packet(Dest::Peer, &headers, 0, |_| Ok(()))?;
        self.gso.on_request(psn, tx.gso_index());
        Ok(())
    }

    pub(super) fn send_atomic(
        &mut self,
        wqe: &SendWqe,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let wr = &wqe.wr;
        let (operation, swap, compare) = match wr.op {
            SendOp::CmpSwp => (Operation::CmpSwap, wr.swap, wr.compare_add),
            _ => (Operation::FetchAdd, wr.compare_add, 0),
        };
        let bth = self.bth(operation, wqe.psns.first, 0, backend);
        let headers = Headers::new(bth).atomic_eth(wr.remote_addr, wr.rkey, swap, compare);
        tx.packet(Dest::Peer, &headers, 0, |_| Ok(()))?;
        self.gso.on_request(wqe.psns.first, tx.gso_index());
        Ok(())
    }

    /// Sends an ATOMIC WRITE or FLUSH.
    pub(super) fn send_placement(
        &mut self,
        index: u32,
        wqe: &SendWqe,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let wr = &wqe.wr;
        let (headers, size) = match wr.op {
            SendOp::AtomicWrite => {
                let bth = self.bth(Operation::AtomicWrite, wqe.psns.first, 0, backend);
                (Headers::new(bth), 8)
            }
            _ => {
                let bth = self.bth(Operation::Flush, wqe.psns.first, 0, backend);
                let kind = wr.flush();
                (Headers::new(bth).feth(kind.selectivity, kind.placement), 0)
            }
        };
        let headers = headers.reth(wr.remote_addr, wr.rkey, wr.length);
        let source = &*backend;
        tx.packet(Dest::Peer, &headers, size, |dst| {
            source.gather(index, 0, dst)
        })?;
        self.gso.on_request(wqe.psns.first, tx.gso_index());
        Ok(())
    }
}

/// The BTH operation of a packet of a SEND or WRITE (IBTA 9.7.3).
fn operation(op: SendOp, first: bool, last: bool) -> Operation {
    match (op, first, last) {
        (SendOp::Write | SendOp::WriteImm, true, false) => Operation::WriteFirst,
        (SendOp::Write | SendOp::WriteImm, false, false) => Operation::WriteMiddle,
        (SendOp::Write, false, true) => Operation::WriteLast,
        (SendOp::Write, true, true) => Operation::WriteOnly,
        (SendOp::WriteImm, false, true) => Operation::WriteLastImm,
        (SendOp::WriteImm, true, true) => Operation::WriteOnlyImm,
        (SendOp::SendImm, false, true) => Operation::SendLastImm,
        (SendOp::SendImm, true, true) => Operation::SendOnlyImm,
        (SendOp::SendInv, false, true) => Operation::SendLastInv,
        (SendOp::SendInv, true, true) => Operation::SendOnlyInv,
        (_, true, false) => Operation::SendFirst,
        (_, false, false) => Operation::SendMiddle,
        (_, false, true) => Operation::SendLast,
        (_, true, true) => Operation::SendOnly,
    }
}
