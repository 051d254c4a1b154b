// SPDX-License-Identifier: GPL-2.0
//! Requests of an RC peer: sequence, NAKs, READs. In files of their own: SENDs and WRITEs
//! (`message`), ATOMICs and ATOMIC WRITE (`atomic`), FLUSH (`flush`), duplicates (`replay`), packets that
//! come too early (`gap`).

mod atomic;
mod flush;
mod gap;
mod message;
mod replay;

use super::backend::{Backend, Count, Handled, RemoteFault, RemoteRight};
use super::qp::Qp;
use super::requester::packets;
use super::response::{PendingResponse, ResponseBody, ResponseQueue, NO_CREDITS};
use super::wc::{Wc, WcStatus};
use super::wr::{RecvWr, MAX_MESSAGE};
use crate::ids::{Msn, Psn, RKey};
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};
use flush::PartialFlush;
use gap::{Gap, NakSuppression};
pub use replay::ReplayEntry;
use replay::{takes_resource, Replayed};

/// The message that is being received.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// Between messages.
    None,
    /// A SEND of which this many bytes have been placed.
    Send { placed: u32 },
    /// An RDMA WRITE.
    Write {
        rkey: RKey,
        addr: u64,
        left: u32,
        total: u32,
    },
}

/// Whether a NAK for the expected PSN is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NakState {
    None,
    /// A packet is missing.
    Sequence(Gap),
    /// A receive was missing.
    Rnr,
}

/// Receive side of a connection.
#[derive(Debug)]
pub(super) struct Responder {
    /// PSN of the next request; moved by [`advance`](Self::advance).
    pub(super) epsn: Psn,
    /// The same counted in 64 bits from an arbitrary start, so that it never comes round: what is
    /// kept for duplicates is found by it.
    extended_psn: u64,
    pub(super) msn: Msn,
    /// What the last NAK asked for; say nothing more until `epsn` comes.
    nak_state: NakState,
    nak_suppression: NakSuppression,
    pub(super) message: Message,
    /// Receive request in use by the current message.
    pub(super) recv: Option<RecvWr>,
    pub(super) pending: ResponseQueue,
    /// Acknowledgement or NAK to be sent after all jobs.
    pub(super) ack: Option<(Psn, Syndrome)>,
    /// The QP is in error, but responses owed before still go out.
    pub(super) closing: bool,
    /// The expected request if it is a FLUSH that has begun, and the address that it has reached.
    partial_flush: Option<(PartialFlush, u64)>,
    next_replay: usize,
}

/// Why a request was not executed.
pub(super) enum Refusal {
    /// No receive is posted.
    Rnr,
    /// Memory it needs is not there, or it takes long: as if it had not come.
    Deferred,
    /// The request is refused for good and the QP fails; a receive in use completes with the
    /// status.
    Nak(NakCode, WcStatus),
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest, WcStatus::WrFlushErr);
/// A key that cannot be invalidated: a fault of class J (IBTA vol1 9.9.3), which is told here as
/// an invalid request and there as an access that was refused.
const BAD_INVALIDATE: Refusal = Refusal::Nak(NakCode::RemoteAccess, WcStatus::RemInvReqErr);
const NO_ACCESS: Refusal = Refusal::Nak(NakCode::RemoteAccess, WcStatus::LocAccessErr);

impl From<RemoteFault> for Refusal {
    fn from(fault: RemoteFault) -> Self {
        match fault {
            RemoteFault::Refused => NO_ACCESS,
            RemoteFault::NotPresent => Self::Deferred,
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
            message: Message::None,
            recv: None,
            pending: ResponseQueue::new(),
            ack: None,
            closing: false,
            partial_flush: None,
            next_replay: 0,
        }
    }

    /// Requests that take `count` PSNs have been executed.
    pub(super) fn advance(&mut self, count: u32) {
        self.epsn = self.epsn.wrapping_add(count);
        self.extended_psn = self.extended_psn.wrapping_add(count.into());
    }

    /// The next request has this PSN.
    pub(super) fn expect(&mut self, psn: Psn) {
        let ahead = psn.wrapping_add(0u32.wrapping_sub(self.epsn.get()));
        self.advance(ahead.get());
    }

    /// Drops everything owed to the peer.
    pub(super) fn stop(&mut self) {
        self.pending.clear();
        self.ack = None;
        self.closing = false;
    }

    /// Gives up the current message; returns the receive request it was using.
    pub(super) fn abort_message(&mut self) -> Option<RecvWr> {
        self.message = Message::None;
        self.recv.take()
    }
}

impl Qp {
    /// Handles a request packet of an RC connection.
    pub(super) fn handle_request(
        &mut self,
        now: u64,
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
                self.out_of_sequence(now, psn, backend);
            }
            return Handled::Done;
        }
        match self.execute(packet, payload, backend) {
            Ok(()) => {
                self.resp.nak_state = NakState::None;
                if bth.ack_req && !takes_resource(packet.opcode().operation()) {
                    let ack = Syndrome::Ack {
                        credits: NO_CREDITS,
                    };
                    self.resp.ack = Some((psn, ack));
                } else if let Some((_, Syndrome::Nak(_) | Syndrome::RnrNak { .. })) = self.resp.ack
                {
                    // The request it complained about has arrived.
                    self.resp.ack = None;
                }
            }
            Err(Refusal::Deferred) => return Handled::Deferred,
            Err(Refusal::Rnr) => {
                backend.count(Count::RnrNakSent);
                self.resp.nak_state = NakState::Rnr;
                let timer = self.attrs.min_rnr_timer;
                self.resp.ack = Some((psn, Syndrome::RnrNak { timer }));
            }
            Err(Refusal::Nak(code, status)) => {
                match code {
                    NakCode::RemoteAccess => backend.count(Count::RemoteAccessError),
                    NakCode::InvalidRequest => backend.count(Count::RemoteInvalidRequest),
                    _ => {}
                }
                if let Some(wr) = self.resp.recv.take() {
                    let wc = Wc::recv_error(wr.wr_id, status, self.attrs.qpn.get());
                    backend.complete_recv(&wc);
                } else {
                    self.raise_refusal_event(code);
                }
                self.resp.closing = true;
                self.resp.ack = Some((psn, Syndrome::Nak(code)));
                self.enter_error(backend);
            }
        }
        Handled::Done
    }

    /// Raises the event for a request refused for good, if there is no receive request that could
    /// tell of it (IBTA vol1 11.6.3.2).
    fn raise_refusal_event(&mut self, code: NakCode) {
        match code {
            NakCode::RemoteAccess => self.events.access_error = true,
            NakCode::InvalidRequest => self.events.request_error = true,
            _ => self.events.fatal = true,
        }
    }

    /// Refuses at `psn` whatever else was owed: drops it, sends the NAK and fails. `msn` counts the
    /// requests up to the one refused: the peer compares it (`completer/evidence.rs`).
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
    ) -> Result<(), Refusal> {
        match packet.opcode().operation() {
            Operation::ReadRequest => self.execute_read(packet, backend),
            Operation::CmpSwap | Operation::FetchAdd => self.execute_atomic(packet, backend),
            Operation::AtomicWrite => self.execute_atomic_write(packet, payload, backend),
            Operation::Flush => self.execute_flush(packet, backend),
            _ => self.execute_payload(packet, payload, backend),
        }
    }

    /// Room for one more READ or ATOMIC (IBTA vol1 9.7.4.1.2: too many are an invalid request).
    fn has_free_resource(&self) -> bool {
        self.resp.pending.first_time < u32::from(self.attrs.max_dest_rd_atomic)
    }

    fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), Refusal> {
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
        if !self.resp.pending.push(backend.storage().pending, response) {
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
        self.gso.on_new_request(self.attrs.max_dest_rd_atomic);
        self.resp.store_replay(
            backend.storage().replay,
            entry,
            self.attrs.max_dest_rd_atomic,
        );
        self.resp.msn = msn;
        self.resp.advance(count);
        self.drop_ack();
        Ok(())
    }

    /// Answers the expected request with nothing but that it is done.
    fn respond_empty(&mut self, rkey: RKey, addr: u64, backend: &mut impl Backend) {
        let entry = Replayed::Done {
            psn: self.resp.extended_psn,
            rkey,
            addr,
            msn: self.resp.msn.next(),
        };
        self.respond_single(ResponseBody::Done, entry, backend);
    }

    /// Owes a response of one packet to the expected request, and remembers it.
    fn respond_single(&mut self, body: ResponseBody, entry: Replayed, backend: &mut impl Backend) {
        let psn = self.resp.epsn;
        let msn = self.resp.msn.next();
        // Room is certain: fewer jobs are pending than there are resources.
        self.resp.pending.push(
            backend.storage().pending,
            PendingResponse {
                psn,
                msn,
                body,
                first_time: true,
            },
        );
        self.gso.on_new_request(self.attrs.max_dest_rd_atomic);
        self.resp.store_replay(
            backend.storage().replay,
            entry,
            self.attrs.max_dest_rd_atomic,
        );
        self.resp.msn = msn;
        self.resp.advance(1);
        self.drop_ack();
    }

    /// The response to be sent acknowledges everything before it.
    fn drop_ack(&mut self) {
        self.resp.ack = None;
    }
}
