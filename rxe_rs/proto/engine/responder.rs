// SPDX-License-Identifier: GPL-2.0
//! Responder: requests of an RC peer (sequence, NAKs, READs). Submodules: SENDs and WRITEs
//! (`message`), ATOMICs and ATOMIC WRITE (`atomic`), FLUSH (`flush`), duplicate requests
//! (`replay`), requests ahead of the expected PSN (`gap`).

mod atomic;
mod flush;
mod gap;
mod message;
mod replay;

use super::backend::{Backend, Count, Handled, RemoteFault, RemoteRight};
use super::delayed_ack::DelayedAck;
use super::merge::Merging;
use super::qp::Qp;
use super::repeat::{KeptRequests, Mark, MAX_AHEAD};
use super::requester::packets;
use super::response::{PendingResponse, ResponseBody, ResponseQueue};
use super::wc::{Wc, WcStatus};
use super::wr::{RecvWr, MAX_MESSAGE};
use crate::ids::{Msn, Psn, RKey};
use crate::time::Instant;
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::bth::Bth;
use crate::wire::opcode::{Operation, PayloadRule};
use crate::wire::packet::{Packet, Payload};
use flush::PartialFlush;
use gap::{Gap, NakSuppression};
pub use replay::ReplayEntry;
use replay::{takes_resource, Replayed};

/// The message being received.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// Between messages.
    None,
    /// A SEND; `placed` bytes have been scattered.
    Send { placed: u32 },
    /// An RDMA WRITE.
    Write {
        rkey: RKey,
        addr: u64,
        left: u32,
        total: u32,
    },
}

/// The outstanding NAK for the expected PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NakState {
    None,
    /// PSN sequence error: the expected packet is missing.
    Sequence(Gap),
    /// RNR: no receive was posted.
    Rnr,
}

impl NakState {
    /// The open gap, if the expected packet is missing.
    #[inline]
    const fn gap(&self) -> Option<&Gap> {
        match self {
            Self::Sequence(gap) => Some(gap),
            Self::None | Self::Rnr => None,
        }
    }
}

/// Responder state of a QP.
#[derive(Debug)]
pub(super) struct Responder {
    /// Expected PSN; [`advance`](Self::advance) moves it.
    pub(super) epsn: Psn,
    /// Expected PSN extended to 64 bits from an arbitrary start, so that it never wraps: replay
    /// entries are found by it.
    extended_psn: u64,
    pub(super) msn: Msn,
    /// The outstanding NAK; no other is sent for `epsn`.
    nak_state: NakState,
    nak_suppression: NakSuppression,
    /// Requests ahead of the expected one that are kept.
    pub(super) kept: KeptRequests,
    pub(super) message: Message,
    /// Whether READ responses may be merged.
    pub(super) merging: Merging,
    /// Receive WQE of the current message.
    pub(super) recv: Option<RecvWr>,
    pub(super) pending: ResponseQueue,
    /// ACK or NAK to send after all pending responses.
    pub(super) ack: Option<(Psn, Syndrome)>,
    /// It is a NAK in place of an ACK, which is owed if the NAK becomes obsolete.
    ack_replaced: bool,
    /// What an ACK names: the newest executed packet of a SEND or WRITE, and the MSN then. Only its
    /// response acknowledges a READ or ATOMIC.
    pub(super) acknowledgeable: (Psn, Msn),
    /// That has been acknowledged, or the response to a later request will acknowledge it.
    acknowledged: bool,
    /// The peer has sent a READ.
    has_read: bool,
    /// The ACK has let requests go first: it is not to wait again.
    pub(super) ack_postponed: bool,
    /// The responses have filled a transmission round: requests go first in the next one.
    pub(super) left_no_room: bool,
    /// Whether the ACK waits for a reply of the consumer.
    pub(super) delayed_ack: DelayedAck,
    /// The QP is in ERR, but the pending responses and the NAK are still sent.
    pub(super) closing: bool,
    /// The expected request if it is a FLUSH in progress, and the address up to which it is done.
    partial_flush: Option<(PartialFlush, u64)>,
    /// Slot of the replay entry that is replaced next.
    next_replay: usize,
}

/// Why a request was not executed.
pub(super) enum RequestFault {
    /// No receive is posted.
    Rnr,
    /// It causes a page fault or takes long; the state is unchanged.
    Deferred,
    /// Its payload can no longer be copied from the memory of the peer; the state is unchanged.
    Gone,
    /// The request is refused with a NAK and the QP enters ERR; a receive WQE in use completes
    /// with the status.
    Nak(NakCode, WcStatus),
}

const INVALID: RequestFault = RequestFault::Nak(NakCode::InvalidRequest, WcStatus::WrFlushErr);
/// A key that cannot be invalidated: a class J fault (IBTA 9.9.3), which completes locally as
/// an invalid request error and at the peer as a remote access error.
const BAD_INVALIDATE: RequestFault =
    RequestFault::Nak(NakCode::RemoteAccess, WcStatus::RemInvReqErr);
/// The key does not grant the access (IBTA 9.7.5.2.4).
const NO_ACCESS: RequestFault = RequestFault::Nak(NakCode::RemoteAccess, WcStatus::LocAccessErr);

impl From<RemoteFault> for RequestFault {
    fn from(fault: RemoteFault) -> Self {
        match fault {
            RemoteFault::Refused => NO_ACCESS,
            RemoteFault::NotPresent => Self::Deferred,
            RemoteFault::Gone => Self::Gone,
        }
    }
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            epsn: Psn::new(0),
            extended_psn: 0,
            msn: Msn::new(0),
            nak_state: NakState::None,
            nak_suppression: NakSuppression::new(),
            kept: KeptRequests::new(),
            message: Message::None,
            merging: Merging::new(),
            recv: None,
            pending: ResponseQueue::new(),
            ack: None,
            ack_replaced: false,
            acknowledgeable: (Psn::new(0), Msn::new(0)),
            acknowledged: true,
            has_read: false,
            ack_postponed: false,
            left_no_room: false,
            delayed_ack: DelayedAck::new(),
            closing: false,
            partial_flush: None,
            next_replay: 0,
        }
    }

    /// A NAK is to be sent, which also acknowledges everything before `psn`.
    pub(super) fn owe_nak(&mut self, psn: Psn, nak: Syndrome) {
        self.ack_replaced |= matches!(self.ack, Some((_, Syndrome::Ack { .. })));
        self.ack = Some((psn, nak));
    }

    /// Drops the pending NAK, if any: it is obsolete, the expected request has arrived. If it
    /// stands for an ACK as well, that is still to be sent (IBTA 9.7.5.1.2).
    #[inline]
    fn drop_nak(&mut self) {
        if let Some((_, Syndrome::Nak(_) | Syndrome::RnrNak { .. })) = self.ack {
            let (newest, _) = self.acknowledgeable;
            self.ack = core::mem::take(&mut self.ack_replaced).then_some((newest, Syndrome::ACK));
        }
    }

    /// True if the peer may be one that takes nothing but an ACK as progress (`gap`), and is none
    /// that an ACK can harm.
    fn shows_progress(&self) -> bool {
        self.kept.peer_is_unknown() && !self.has_read
    }

    /// True if an ACK is to be sent before the PSN sequence error NAK that is owed: it acknowledges
    /// packets, and the peer may take nothing but an ACK as progress.
    pub(super) fn owes_ack_before(&self, nak: Syndrome) -> bool {
        nak == Syndrome::Nak(NakCode::PsnSequence) && self.shows_progress() && !self.acknowledged
    }

    /// True if the NAK that is owed, or was sent last, is a repeated one.
    pub(super) fn repeats_nak(&self) -> bool {
        self.nak_state.gap().is_some_and(Gap::is_repeated)
    }

    /// An ACK or NAK has been sent, which acknowledges everything before `psn`.
    pub(super) fn on_ack_sent(&mut self, psn: Psn) {
        self.acknowledged |= self.acknowledgeable.0.is_before(psn);
        self.answered();
    }

    /// What was to be sent has been, or a response that acknowledges the same.
    pub(super) fn answered(&mut self) {
        self.ack = None;
        self.ack_replaced = false;
    }

    /// Advances the expected PSN by `count`.
    pub(super) fn advance(&mut self, count: u32) {
        self.epsn = self.epsn.wrapping_add(count);
        self.extended_psn = self.extended_psn.wrapping_add(count.into());
        self.kept.advance(count, self.epsn);
    }

    /// Sets the expected PSN.
    pub(super) fn expect(&mut self, psn: Psn) {
        let ahead = psn.wrapping_add(0u32.wrapping_sub(self.epsn.get()));
        self.advance(ahead.get());
        self.acknowledgeable = (psn.prev(), self.msn);
        self.acknowledged = true;
    }

    /// Drops all pending responses, ACKs and NAKs.
    pub(super) fn stop(&mut self) {
        self.pending.clear();
        self.ack = None;
        self.closing = false;
        self.kept.clear();
    }

    /// Aborts the current message; returns its receive WQE.
    pub(super) fn abort_message(&mut self) -> Option<RecvWr> {
        self.message = Message::None;
        self.recv.take()
    }
}

impl Qp {
    /// Handles a request packet of an RC connection (IBTA 9.7.4.1, IBTA 9.7.5.2.8).
    pub(super) fn handle_request(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Handled {
        let bth = packet.bth();
        let psn = bth.psn;
        if psn != self.resp.epsn {
            if psn.is_before(self.resp.epsn) {
                backend.count(Count::DuplicateRequest);
                self.handle_duplicate(now, packet, backend);
            } else {
                return self.out_of_sequence(now, bth, backend);
            }
            return Handled::Done;
        }
        let mark = self.request_mark(bth);
        if !self.resp.kept.accepts(mark) {
            backend.count(Count::SuspectMark);
            return Handled::Done;
        }
        match self.execute(packet, payload, backend) {
            Ok(()) => {
                let mut answers_nak = false;
                if let Some(gap) = self.resp.nak_state.gap() {
                    answers_nak = gap.has_been_reported();
                    self.resp.nak_suppression.on_gap_closed(now, gap);
                }
                self.resp.nak_state = NakState::None;
                self.resp.kept.learn(mark);
                let shows_progress = answers_nak && self.resp.shows_progress();
                let takes_resource = takes_resource(packet.opcode().operation());
                // The response acknowledges everything before it.
                self.resp.acknowledged = takes_resource;
                if !takes_resource {
                    self.resp.acknowledgeable = (self.resp.epsn.prev(), self.resp.msn);
                }
                if (bth.ack_req || shows_progress) && !takes_resource {
                    self.resp.ack = Some((psn, Syndrome::ACK));
                    self.resp.ack_replaced = false;
                    let last = packet.opcode().ends_message();
                    let may_wait = last && !backend.wakes_process();
                    self.resp.delayed_ack.on_request(now, may_wait);
                } else {
                    self.resp.drop_nak();
                }
                if self.resp.kept.has_new_gap(self.resp.epsn) {
                    self.ask_for_gap(now, MAX_AHEAD, backend);
                }
            }
            Err(RequestFault::Deferred) => {
                // It has arrived: a NAK, even if it is delayed, must not request it again.
                self.resp.nak_state = NakState::None;
                self.resp.drop_nak();
                return Handled::Deferred;
            }
            Err(RequestFault::Gone) => backend.count(Count::ReferenceGone),
            Err(RequestFault::Rnr) => {
                backend.count(Count::RnrNakSent);
                self.resp.nak_state = NakState::Rnr;
                let timer = self.attrs.min_rnr_timer;
                self.resp.owe_nak(psn, Syndrome::RnrNak { timer });
            }
            Err(RequestFault::Nak(code, status)) => {
                match code {
                    NakCode::RemoteAccess => backend.count(Count::RemoteAccessError),
                    NakCode::InvalidRequest => backend.count(Count::RemoteInvalidRequest),
                    _ => {}
                }
                backend.entering_error();
                if let Some(wr) = self.resp.recv.take() {
                    let wc = Wc::recv_error(wr.wr_id, status, self.attrs.qpn.get());
                    backend.complete_recv(&wc);
                } else {
                    self.raise_error_event(code);
                }
                self.resp.closing = true;
                self.resp.ack = Some((psn, Syndrome::Nak(code)));
                self.enter_error(backend);
            }
        }
        Handled::Done
    }

    /// The mark of a request; `None` if marks are not used.
    fn request_mark(&self, bth: &Bth) -> Option<Mark> {
        Mark::parse(bth.resv7).filter(|_| self.attrs.token != 0)
    }

    /// Raises the asynchronous event for a refused request that no receive completion reports
    /// (IBTA 11.6.3, IBTA 9.9.3).
    fn raise_error_event(&mut self, code: NakCode) {
        match code {
            NakCode::RemoteAccess => self.events.access_error = true,
            NakCode::InvalidRequest => self.events.request_error = true,
            _ => self.events.fatal = true,
        }
    }

    /// Drops all pending responses, sends a NAK for `psn` and moves the QP to ERR. `msn` counts the
    /// requests up to the refused one: the peer validates it (`completer/validate.rs`).
    pub(super) fn nak_and_fail(
        &mut self,
        psn: Psn,
        msn: Msn,
        code: NakCode,
        backend: &mut impl Backend,
    ) {
        self.resp.pending.clear();
        self.resp.msn = msn;
        self.resp.ack = Some((psn, Syndrome::Nak(code)));
        self.resp.closing = true;
        self.enter_error(backend);
    }

    fn execute(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        // READ, ATOMIC and FLUSH requests have no payload (IBTA 9.7.4.1.6).
        if packet.opcode().payload_rule() == PayloadRule::Exactly(0) && !payload.is_empty() {
            return Err(INVALID);
        }
        match packet.opcode().operation() {
            Operation::ReadRequest => self.execute_read(packet, backend),
            Operation::CmpSwap | Operation::FetchAdd => self.execute_atomic(packet, backend),
            Operation::AtomicWrite => self.execute_atomic_write(packet, payload, backend),
            Operation::Flush => self.execute_flush(packet, backend),
            _ => self.execute_payload(packet, payload, backend),
        }
    }

    /// True if a responder resource is free for one more READ or ATOMIC (IBTA 9.7.4.1: too
    /// many are an invalid request).
    fn has_free_resource(&self) -> bool {
        self.resp.pending.first_time < u32::from(self.attrs.max_dest_rd_atomic)
    }

    /// Accepts an RDMA READ request (IBTA 9.4.4, IBTA 9.7.4.1, IBTA 9.7.4.1.5). Its responses are
    /// sent later, and check the key again.
    fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        let between = matches!(self.resp.message, Message::None);
        let Some(reth) = packet
            .reth()
            .filter(|_| between && self.has_free_resource())
        else {
            return Err(INVALID);
        };
        let (rkey, addr, len) = (reth.rkey(), reth.va(), reth.dma_len());
        if !self.attrs.remote_read {
            return Err(INVALID);
        }
        if len > MAX_MESSAGE {
            return Err(INVALID);
        }
        if len > 0
            && backend
                .remote_check(rkey, addr, len, RemoteRight::Read)
                .is_err()
        {
            return Err(NO_ACCESS);
        }
        self.resp.has_read = true;
        let first = self.resp.epsn;
        let count = packets(len, self.attrs.mtu.bytes());
        let msn = self.resp.msn.next();
        let body = ResponseBody::Read {
            rkey,
            addr,
            len,
            sent: 0,
        };
        let response = PendingResponse {
            psn: first,
            msn,
            body,
            first_time: true,
        };
        let resources = self.attrs.max_dest_rd_atomic;
        if !self
            .resp
            .pending
            .push(backend.storage().pending, response, resources)
        {
            return Err(INVALID);
        }
        let entry = Replayed::Read {
            first: self.resp.extended_psn,
            count,
            rkey,
            addr,
            len,
            msn,
        };
        self.gso.on_new_request(resources);
        self.resp.merging.on_new_request(resources);
        self.resp
            .store_replay(backend.storage().replay, entry, resources);
        self.resp.msn = msn;
        self.resp.advance(count);
        backend.count(Count::ReadRequest);
        Ok(())
    }

    /// Queues the empty response to the expected request, an ATOMIC WRITE or FLUSH.
    fn respond_empty(&mut self, rkey: RKey, addr: u64, backend: &mut impl Backend) {
        let entry = Replayed::Done {
            psn: self.resp.extended_psn,
            rkey,
            addr,
            msn: self.resp.msn.next(),
        };
        self.respond_single(ResponseBody::Done, entry, backend);
    }

    /// Queues a response of one packet to the expected request and stores its replay entry.
    fn respond_single(&mut self, body: ResponseBody, entry: Replayed, backend: &mut impl Backend) {
        let psn = self.resp.epsn;
        let msn = self.resp.msn.next();
        let resources = self.attrs.max_dest_rd_atomic;
        // There is room: fewer responses are pending than there are responder resources.
        self.resp.pending.push(
            backend.storage().pending,
            PendingResponse {
                psn,
                msn,
                body,
                first_time: true,
            },
            resources,
        );
        self.gso.on_new_request(resources);
        self.resp.merging.on_new_request(resources);
        self.resp
            .store_replay(backend.storage().replay, entry, resources);
        self.resp.msn = msn;
        self.resp.advance(1);
        self.drop_ack();
    }

    /// Drops the pending ACK: the response just queued acknowledges everything before it.
    pub(super) fn drop_ack(&mut self) {
        self.resp.answered();
    }
}
