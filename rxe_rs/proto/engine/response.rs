// SPDX-License-Identifier: GPL-2.0
//! Pending responses: READ data, ATOMIC results, ACKs and NAKs, in order.

use super::attrs::{Progress, State};
use super::backend::{Backend, Count, Dest, RemoteFault, Tx, TxFault};
use super::congestion::Meter;
use super::qp::Qp;
use super::requester::pad_of;
use crate::ids::{Msn, Psn, RKey};
use crate::time::Instant;
use crate::wire::aeth::{Aeth, NakCode, Syndrome};
use crate::wire::bth::Bth;
use crate::wire::opcode::Operation;
use crate::wire::payload::Source;
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;

/// Payload of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResponseBody {
    /// `len - sent` bytes of READ data remain.
    Read {
        /// Key of the region read.
        rkey: RKey,
        /// Start of the data.
        addr: u64,
        /// Number of bytes requested, up to 2^31.
        len: u32,
        /// Number of bytes sent, up to `len`.
        sent: u32,
    },
    /// The value before an ATOMIC.
    Atomic {
        /// The value before the operation.
        original: u64,
    },
    /// No payload: ATOMIC WRITE and FLUSH.
    Done,
}

/// A response to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingResponse {
    pub(super) psn: Psn,
    pub(super) msn: Msn,
    pub(super) body: ResponseBody,
    /// Counts against the responder resources; responses to duplicates do not.
    pub(super) first_time: bool,
}

impl PendingResponse {
    /// The value of unused slots.
    pub const EMPTY: Self = Self {
        psn: Psn::new(0),
        msn: Msn::new(0),
        body: ResponseBody::Atomic { original: 0 },
        first_time: false,
    };
}

impl PendingResponse {
    /// PSN of the next packet of the response.
    fn next(&self, mtu: u32) -> Psn {
        match self.body {
            ResponseBody::Read { sent, .. } => {
                self.psn.wrapping_add(sent.checked_div(mtu).unwrap_or(0))
            }
            ResponseBody::Atomic { .. } | ResponseBody::Done => self.psn,
        }
    }

    /// PSN of the last packet of the response.
    fn last(&self, mtu: u32) -> Psn {
        match self.body {
            ResponseBody::Read { len, .. } => {
                let more = len.saturating_sub(1).checked_div(mtu).unwrap_or(0);
                self.psn.wrapping_add(more)
            }
            ResponseBody::Atomic { .. } | ResponseBody::Done => self.psn,
        }
    }
}

/// FIFO of pending responses, a ring over slots that the owner of the QP provides.
#[derive(Debug)]
pub(super) struct ResponseQueue {
    /// Slot of the oldest response, and number of responses.
    head: usize,
    len: usize,
    /// Responses in the queue that do not answer duplicates.
    pub(super) first_time: u32,
}

impl ResponseQueue {
    pub(super) const fn new() -> Self {
        Self {
            head: 0,
            len: 0,
            first_time: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `response`; false if there is no room. `resources` is the number of responder
    /// resources.
    pub(super) fn push(
        &mut self,
        slots: &mut [PendingResponse],
        response: PendingResponse,
        resources: u8,
    ) -> bool {
        if self.len >= slots.len() {
            return false;
        }
        // Responses to duplicates may not take the room of first responses, whose number the
        // responder resources limit.
        let first_time = usize::try_from(self.first_time).unwrap_or(usize::MAX);
        let replays = self.len.saturating_sub(first_time);
        let room = slots.len().saturating_sub(usize::from(resources));
        if !response.first_time && replays >= room {
            return false;
        }
        let mut at = self.head.saturating_add(self.len);
        if at >= slots.len() {
            at = at.saturating_sub(slots.len());
        }
        let Some(slot) = slots.get_mut(at) else {
            return false;
        };
        *slot = response;
        self.len = self.len.saturating_add(1);
        if response.first_time {
            self.first_time = self.first_time.saturating_add(1);
        }
        true
    }

    pub(super) fn front<'a>(
        &self,
        slots: &'a mut [PendingResponse],
    ) -> Option<&'a mut PendingResponse> {
        if self.is_empty() {
            return None;
        }
        slots.get_mut(self.head)
    }

    pub(super) fn pop(&mut self, slots: &mut [PendingResponse]) {
        let Some(response) = self.front(slots) else {
            return;
        };
        if response.first_time {
            self.first_time = self.first_time.saturating_sub(1);
        }
        self.len = self.len.saturating_sub(1);
        self.head = self.head.saturating_add(1);
        if self.head >= slots.len() {
            self.head = 0;
        }
    }

    /// The slot of the response `back` positions before the newest.
    fn slot(&self, slots: &[PendingResponse], back: usize) -> Option<usize> {
        let ahead = self.len.checked_sub(back)?.checked_sub(1)?;
        let mut at = self.head.saturating_add(ahead);
        if at >= slots.len() {
            at = at.saturating_sub(slots.len());
        }
        (at < slots.len()).then_some(at)
    }

    /// The response `back` positions before the newest.
    fn nth_back(&self, slots: &[PendingResponse], back: usize) -> Option<PendingResponse> {
        slots.get(self.slot(slots, back)?).copied()
    }

    /// True if the response packet `psn` has not been sent yet.
    pub(super) fn is_pending(&self, slots: &[PendingResponse], psn: Psn, mtu: u32) -> bool {
        let mut back = 0;
        while let Some(response) = self.nth_back(slots, back) {
            if response.last(mtu).is_before(psn) {
                return false;
            }
            if !psn.is_before(response.next(mtu)) {
                return true;
            }
            back = usize::saturating_add(back, 1);
        }
        false
    }

    /// True if no pending response reaches `psn`.
    pub(super) fn ends_before(&self, slots: &[PendingResponse], psn: Psn, mtu: u32) -> bool {
        self.nth_back(slots, 0)
            .is_none_or(|newest| newest.last(mtu).is_before(psn))
    }

    /// Inserts `response` before those with later PSNs; false if there is no room.
    pub(super) fn insert(
        &mut self,
        slots: &mut [PendingResponse],
        response: PendingResponse,
        resources: u8,
        mtu: u32,
    ) -> bool {
        if !self.push(slots, response, resources) {
            return false;
        }
        let mut back = 0;
        loop {
            let (at, before) = (
                self.slot(slots, back),
                self.slot(slots, usize::saturating_add(back, 1)),
            );
            let (Some(at), Some(before)) = (at, before) else {
                return true;
            };
            let later = slots.get(before);
            if later.is_none_or(|later| !response.psn.is_before(later.next(mtu))) {
                return true;
            }
            let (one, other) = (slots.get(at).copied(), slots.get(before).copied());
            if let (Some(slot), Some(other)) = (slots.get_mut(at), other) {
                *slot = other;
            }
            if let (Some(slot), Some(one)) = (slots.get_mut(before), one) {
                *slot = one;
            }
            back = usize::saturating_add(back, 1);
        }
    }

    /// Replaces the pending response that `response` repeats, from a packet on that has been sent
    /// already; false if there is none.
    pub(super) fn repeat(
        &mut self,
        slots: &mut [PendingResponse],
        response: PendingResponse,
        mtu: u32,
    ) -> bool {
        let mut back = 0;
        while let Some(at) = self.slot(slots, back) {
            let Some(pending) = slots.get_mut(at) else {
                return false;
            };
            if pending.last(mtu).is_before(response.psn) {
                return false;
            }
            if !response.psn.is_before(pending.psn) {
                if pending.first_time {
                    self.first_time = self.first_time.saturating_sub(1);
                }
                *pending = response;
                return true;
            }
            back = usize::saturating_add(back, 1);
        }
        false
    }

    /// Moves the queue from the slots `from` to the slots `to`. What does not fit is dropped, the
    /// newest first.
    pub(super) fn move_slots(&mut self, from: &mut [PendingResponse], to: &mut [PendingResponse]) {
        let mut moved = Self::new();
        for slot in to {
            let Some(response) = self.front(from) else {
                break;
            };
            *slot = *response;
            moved.len = moved.len.saturating_add(1);
            moved.first_time = moved
                .first_time
                .saturating_add(u32::from(response.first_time));
            self.pop(from);
        }
        *self = moved;
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// Result of sending one response packet.
enum ResponseOutcome {
    Sent,
    Busy,
    /// The memory of a READ caused a page fault.
    PageFault,
    /// The memory of a READ is no longer accessible.
    Refused,
}

impl Qp {
    /// Sends pending responses (IBTA 9.5). Pacing applies to READ data only; ACKs and NAKs wait
    /// only for the READ data before them.
    pub(super) fn transmit_responses<T: Tx>(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut Meter<'_, T>,
    ) -> Progress {
        let may_respond = matches!(self.state, State::Rtr | State::Rts | State::Sqd)
            || (self.state == State::Err && self.resp.closing);
        if !may_respond {
            return Progress::Idle;
        }
        while let Some(response) = self
            .resp
            .pending
            .front(backend.storage().pending)
            .map(|response| *response)
        {
            let is_data = matches!(response.body, ResponseBody::Read { .. });
            let sent = if is_data {
                if !tx.has_room() {
                    if tx.is_spent() {
                        self.send_ack_before(now, &response, backend, tx.unlimited());
                    }
                    return Progress::More;
                }
                let before = tx.sent;
                let sent = self.send_response(&response, backend, tx);
                // It counts as delivered: no acknowledgement will show when it is.
                self.pacer
                    .on_acknowledged(now, tx.sent.saturating_sub(before));
                sent
            } else {
                let tx = tx.unlimited();
                if !tx.has_room() {
                    return Progress::More;
                }
                self.send_response(&response, backend, tx)
            };
            match sent {
                ResponseOutcome::Sent => {}
                ResponseOutcome::Busy => {
                    self.pause(now);
                    return Progress::Idle;
                }
                // Responses stay in order.
                ResponseOutcome::PageFault => {
                    let tx = tx.unlimited();
                    if tx.has_room() {
                        self.send_ack_before(now, &response, backend, tx);
                    }
                    return Progress::Idle;
                }
                ResponseOutcome::Refused => {
                    // The region was invalidated after the request had been accepted.
                    let psn = match response.body {
                        ResponseBody::Read { sent, .. } => self.read_psn(response.psn, sent),
                        ResponseBody::Atomic { .. } | ResponseBody::Done => response.psn,
                    };
                    if !response.first_time {
                        let tx = tx.unlimited();
                        self.refuse_duplicate(now, psn, response.msn, backend, tx);
                        continue;
                    }
                    backend.count(Count::RemoteAccessError);
                    self.events.access_error = true;
                    self.nak_and_fail(psn, response.msn, NakCode::RemoteAccess, backend);
                }
            }
        }
        if self.delayed_ack_deadline().is_some() {
            return Progress::Idle;
        }
        let tx = tx.unlimited();
        while self.resp.ack.is_some() {
            if !tx.has_room() {
                return Progress::More;
            }
            if !self.send_ack(now, backend, tx) {
                return Progress::Idle;
            }
        }
        self.resp.closing = false;
        Progress::Idle
    }

    /// Answers a duplicate of a READ (IBTA 9.7.5.1), which the oldest pending response is for, by a
    /// NAK for `psn`, because the memory cannot be read any more.
    ///
    /// The consumer may use the memory for something else as soon as the peer has the data. The
    /// peer ignores the NAK then, as it is for a PSN that has been acknowledged, and the connection
    /// goes on. A peer that still waits for the data ends it. An ACK of later requests is not
    /// replaced: it makes such a peer ask again, and so does the rest of the response to a later
    /// READ, in the midst of which rdma_rxe would take the NAK for that READ's.
    #[cold]
    fn refuse_duplicate(
        &mut self,
        now: Instant,
        psn: Psn,
        msn: Msn,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) {
        let slots = backend.storage().pending;
        self.resp.pending.pop(slots);
        let next = self.resp.pending.front(slots).map(|next| next.body);
        let amid_read = matches!(next, Some(ResponseBody::Read { sent: 1.., .. }));
        if self.resp.ack.is_none() && !amid_read {
            let nak = Syndrome::Nak(NakCode::RemoteAccess);
            self.transmit_ack(now, psn, nak, msn, backend, tx);
        }
    }

    /// Sends the pending ACK or NAK, if any, or the ACK that goes before the NAK (IBTA 9.7.5.1.2).
    /// False if it must be retried.
    fn send_ack(&mut self, now: Instant, backend: &mut impl Backend, tx: &mut impl Tx) -> bool {
        let Some((psn, syndrome)) = self.resp.ack else {
            return true;
        };
        if self.resp.owes_ack_before(syndrome) {
            let (newest, msn) = self.resp.acknowledgeable;
            let sent = self.transmit_ack(now, newest, Syndrome::ACK, msn, backend, tx);
            if sent {
                self.resp.ack = Some((psn, syndrome));
            }
            return sent;
        }
        // An ACK names the newest executed request, not the one with the AckReq bit: all responses
        // up to it have been sent, and the MSN must match (`completer/validate.rs` checks it). It
        // does not name a READ or ATOMIC behind that, whose response may have been lost: to
        // rdma_rxe an ACK for a READ of one packet completes it.
        let (psn, msn) = match syndrome {
            Syndrome::Ack { .. } => self.resp.acknowledgeable,
            _ => (psn, self.resp.msn),
        };
        self.transmit_ack(now, psn, syndrome, msn, backend, tx)
    }

    /// Sends the pending ACK for the requests before a READ whose data waits for pacing or for a
    /// page, with the MSN of those. Not needed once the first data is sent, which acknowledges the
    /// same.
    fn send_ack_before(
        &mut self,
        now: Instant,
        response: &PendingResponse,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) {
        let begun = !matches!(response.body, ResponseBody::Read { sent: 0, .. });
        let Some((_, syndrome @ Syndrome::Ack { .. })) = self.resp.ack else {
            return;
        };
        // Not what is right before the READ: that may be another READ or an ATOMIC, see above.
        let (psn, msn) = self.resp.acknowledgeable;
        if response.first_time && !begun && psn.is_before(response.psn) {
            self.transmit_ack(now, psn, syndrome, msn, backend, tx);
        }
    }

    /// Sends an acknowledge packet; returns as [`send_ack`](Self::send_ack).
    fn transmit_ack(
        &mut self,
        now: Instant,
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> bool {
        let mut bth = self.bth(Operation::Acknowledge, psn, 0, backend);
        let is_sequence_nak =
            syndrome == Syndrome::Nak(NakCode::PsnSequence) && self.attrs.token != 0;
        if is_sequence_nak {
            bth.resv7 = self.resp.kept.nak_says().emit();
        }
        let headers = Headers::new(bth).aeth(Aeth::new(syndrome, msn));
        match tx.packet(Dest::Peer, &headers, 0, |_| Ok::<(), RemoteFault>(())) {
            Err(TxFault::Busy) => {
                self.pause(now);
                return false;
            }
            Ok(()) => self.gso.on_ack(psn, tx.gso_index()),
            // If it cannot be sent at all, the timer of the peer expires.
            Err(_) => {}
        }
        if is_sequence_nak && !self.resp.repeats_nak() {
            self.resp.kept.on_nak_sent();
        }
        self.resp.on_ack_sent(match syndrome {
            Syndrome::Ack { .. } => psn.next(),
            _ => psn,
        });
        self.resp.ack_postponed = false;
        true
    }

    /// The BTH of data, with the token of the peer, which shows that it comes from this QP.
    fn data_bth(&self, operation: Operation, psn: Psn, pad: u8, backend: &impl Backend) -> Bth {
        let mut bth = self.bth(operation, psn, pad, backend);
        if self.attrs.token != 0 && !self.gso.is_suspect() {
            bth.resv7 = self.resp.kept.token();
        }
        bth
    }

    fn read_psn(&self, first: Psn, sent: u32) -> Psn {
        first.wrapping_add(sent.checked_div(self.attrs.mtu.bytes()).unwrap_or(0))
    }

    /// Sends one packet of the oldest pending response: all of it, or the next part of READ data.
    fn send_response(
        &mut self,
        response: &PendingResponse,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> ResponseOutcome {
        let ack = Aeth::new(Syndrome::ACK, response.msn);
        match response.body {
            ResponseBody::Atomic { .. } | ResponseBody::Done => {
                let headers = match response.body {
                    ResponseBody::Atomic { original } => {
                        let bth = self.data_bth(Operation::AtomicAck, response.psn, 0, backend);
                        Headers::new(bth).aeth(ack).atomic_ack(original)
                    }
                    _ => {
                        let bth = self.data_bth(Operation::ReadRespOnly, response.psn, 0, backend);
                        Headers::new(bth).aeth(ack)
                    }
                };
                match tx.packet(Dest::Peer, &headers, 0, |_| Ok::<(), RemoteFault>(())) {
                    Err(TxFault::Busy) => return ResponseOutcome::Busy,
                    Ok(()) | Err(_) => self.resp.pending.pop(backend.storage().pending),
                }
            }
            ResponseBody::Read {
                rkey,
                addr,
                len,
                sent,
            } => {
                // The consumer may have withdrawn the right since the request was accepted.
                if len > 0 && !self.attrs.remote_read {
                    return ResponseOutcome::Refused;
                }
                let mtu = self.attrs.mtu.bytes();
                let left = len.saturating_sub(sent);
                // What is sent for the first time may be merged.
                let room = if response.first_time { u32::MAX } else { 1 };
                let from = addr.wrapping_add(u64::from(sent));
                // The consumer may use the memory for something else after an error.
                let may_refer = self.state != State::Err;
                let offer = |len| may_refer && backend.offer_region(rkey, from, len);
                let (payload_len, by_reference) =
                    self.resp.merging.next_len(left, mtu, room, tx, offer);
                let operation = match (sent == 0, left == payload_len) {
                    (true, true) => Operation::ReadRespOnly,
                    (true, false) => Operation::ReadRespFirst,
                    (false, false) => Operation::ReadRespMiddle,
                    (false, true) => Operation::ReadRespLast,
                };
                let psn = self.read_psn(response.psn, sent);
                let bth = self.data_bth(operation, psn, pad_of(payload_len), backend);
                let mut headers = Headers::new(bth);
                if operation != Operation::ReadRespMiddle {
                    headers = headers.aeth(ack);
                }
                let source = &*backend;
                let fill = |offset: u32, dst: &mut [u8]| {
                    if dst.is_empty() {
                        return Ok(());
                    }
                    source.remote_read(rkey, from.wrapping_add(u64::from(offset)), dst)
                };
                let merging = &mut self.resp.merging;
                let result = if by_reference {
                    let source = Source::Region {
                        key: rkey,
                        addr: from,
                    };
                    let reference = Reference {
                        source,
                        len: payload_len,
                        mtu,
                    };
                    merging.send_reference(&headers, psn, &reference, tx)
                } else {
                    merging.send_packet(&headers, (psn, payload_len, mtu), tx, fill)
                };
                match result {
                    Ok(()) => {
                        self.gso.on_response(psn, tx.gso_index());
                        if matches!(self.resp.ack, Some((before, Syndrome::Ack { .. })) if before.is_before(response.psn))
                        {
                            self.drop_ack();
                        }
                    }
                    Err(TxFault::Busy) => return ResponseOutcome::Busy,
                    Err(TxFault::Fill(RemoteFault::NotPresent)) => {
                        return ResponseOutcome::PageFault
                    }
                    Err(TxFault::Fill(RemoteFault::Refused | RemoteFault::Gone)) => {
                        return ResponseOutcome::Refused
                    }
                    Err(TxFault::Unreachable) => {
                        self.resp.pending.pop(backend.storage().pending);
                        return ResponseOutcome::Sent;
                    }
                }
                if left == payload_len {
                    self.resp.pending.pop(backend.storage().pending);
                } else if let Some(response) = self.resp.pending.front(backend.storage().pending) {
                    let sent = sent.saturating_add(payload_len);
                    response.body = ResponseBody::Read {
                        rkey,
                        addr,
                        len,
                        sent,
                    };
                }
            }
        }
        ResponseOutcome::Sent
    }
}
