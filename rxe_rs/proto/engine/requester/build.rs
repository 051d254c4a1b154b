// SPDX-License-Identifier: GPL-2.0
//! Request packets: segmentation, headers, the AckReq bit.

use super::{packets, pad_of};
use crate::engine::attrs::{Service, State};
use crate::engine::backend::{Backend, Dest, LocalFault, Tx, TxFault};
use crate::engine::qp::Qp;
use crate::engine::repeat::{Mark, MAX_OFFERS};
use crate::engine::wc::WcStatus;
use crate::engine::window::CongestionWindow;
use crate::engine::wr::{RemoteAddr, SendBody, SendWqe};
use crate::ids::Psn;
use crate::time::Instant;
use crate::wire::bth::Bth;
use crate::wire::opcode::{Opcode, Operation, Transport};
use crate::wire::payload::Source;
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;
use crate::wire::rnr::ack_timeout_ns;

/// At least one of this many packets requests an acknowledgement.
const ACK_EVERY: u32 = 32;

/// If nobody waits for the completion of a request, it requests no acknowledgement within so many
/// nanoseconds of the last that did. The next such request follows, or the probe of `probe.rs`
/// makes up for it. So it is done only if round trips are shorter than that.
const ACK_WAIT_NS: u64 = 100_000;

/// Minimum acknowledgement timeout of a QP that does so, in nanoseconds: probes come before it.
const MIN_ACK_TIMEOUT_NS: u64 = 4_000_000;

/// The same with the `least` window, that is after losses, if packets are sent singly. If only the
/// last one of the window requested an acknowledgement and that was lost, nothing would follow
/// until the next probe. Packets of a GSO batch are lost together.
const fn ack_every_single(least: u32) -> u32 {
    if least > CongestionWindow::MIN {
        CongestionWindow::MIN
    } else {
        CongestionWindow::MIN / 2
    }
}

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

    /// The BTH of a request, with the mark if the peer keeps packets, or if a READ is repeated: its
    /// response shows whether the peer does.
    fn request_bth(&self, operation: Operation, psn: Psn, pad: u8, backend: &impl Backend) -> Bth {
        let mut bth = self.bth(operation, psn, pad, backend);
        let asks = operation == Operation::ReadRequest
            && self.req.window.is_recovering()
            && self.req.offers < MAX_OFFERS;
        if (self.req.marks_requests || asks) && !self.gso.is_suspect() {
            bth.resv7 = self.mark_bits();
        }
        bth
    }

    /// The reserved bits of a request that has a mark.
    fn mark_bits(&self) -> u8 {
        Mark::new(self.attrs.token, self.req.toggle).map_or(0, Mark::emit)
    }

    /// True if the next packet of a SEND or WRITE is sent for the first time, so may be merged.
    fn may_merge(&self) -> bool {
        self.service == Service::Rc
            && !self.req.window.is_recovering()
            && !self.req.is_repeating()
            && !self.req.ack_now
    }

    /// True if a request that is the last one in the queue, before the index `next`, need not
    /// request an acknowledgement ([`ACK_WAIT_NS`]).
    fn may_ack_later(
        &self,
        now: Instant,
        wqe: &SendWqe,
        next: u32,
        backend: &impl Backend,
    ) -> bool {
        let timeout = ack_timeout_ns(self.attrs.timeout);
        let srtt = self.req.prober.srtt_ns();
        let outstanding = next.wrapping_sub(self.req.una);
        !wqe.wr.flags.signaled
            && self.state == State::Rts
            && now < self.req.ack_requested_at.saturating_add(ACK_WAIT_NS)
            && !self.req.window.is_recovering()
            && outstanding <= backend.unacknowledged_limit()
            && srtt.is_some_and(|srtt| srtt < ACK_WAIT_NS)
            && timeout.is_none_or(|timeout| timeout >= MIN_ACK_TIMEOUT_NS)
    }

    /// Sends the next packet of a SEND or WRITE (IBTA 9.2, IBTA 9.8.2). On UC the request completes
    /// with its last packet.
    pub(super) fn send_payload(
        &mut self,
        now: Instant,
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
        let window_room = self.req.window.limit().saturating_sub(self.req.in_flight());
        let room = if self.may_merge() { window_room } else { 1 };
        let offer = |_| backend.offer(index);
        let (payload_len, by_reference) = self.req.merging.next_len(left, mtu, room, tx, offer);
        let count = packets(payload_len, mtu);
        let first = offset == 0;
        let last = left == payload_len;
        let mut bth = self.request_bth(
            operation(&wr.body, first, last),
            self.req.psn,
            pad_of(payload_len),
            backend,
        );
        if last {
            bth.se = wr.flags.solicited && wr.body.is_solicitable();
        }
        let rc = self.service == Service::Rc;
        let since = u32::from(self.req.since_ack_req).saturating_add(count);
        let next = index.wrapping_add(1);
        let queue_ends = last
            && Self::ends_at(next, produced, backend)
            && !(next == produced && self.may_ack_later(now, wqe, next, backend));
        let window_ends = window_room <= count;
        let small = self.req.window.limit() <= self.req.least_window();
        let often = match small && self.req.singles >= 2 {
            true => ack_every_single(self.req.least_window()),
            false => ACK_EVERY,
        };
        let repeat_ends = self.req.ends_repeat(self.req.psn.wrapping_add(count));
        bth.ack_req =
            rc && (queue_ends || window_ends || repeat_ends || since >= often || self.req.ack_now);
        let ack_req = bth.ack_req;
        let mut headers = Headers::new(bth);
        if first {
            if let SendBody::Write(to) | SendBody::WriteImm(to, _) = &wr.body {
                headers = headers.reth(to.addr, to.rkey, wr.length);
            }
        }
        if last {
            headers = match wr.body {
                SendBody::SendImm(imm) | SendBody::WriteImm(_, imm) => headers.imm(imm),
                SendBody::SendInv(key) => headers.ieth(key),
                _ => headers,
            };
        }
        let psn = self.req.psn;
        let source = &*backend;
        let merging = &mut self.req.merging;
        if by_reference {
            let reference = Reference {
                source: Source::Request { index, offset },
                len: payload_len,
                mtu,
            };
            merging.send_reference(&headers, psn, &reference, tx)?;
        } else {
            merging.send_packet(&headers, (psn, payload_len, mtu), tx, |from, dst| {
                source.gather(index, offset.saturating_add(from), dst)
            })?;
        }
        let gso_index = tx.gso_index();
        self.gso.on_request(self.req.psn, gso_index);
        self.req.singles = match gso_index {
            0 => self.req.singles.saturating_add(1),
            _ => 0,
        };
        if ack_req {
            self.req.ack_requested_at = now;
        }
        self.req.since_ack_req = match ack_req {
            true => 0,
            false => u16::try_from(since).unwrap_or(u16::MAX),
        };
        self.req.ack_now &= !ack_req;
        self.req.psn = self.req.psn.wrapping_add(count);
        self.req.note_sent();
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

    /// The BTH of a repeated request, behind which nothing is to be repeated.
    fn missing_bth(&self, operation: Operation, psn: Psn, backend: &impl Backend) -> Bth {
        let mut bth = self.bth(operation, psn, 0, backend);
        bth.resv7 = self.mark_bits();
        bth.ack_req = true;
        bth
    }

    /// Requests `count` packets of the response to a READ again, the first of them with `psn`.
    pub(super) fn send_missing_read(
        &mut self,
        wqe: &SendWqe,
        from: &RemoteAddr,
        psn: Psn,
        count: u32,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let mtu = self.attrs.mtu.bytes();
        let before = u32::try_from(psn.delta(wqe.psns.first)).unwrap_or(0);
        let skipped = before.saturating_mul(mtu);
        let length = wqe.wr.length.saturating_sub(skipped);
        let length = length.min(count.saturating_mul(mtu));
        let addr = from.addr.wrapping_add(u64::from(skipped));
        let bth = self.missing_bth(Operation::ReadRequest, psn, backend);
        let headers = Headers::new(bth).reth(addr, from.rkey, length);
        tx.packet(Dest::Peer, &headers, 0, |_| Ok(()))?;
        self.gso.on_request(psn, tx.gso_index());
        Ok(())
    }

    /// Requests the missing data of a READ, `max_len` bytes at most.
    pub(super) fn send_read(
        &mut self,
        wqe: &SendWqe,
        from: &RemoteAddr,
        max_len: u32,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let wr = &wqe.wr;
        let placed = wqe.placed;
        let psn = self.expected_response(wqe);
        let bth = self.request_bth(Operation::ReadRequest, psn, 0, backend);
        let addr = from.addr.wrapping_add(u64::from(placed));
        let length = wr.length.saturating_sub(placed).min(max_len);
        let headers = Headers::new(bth).reth(addr, from.rkey, length);
        tx.packet(Dest::Peer, &headers, 0, |_| Ok(()))?;
        self.gso.on_request(psn, tx.gso_index());
        if bth.resv7 != 0 && !self.req.marks_requests {
            self.req.offers = self.req.offers.saturating_add(1);
        }
        Ok(())
    }

    /// Sends a request of a single packet that has a response: ATOMIC, ATOMIC WRITE or FLUSH.
    /// `missing` if its response is missing, but later ones are kept.
    pub(super) fn send_single(
        &mut self,
        index: u32,
        wqe: &SendWqe,
        missing: bool,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<LocalFault>> {
        let length = wqe.wr.length;
        let psn = wqe.psns.first;
        let begin = |operation| {
            Headers::new(match missing {
                true => self.missing_bth(operation, psn, backend),
                false => self.request_bth(operation, psn, 0, backend),
            })
        };
        let (headers, size) = match wqe.wr.body {
            SendBody::CmpSwp { at, compare, swap } => {
                let headers = begin(Operation::CmpSwap);
                (headers.atomic_eth(at.addr, at.rkey, swap, compare), 0)
            }
            SendBody::FetchAdd { at, add } => {
                let headers = begin(Operation::FetchAdd);
                (headers.atomic_eth(at.addr, at.rkey, add, 0), 0)
            }
            SendBody::AtomicWrite(at) => {
                let headers = begin(Operation::AtomicWrite);
                (headers.reth(at.addr, at.rkey, length), 8)
            }
            SendBody::Flush(at, kind) => {
                let headers = begin(Operation::Flush).feth(kind.selectivity, kind.placement);
                (headers.reth(at.addr, at.rkey, length), 0)
            }
            _ => return Err(TxFault::Unreachable),
        };
        let source = &*backend;
        tx.packet(Dest::Peer, &headers, size, |dst| {
            if dst.is_empty() {
                return Ok(());
            }
            source.gather(index, 0, dst)
        })?;
        self.gso.on_request(psn, tx.gso_index());
        Ok(())
    }
}

/// The BTH operation of a packet of a SEND or WRITE (IBTA 9.7.3).
fn operation(body: &SendBody, first: bool, last: bool) -> Operation {
    match (body, first, last) {
        (SendBody::Write(_) | SendBody::WriteImm(..), true, false) => Operation::WriteFirst,
        (SendBody::Write(_) | SendBody::WriteImm(..), false, false) => Operation::WriteMiddle,
        (SendBody::Write(_), false, true) => Operation::WriteLast,
        (SendBody::Write(_), true, true) => Operation::WriteOnly,
        (SendBody::WriteImm(..), false, true) => Operation::WriteLastImm,
        (SendBody::WriteImm(..), true, true) => Operation::WriteOnlyImm,
        (SendBody::SendImm(_), false, true) => Operation::SendLastImm,
        (SendBody::SendImm(_), true, true) => Operation::SendOnlyImm,
        (SendBody::SendInv(_), false, true) => Operation::SendLastInv,
        (SendBody::SendInv(_), true, true) => Operation::SendOnlyInv,
        (_, true, false) => Operation::SendFirst,
        (_, false, false) => Operation::SendMiddle,
        (_, false, true) => Operation::SendLast,
        (_, true, true) => Operation::SendOnly,
    }
}
