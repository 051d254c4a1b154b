// SPDX-License-Identifier: GPL-2.0
//! Requests of an RC peer: sequence, execution, duplicates, NAKs.

use super::ports::{
    AtomicOp, Count, Flushed, Handled, LocalFault, Ports, RemoteFault, RemoteRight, Taken,
};
use super::qp::Qp;
use super::requester::packets;
use super::response::{Answer, Job, JobQueue, NO_CREDITS};
use super::wc::{Wc, WcOpcode, WcStatus};
use super::wr::{FlushKind, RecvWr, MAX_MESSAGE};
use crate::ids::{Msn, Psn, RKey};
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};
use crate::wire::Feth;

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

/// What is remembered of a READ or ATOMIC so that it can be answered again (IBTA vol1 9.7.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resource(Kept);

impl Resource {
    /// What slots hold that were never used.
    pub const EMPTY: Self = Self(Kept::Nothing);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Nothing,
    Read {
        first: Psn,
        count: u32,
        rkey: RKey,
        addr: u64,
        len: u32,
        msn: Msn,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
    },
    /// ATOMIC WRITE or FLUSH.
    Done {
        psn: Psn,
        msn: Msn,
    },
}

/// A FLUSH that is done in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flushing {
    psn: Psn,
    rkey: RKey,
    addr: u64,
    len: u32,
    kind: FlushKind,
}

/// Whether a NAK for the expected PSN is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    Nothing,
    /// A packet is missing.
    Sequence {
        /// The one after it has been seen since.
        next_seen: bool,
        /// The packet that arrived last.
        newest: Psn,
    },
    /// A receive was missing.
    Receive,
}

/// Receive side of a connection.
#[derive(Debug)]
pub(super) struct Responder {
    /// PSN of the next request.
    pub(super) epsn: Psn,
    pub(super) msn: Msn,
    /// What the last NAK asked for; say nothing more until `epsn` comes.
    waiting: Waiting,
    pub(super) message: Message,
    /// Receive request in use by the current message.
    pub(super) recv: Option<RecvWr>,
    pub(super) jobs: JobQueue,
    /// Acknowledgement or NAK to be sent after all jobs.
    pub(super) ack: Option<(Psn, Syndrome)>,
    /// The QP is in error, but responses owed before still go out.
    pub(super) closing: bool,
    /// The expected request if it is a FLUSH that has begun, and the address that it has reached.
    flushing: Option<(Flushing, u64)>,
    next_resource: usize,
}

/// Why a request was not executed.
pub(super) enum Refusal {
    /// No receive is posted.
    Rnr,
    /// Memory it needs is not there, or it takes long: as if it had not come.
    Later,
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
            RemoteFault::NotPresent => Self::Later,
        }
    }
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            epsn: Psn::new(0),
            msn: Msn::new(0),
            waiting: Waiting::Nothing,
            message: Message::None,
            recv: None,
            jobs: JobQueue::new(),
            ack: None,
            closing: false,
            flushing: None,
            next_resource: 0,
        }
    }

    /// Drops everything owed to the peer.
    pub(super) fn stop(&mut self) {
        self.jobs.clear();
        self.ack = None;
        self.closing = false;
    }

    /// Gives up the current message; returns the receive request it was using.
    pub(super) fn abort_message(&mut self) -> Option<RecvWr> {
        self.message = Message::None;
        self.recv.take()
    }

    fn remember(&mut self, slots: &mut [Resource], kept: Kept, limit: u8) {
        let limit = usize::from(limit).min(slots.len()).max(1);
        if self.next_resource >= limit {
            self.next_resource = 0;
        }
        if let Some(slot) = slots.get_mut(self.next_resource) {
            *slot = Resource(kept);
        }
        self.next_resource = self.next_resource.saturating_add(1);
    }

    /// What answers a duplicate request at `psn`: PSN ranges within half the PSN space of the
    /// expected one do not overlap.
    fn recall(&self, slots: &[Resource], psn: Psn) -> Option<Kept> {
        let epsn = self.epsn;
        let recent = |first: Psn| {
            let age = epsn.delta(first);
            (0..1 << 23).contains(&age)
        };
        slots.iter().map(|slot| slot.0).find(|kept| match *kept {
            Kept::Nothing => false,
            Kept::Read { first, count, .. } => {
                let at = psn.delta(first);
                recent(first) && u32::try_from(at).is_ok_and(|at| at < count)
            }
            Kept::Atomic { psn: own, .. } | Kept::Done { psn: own, .. } => {
                own == psn && recent(own)
            }
        })
    }
}

impl Qp {
    /// Handles a request packet of an RC connection.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Handled {
        let bth = packet.bth();
        let psn = bth.psn;
        if psn != self.resp.epsn {
            if psn.is_before(self.resp.epsn) {
                ports.count(Count::DuplicateRequest);
                self.duplicate(packet, ports);
            } else {
                ports.count(Count::OutOfSequence);
                // Once for a gap (IBTA vol1 9.7.5.1.2). But if the packet behind it comes again,
                // the peer has gone back and the missing packet was lost once more; and if the
                // same packet comes twice in a row, the peer has not heard us and asks.
                let next = psn == self.resp.epsn.next();
                let (tell, next_seen) = match self.resp.waiting {
                    Waiting::Nothing => (true, next),
                    Waiting::Sequence { next_seen, newest } => {
                        ((next && next_seen) || psn == newest, next || next_seen)
                    }
                    Waiting::Receive => return Handled::Done,
                };
                self.resp.waiting = Waiting::Sequence {
                    next_seen,
                    newest: psn,
                };
                if tell {
                    ports.count(Count::SequenceNakSent);
                    let nak = Syndrome::Nak(NakCode::PsnSequence);
                    self.resp.ack = Some((self.resp.epsn, nak));
                }
            }
            return Handled::Done;
        }
        match self.execute(packet, payload, ports) {
            Ok(()) => {
                self.resp.waiting = Waiting::Nothing;
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
            Err(Refusal::Later) => return Handled::Later,
            Err(Refusal::Rnr) => {
                ports.count(Count::RnrNakSent);
                self.resp.waiting = Waiting::Receive;
                let timer = self.attrs.min_rnr_timer;
                self.resp.ack = Some((psn, Syndrome::RnrNak { timer }));
            }
            Err(Refusal::Nak(code, status)) => {
                match code {
                    NakCode::RemoteAccess => ports.count(Count::RemoteAccessError),
                    NakCode::InvalidRequest => ports.count(Count::RemoteInvalidRequest),
                    _ => {}
                }
                if let Some(wr) = self.resp.recv.take() {
                    let wc = Wc::recv_error(wr.wr_id, status, self.attrs.qpn.get());
                    ports.complete_recv(&wc);
                } else {
                    self.report_refusal(code);
                }
                self.resp.closing = true;
                self.resp.ack = Some((psn, Syndrome::Nak(code)));
                self.enter_error(ports);
            }
        }
        Handled::Done
    }

    /// Raises the event for a request refused for good, if there is no receive request that could
    /// tell of it (IBTA vol1 11.6.3.2).
    fn report_refusal(&mut self, code: NakCode) {
        match code {
            NakCode::RemoteAccess => self.events.access_error = true,
            NakCode::InvalidRequest => self.events.request_error = true,
            _ => self.events.fatal = true,
        }
    }

    /// Refuses at `psn` whatever else was owed: drops it, sends the NAK and fails.
    pub(super) fn refuse(&mut self, psn: Psn, code: NakCode, ports: &mut impl Ports) {
        self.resp.jobs.clear();
        self.resp.ack = Some((psn, Syndrome::Nak(code)));
        self.resp.closing = true;
        self.enter_error(ports);
    }

    fn execute(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        match packet.opcode().operation() {
            Operation::ReadRequest => self.execute_read(packet, ports),
            Operation::CmpSwap | Operation::FetchAdd => self.execute_atomic(packet, ports),
            Operation::AtomicWrite => self.execute_atomic_write(packet, payload, ports),
            Operation::Flush => self.execute_flush(packet, ports),
            _ => self.execute_payload(packet, payload, ports),
        }
    }

    /// Executes a packet of a SEND or WRITE; shared with UC.
    pub(super) fn execute_payload(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        use Operation as Op;
        let mtu = self.attrs.mtu.bytes();
        let Ok(len) = u32::try_from(payload.len()) else {
            return Err(INVALID);
        };
        let (is_write, first, last) = match packet.opcode().operation() {
            Op::SendFirst => (false, true, false),
            Op::SendMiddle => (false, false, false),
            Op::SendLast | Op::SendLastImm | Op::SendLastInv => (false, false, true),
            Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInv => (false, true, true),
            Op::WriteFirst => (true, true, false),
            Op::WriteMiddle => (true, false, false),
            Op::WriteLast | Op::WriteLastImm => (true, false, true),
            Op::WriteOnly | Op::WriteOnlyImm => (true, true, true),
            _ => return Err(INVALID),
        };
        // Sequence of opcodes and lengths (IBTA vol1 9.7.4.1, 9.7.4.1.3).
        let in_place = match self.resp.message {
            Message::None => first,
            Message::Send { .. } => !first && !is_write,
            Message::Write { .. } => !first && is_write,
        };
        let fits = match (first, last) {
            (_, false) => len == mtu,
            (false, true) => len >= 1 && len <= mtu,
            (true, true) => len <= mtu,
        };
        if !in_place || !fits {
            return Err(INVALID);
        }
        let imm = packet.imm();
        if is_write {
            self.execute_write(packet, payload, len, first, last, imm.is_some(), ports)?;
        } else {
            self.execute_send(payload, len, first, ports)?;
        }
        if let Some(ieth) = packet.ieth() {
            // In order: after everything before it, and before anybody hears of the message.
            ports
                .remote_invalidate(ieth.rkey())
                .map_err(|_| BAD_INVALIDATE)?;
        }
        self.resp.epsn = self.resp.epsn.next();
        if last {
            self.end_message(packet, imm, ports);
        }
        Ok(())
    }

    /// Makes sure a receive request is at hand.
    fn need_recv(&mut self, ports: &mut impl Ports) -> Result<RecvWr, Refusal> {
        if let Some(wr) = self.resp.recv {
            return Ok(wr);
        }
        match ports.recv_take() {
            Taken::Wr(wr) => {
                self.resp.recv = Some(wr);
                Ok(wr)
            }
            Taken::Empty => Err(Refusal::Rnr),
            Taken::Invalid { wr_id } => {
                self.resp.recv = Some(RecvWr { wr_id, length: 0 });
                Err(Refusal::Nak(
                    NakCode::RemoteOperational,
                    WcStatus::LocQpOpErr,
                ))
            }
        }
    }

    fn execute_send(
        &mut self,
        payload: &Payload<'_>,
        len: u32,
        first: bool,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        let wr = self.need_recv(ports)?;
        let placed = match self.resp.message {
            Message::Send { placed } if !first => placed,
            _ => 0,
        };
        let end = placed.checked_add(len).filter(|end| *end <= wr.length);
        let Some(end) = end else {
            return Err(Refusal::Nak(NakCode::InvalidRequest, WcStatus::LocLenErr));
        };
        if len > 0 {
            ports
                .recv_scatter(placed, payload)
                .map_err(|fault| match fault {
                    LocalFault::NotPresent => Refusal::Later,
                    LocalFault::Refused => {
                        Refusal::Nak(NakCode::RemoteOperational, WcStatus::LocProtErr)
                    }
                })?;
        }
        self.resp.message = Message::Send { placed: end };
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        len: u32,
        first: bool,
        last: bool,
        with_imm: bool,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        let (rkey, addr, left, total) = if first {
            let Some(reth) = packet.reth() else {
                return Err(INVALID);
            };
            let total = reth.dma_len();
            let (rkey, addr) = (reth.rkey(), reth.va());
            if !self.attrs.remote_write {
                return Err(NO_ACCESS);
            }
            if total > MAX_MESSAGE {
                return Err(INVALID);
            }
            // A message of no bytes touches no memory and needs no key (IBTA C9-88).
            if total > 0
                && ports
                    .remote_check(rkey, addr, total, RemoteRight::Write)
                    .is_err()
            {
                return Err(NO_ACCESS);
            }
            (rkey, addr, total, total)
        } else if let Message::Write {
            rkey,
            addr,
            left,
            total,
        } = self.resp.message
        {
            (rkey, addr, left, total)
        } else {
            return Err(INVALID);
        };
        // The payloads add up to the announced length, no more and no less.
        let agrees = if last { len == left } else { len < left };
        if !agrees {
            return Err(INVALID);
        }
        if with_imm {
            self.need_recv(ports)?;
        }
        if len > 0 {
            ports.remote_write(rkey, addr, payload)?;
        }
        self.resp.message = Message::Write {
            rkey,
            addr: addr.wrapping_add(u64::from(len)),
            left: left.saturating_sub(len),
            total,
        };
        Ok(())
    }

    fn end_message(&mut self, packet: &Packet<'_>, imm: Option<[u8; 4]>, ports: &mut impl Ports) {
        self.resp.msn = self.resp.msn.next();
        let (opcode, byte_len) = match core::mem::replace(&mut self.resp.message, Message::None) {
            Message::Write { total, .. } => (WcOpcode::RecvRdmaWithImm, total),
            Message::Send { placed } => (WcOpcode::Recv, placed),
            Message::None => return,
        };
        if opcode == WcOpcode::RecvRdmaWithImm && imm.is_none() {
            return;
        }
        if let Some(wr) = self.resp.recv.take() {
            ports.complete_recv(&Wc {
                wr_id: wr.wr_id,
                status: WcStatus::Success,
                opcode,
                byte_len,
                imm,
                invalidated: packet.ieth().map(|ieth| ieth.rkey()),
                qpn: self.attrs.qpn.get(),
                src_qpn: self.attrs.dest_qpn.get(),
                pkey_index: 0,
                grh: None,
                vlan: None,
                solicited: packet.bth().se,
            });
        }
    }

    /// Room for one more READ or ATOMIC (IBTA vol1 9.7.4.1.2: too many are an invalid request).
    fn resource_free(&self) -> bool {
        self.resp.jobs.first_time < u32::from(self.attrs.max_dest_rd_atomic)
    }

    fn execute_read(&mut self, packet: &Packet<'_>, ports: &mut impl Ports) -> Result<(), Refusal> {
        let between = matches!(self.resp.message, Message::None);
        let Some(reth) = packet.reth().filter(|_| between && self.resource_free()) else {
            return Err(INVALID);
        };
        let (rkey, addr, len) = (reth.rkey(), reth.va(), reth.dma_len());
        if !self.attrs.remote_read {
            return Err(NO_ACCESS);
        }
        if len > MAX_MESSAGE {
            return Err(INVALID);
        }
        if len > 0
            && ports
                .remote_check(rkey, addr, len, RemoteRight::Read)
                .is_err()
        {
            return Err(NO_ACCESS);
        }
        let first = self.resp.epsn;
        let count = packets(len, self.attrs.mtu.bytes());
        let msn = self.resp.msn.next();
        let answer = Answer::Read {
            rkey,
            addr,
            len,
            sent: 0,
        };
        let job = Job {
            psn: first,
            msn,
            answer,
            first_time: true,
        };
        if !self.resp.jobs.push(ports.jobs(), job) {
            return Err(INVALID);
        }
        let kept = Kept::Read {
            first,
            count,
            rkey,
            addr,
            len,
            msn,
        };
        self.resp
            .remember(ports.resources(), kept, self.attrs.max_dest_rd_atomic);
        self.resp.msn = msn;
        self.resp.epsn = first.wrapping_add(count);
        self.drop_ack();
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        let between = matches!(self.resp.message, Message::None);
        let Some(eth) = packet
            .atomic_eth()
            .filter(|_| between && self.resource_free())
        else {
            return Err(INVALID);
        };
        if eth.va() & 7 != 0 {
            return Err(INVALID);
        }
        if !self.attrs.remote_atomic {
            return Err(NO_ACCESS);
        }
        let op = match packet.opcode().operation() {
            Operation::CmpSwap => AtomicOp::CmpSwp {
                compare: eth.compare(),
                swap: eth.swap_add(),
            },
            _ => AtomicOp::FetchAdd {
                add: eth.swap_add(),
            },
        };
        let original = ports.remote_atomic(eth.rkey(), eth.va(), op)?;
        let (psn, msn) = (self.resp.epsn, self.resp.msn.next());
        let kept = Kept::Atomic { psn, original, msn };
        self.answer_once(Answer::Atomic { original }, kept, ports);
        Ok(())
    }

    /// ATOMIC WRITE (IBTA vol1 annex A19): 8 aligned bytes, all at once.
    fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        let between = matches!(self.resp.message, Message::None);
        let Some(reth) = packet.reth().filter(|_| between && self.resource_free()) else {
            return Err(INVALID);
        };
        let mut word = [0; 8];
        let whole = payload.len() == word.len() && payload.copy_to(&mut word) == word.len();
        if !whole || reth.dma_len() != 8 || reth.va() & 7 != 0 {
            return Err(INVALID);
        }
        if !self.attrs.remote_write {
            return Err(NO_ACCESS);
        }
        let value = u64::from_ne_bytes(word);
        ports.remote_atomic(reth.rkey(), reth.va(), AtomicOp::Write { value })?;
        self.answer_done(ports);
        Ok(())
    }

    /// FLUSH (IBTA vol1 annex A19).
    fn execute_flush(
        &mut self,
        packet: &Packet<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Refusal> {
        let between = matches!(self.resp.message, Message::None);
        let (Some(reth), Some(feth), true) = (
            packet.reth(),
            packet.feth(),
            between && self.resource_free(),
        ) else {
            return Err(INVALID);
        };
        let placement = feth.placement();
        let known = placement & !(Feth::GLOBAL | Feth::PERSISTENT) == 0 && placement != 0;
        let Some(selectivity) = feth.selectivity().filter(|_| known) else {
            return Err(INVALID);
        };
        if placement & !self.attrs.remote_flush != 0 {
            return Err(NO_ACCESS);
        }
        let kind = FlushKind {
            placement,
            selectivity,
        };
        let (rkey, addr, len) = (reth.rkey(), reth.va(), reth.dma_len());
        let this = Flushing {
            psn: self.resp.epsn,
            rkey,
            addr,
            len,
            kind,
        };
        // Another request may have come with this PSN before, and have been lost half-way.
        let begun = self.resp.flushing.take().filter(|begun| begun.0 == this);
        let from = begun.map(|(_, at)| at);
        match ports.remote_flush(rkey, addr, len, kind, from)? {
            Flushed::All => self.answer_done(ports),
            Flushed::UpTo(at) => {
                // What comes behind it waits, so nothing is executed before it is done.
                self.resp.flushing = Some((this, at));
                return Err(Refusal::Later);
            }
        }
        Ok(())
    }

    /// Answers the expected request with nothing but that it is done.
    fn answer_done(&mut self, ports: &mut impl Ports) {
        let (psn, msn) = (self.resp.epsn, self.resp.msn.next());
        self.answer_once(Answer::Done, Kept::Done { psn, msn }, ports);
    }

    /// Owes a response of one packet to the expected request, and remembers it.
    fn answer_once(&mut self, answer: Answer, kept: Kept, ports: &mut impl Ports) {
        let psn = self.resp.epsn;
        let msn = self.resp.msn.next();
        // Room is certain: fewer jobs are pending than there are resources.
        self.resp.jobs.push(
            ports.jobs(),
            Job {
                psn,
                msn,
                answer,
                first_time: true,
            },
        );
        self.resp
            .remember(ports.resources(), kept, self.attrs.max_dest_rd_atomic);
        self.resp.msn = msn;
        self.resp.epsn = psn.next();
        self.drop_ack();
    }

    /// The response to be sent acknowledges everything before it.
    fn drop_ack(&mut self) {
        self.resp.ack = None;
    }

    /// A request that was executed before (IBTA vol1 9.7.5.1.1 to 9.7.5.1.5): acknowledge again,
    /// answer again, never execute again.
    fn duplicate(&mut self, packet: &Packet<'_>, ports: &mut impl Ports) {
        let psn = packet.bth().psn;
        let operation = packet.opcode().operation();
        if !takes_resource(operation) {
            // One acknowledgement of the newest request says it all.
            let wanted = packet.bth().ack_req || packet.opcode().ends_message();
            if wanted && self.resp.ack.is_none() {
                let newest = Psn::new(self.resp.epsn.get().wrapping_sub(1));
                self.resp.ack = Some((
                    newest,
                    Syndrome::Ack {
                        credits: NO_CREDITS,
                    },
                ));
            }
            return;
        }
        let mut in_part = false;
        let job = match (operation, self.resp.recall(ports.resources(), psn)) {
            (
                Operation::ReadRequest,
                Some(Kept::Read {
                    first,
                    rkey,
                    addr,
                    len,
                    msn,
                    ..
                }),
            ) => {
                let skipped = u32::try_from(psn.delta(first))
                    .unwrap_or(0)
                    .saturating_mul(self.attrs.mtu.bytes());
                let rest = len.saturating_sub(skipped);
                let Some(reth) = packet.reth() else {
                    return;
                };
                // It must be a part of the original request.
                let same = reth.rkey() == rkey
                    && reth.va() == addr.wrapping_add(u64::from(skipped))
                    && reth.dma_len() <= rest;
                if !same {
                    ports.count(Count::Unexpected);
                    return;
                }
                in_part = reth.dma_len() < rest;
                let answer = Answer::Read {
                    rkey,
                    addr: reth.va(),
                    len: reth.dma_len(),
                    sent: 0,
                };
                Job {
                    psn,
                    msn,
                    answer,
                    first_time: false,
                }
            }
            (
                Operation::CmpSwap | Operation::FetchAdd,
                Some(Kept::Atomic { original, msn, .. }),
            ) => Job {
                psn,
                msn,
                answer: Answer::Atomic { original },
                first_time: false,
            },
            (Operation::AtomicWrite | Operation::Flush, Some(Kept::Done { msn, .. })) => Job {
                psn,
                msn,
                answer: Answer::Done,
                first_time: false,
            },
            _ => {
                ports.count(Count::Unexpected);
                return;
            }
        };
        // A peer that asks again goes on with all requests that follow (IBTA vol1 9.7.3.1), so
        // what is owed from here on would be sent twice, and the wanted responses would wait behind
        // those that the peer throws away. If this response is still to come, it needs no other.
        let mtu = self.attrs.mtu.bytes();
        if self.resp.jobs.owes(ports.jobs(), psn, mtu) {
            return;
        }
        if in_part && !self.resp.jobs.ends_before(ports.jobs(), psn, mtu) {
            // It asks for a part only, to learn whether the rest is still to come. It is.
            return;
        }
        self.resp.jobs.drop_from(ports.jobs(), psn, mtu);
        // If there is no room the peer asks again.
        self.resp.jobs.push(ports.jobs(), job);
    }
}

/// True for requests that are answered by data and remembered until the peer has it.
fn takes_resource(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest
            | Operation::CmpSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush
    )
}
