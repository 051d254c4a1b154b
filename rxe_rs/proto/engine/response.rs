// SPDX-License-Identifier: GPL-2.0
//! Responses owed to the peer: READ data, ATOMIC results, acknowledgements and NAKs, in order.

use super::attrs::{Progress, State, RESOURCES};
use super::congestion::Meter;
use super::ports::{Count, Dest, Ports, RemoteFault, Tx, TxFault};
use super::qp::Qp;
use super::requester::pad_of;
use crate::ids::{Msn, Psn, RKey};
use crate::wire::aeth::{Aeth, NakCode, Syndrome};
use crate::wire::opcode::Operation;
use crate::wire::repr::Headers;

/// Credit code that says nothing about receive credits (IBTA vol1 9.7.7.2).
pub(super) const NO_CREDITS: u8 = 0x1f;

/// Data a response carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// `len - sent` bytes of READ data remain.
    Read {
        /// Key of the region read.
        rkey: RKey,
        /// Start of the data.
        addr: u64,
        /// Bytes asked for.
        len: u32,
        /// Bytes sent.
        sent: u32,
    },
    /// The value before an ATOMIC.
    Atomic {
        /// That value.
        original: u64,
    },
    /// Nothing but that it is done: ATOMIC WRITE and FLUSH.
    Done,
}

/// A response to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    pub(super) psn: Psn,
    pub(super) msn: Msn,
    pub(super) answer: Answer,
    /// Counted against the responder resources; replays are not.
    pub(super) first_time: bool,
}

impl Job {
    /// What slots hold that were never used.
    pub const EMPTY: Self = Self {
        psn: Psn::new(0),
        msn: Msn::new(0),
        answer: Answer::Atomic { original: 0 },
        first_time: false,
    };
}

impl Job {
    /// PSN of the next packet of the response.
    fn next(&self, mtu: u32) -> Psn {
        match self.answer {
            Answer::Read { sent, .. } => self.psn.wrapping_add(sent.checked_div(mtu).unwrap_or(0)),
            Answer::Atomic { .. } | Answer::Done => self.psn,
        }
    }

    /// PSN of the last packet of the response.
    fn last(&self, mtu: u32) -> Psn {
        match self.answer {
            Answer::Read { len, .. } => {
                let more = len.saturating_sub(1).checked_div(mtu).unwrap_or(0);
                self.psn.wrapping_add(more)
            }
            Answer::Atomic { .. } | Answer::Done => self.psn,
        }
    }
}

/// First-in first-out queue of jobs in slots that the owner of the QP provides.
#[derive(Debug)]
pub(super) struct JobQueue {
    head: usize,
    len: usize,
    /// Jobs in the queue that are not replays.
    pub(super) first_time: u32,
}

impl JobQueue {
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

    /// Appends `job`; false if there is no room.
    pub(super) fn push(&mut self, slots: &mut [Job], job: Job) -> bool {
        if self.len >= slots.len() {
            return false;
        }
        // Replays may not take the room of first answers, of which the resources bound the number.
        let first_time = usize::try_from(self.first_time).unwrap_or(usize::MAX);
        let replays = self.len.saturating_sub(first_time);
        if !job.first_time && replays >= slots.len().saturating_sub(RESOURCES) {
            return false;
        }
        let mut at = self.head.saturating_add(self.len);
        if at >= slots.len() {
            at = at.saturating_sub(slots.len());
        }
        let Some(slot) = slots.get_mut(at) else {
            return false;
        };
        *slot = job;
        self.len = self.len.saturating_add(1);
        if job.first_time {
            self.first_time = self.first_time.saturating_add(1);
        }
        true
    }

    pub(super) fn front<'a>(&self, slots: &'a mut [Job]) -> Option<&'a mut Job> {
        if self.is_empty() {
            return None;
        }
        slots.get_mut(self.head)
    }

    pub(super) fn pop(&mut self, slots: &mut [Job]) {
        let Some(job) = self.front(slots) else {
            return;
        };
        if job.first_time {
            self.first_time = self.first_time.saturating_sub(1);
        }
        self.len = self.len.saturating_sub(1);
        self.head = self.head.saturating_add(1);
        if self.head >= slots.len() {
            self.head = 0;
        }
    }

    /// The job `back` places before the end.
    fn nth_back(&self, slots: &[Job], back: usize) -> Option<Job> {
        let ahead = self.len.checked_sub(back)?.checked_sub(1)?;
        let mut at = self.head.saturating_add(ahead);
        if at >= slots.len() {
            at = at.saturating_sub(slots.len());
        }
        slots.get(at).copied()
    }

    /// True if the response at `psn` is still to be sent.
    pub(super) fn owes(&self, slots: &[Job], psn: Psn, mtu: u32) -> bool {
        let mut back = 0;
        while let Some(job) = self.nth_back(slots, back) {
            if job.last(mtu).is_before(psn) {
                return false;
            }
            if !psn.is_before(job.next(mtu)) {
                return true;
            }
            back = usize::saturating_add(back, 1);
        }
        false
    }

    /// True if no job answers `psn` or what follows it.
    pub(super) fn ends_before(&self, slots: &[Job], psn: Psn, mtu: u32) -> bool {
        self.nth_back(slots, 0)
            .is_none_or(|newest| newest.last(mtu).is_before(psn))
    }

    /// Drops the jobs that answer `psn` and what follows it. The jobs are in the order of their
    /// PSNs, for a replay comes here first.
    pub(super) fn drop_from(&mut self, slots: &[Job], psn: Psn, mtu: u32) {
        while let Some(job) = self.nth_back(slots, 0) {
            if self.ends_before(slots, psn, mtu) {
                break;
            }
            if job.first_time {
                self.first_time = self.first_time.saturating_sub(1);
            }
            self.len = self.len.saturating_sub(1);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// What became of an attempt to send one response.
enum Sent {
    Yes,
    Busy,
    /// The memory behind a READ is not there now.
    Waits,
    /// The memory behind a READ is gone.
    Refused,
}

impl Qp {
    /// Sends responses owed. The sending rate limits READ data alone: what acknowledges only waits
    /// for the data that comes before it.
    pub(super) fn transmit_responses<T: Tx>(
        &mut self,
        now: u64,
        ports: &mut impl Ports,
        tx: &mut Meter<'_, T>,
    ) -> Progress {
        let open = matches!(self.state, State::Rtr | State::Rts | State::Sqd)
            || (self.state == State::Err && self.resp.closing);
        if !open {
            return Progress::Idle;
        }
        while let Some(job) = self.resp.jobs.front(ports.jobs()).map(|j| *j) {
            let is_data = matches!(job.answer, Answer::Read { .. });
            let sent = if is_data {
                if !tx.has_room() {
                    if tx.is_spent() {
                        self.send_ack_before(now, &job, ports, tx.unlimited());
                    }
                    return Progress::More;
                }
                self.send_job(&job, ports, tx)
            } else {
                let tx = tx.unlimited();
                if !tx.has_room() {
                    return Progress::More;
                }
                self.send_job(&job, ports, tx)
            };
            match sent {
                Sent::Yes => {}
                Sent::Busy => {
                    self.pause(now);
                    return Progress::Idle;
                }
                // Nothing may overtake it.
                Sent::Waits => return Progress::Idle,
                Sent::Refused => {
                    // The region went away after the request had been accepted.
                    let psn = match job.answer {
                        Answer::Read { sent, .. } => self.read_psn(job.psn, sent),
                        Answer::Atomic { .. } | Answer::Done => job.psn,
                    };
                    ports.count(Count::RemoteAccessError);
                    self.events.access_error = true;
                    self.refuse(psn, job.msn, NakCode::RemoteAccess, ports);
                }
            }
        }
        let tx = tx.unlimited();
        if self.resp.ack.is_some() && !tx.has_room() {
            return Progress::More;
        }
        if self.send_ack(now, ports, tx) {
            self.resp.closing = false;
        }
        Progress::Idle
    }

    /// Sends the acknowledgement or NAK owed, if any. False if that is to be tried again.
    fn send_ack(&mut self, now: u64, ports: &mut impl Ports, tx: &mut impl Tx) -> bool {
        let Some((psn, syndrome)) = self.resp.ack else {
            return true;
        };
        // The newest request executed, not the one that asked for it: all responses up to there
        // have left, and the MSN says the same (`completer/evidence.rs` insists on that).
        let psn = match syndrome {
            Syndrome::Ack { .. } => self.resp.epsn.prev(),
            _ => psn,
        };
        self.put_ack(now, psn, syndrome, self.resp.msn, ports, tx)
    }

    /// The sending rate holds back the data of a READ: sends the acknowledgement owed for what comes
    /// before it, with the MSN of that, unless some of the data has left and says the same.
    fn send_ack_before(&mut self, now: u64, job: &Job, ports: &mut impl Ports, tx: &mut impl Tx) {
        let begun = !matches!(job.answer, Answer::Read { sent: 0, .. });
        let Some((psn, syndrome @ Syndrome::Ack { .. })) = self.resp.ack else {
            return;
        };
        if job.first_time && !begun && psn.is_before(job.psn) {
            let msn = Msn::new(job.msn.get().wrapping_sub(1));
            self.put_ack(now, job.psn.prev(), syndrome, msn, ports, tx);
        }
    }

    /// Sends what is owed and nothing else; as [`send_ack`](Self::send_ack).
    fn put_ack(
        &mut self,
        now: u64,
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
        ports: &mut impl Ports,
        tx: &mut impl Tx,
    ) -> bool {
        let bth = self.bth(Operation::Acknowledge, psn, 0, ports);
        let headers = Headers::new(bth).aeth(Aeth::new(syndrome, msn));
        match tx.packet(Dest::Peer, &headers, 0, |_| Ok::<(), RemoteFault>(())) {
            Err(TxFault::Busy) => {
                self.pause(now);
                return false;
            }
            // If it cannot be sent at all the peer's timer will expire.
            Ok(()) | Err(_) => self.resp.ack = None,
        }
        true
    }

    fn read_psn(&self, first: Psn, sent: u32) -> Psn {
        first.wrapping_add(sent.checked_div(self.attrs.mtu.bytes()).unwrap_or(0))
    }

    fn send_job(&mut self, job: &Job, ports: &mut impl Ports, tx: &mut impl Tx) -> Sent {
        let ack = Aeth::new(
            Syndrome::Ack {
                credits: NO_CREDITS,
            },
            job.msn,
        );
        match job.answer {
            Answer::Atomic { .. } | Answer::Done => {
                let headers = match job.answer {
                    Answer::Atomic { original } => {
                        let bth = self.bth(Operation::AtomicAck, job.psn, 0, ports);
                        Headers::new(bth).aeth(ack).atomic_ack(original)
                    }
                    _ => {
                        let bth = self.bth(Operation::ReadRespOnly, job.psn, 0, ports);
                        Headers::new(bth).aeth(ack)
                    }
                };
                match tx.packet(Dest::Peer, &headers, 0, |_| Ok::<(), RemoteFault>(())) {
                    Err(TxFault::Busy) => return Sent::Busy,
                    Ok(()) | Err(_) => self.resp.jobs.pop(ports.jobs()),
                }
            }
            Answer::Read {
                rkey,
                addr,
                len,
                sent,
            } => {
                let mtu = self.attrs.mtu.bytes();
                let left = len.saturating_sub(sent);
                let chunk = left.min(mtu);
                let operation = match (sent == 0, left <= mtu) {
                    (true, true) => Operation::ReadRespOnly,
                    (true, false) => Operation::ReadRespFirst,
                    (false, false) => Operation::ReadRespMiddle,
                    (false, true) => Operation::ReadRespLast,
                };
                let psn = self.read_psn(job.psn, sent);
                let bth = self.bth(operation, psn, pad_of(chunk), ports);
                let mut headers = Headers::new(bth);
                if operation != Operation::ReadRespMiddle {
                    headers = headers.aeth(ack);
                }
                let from = addr.wrapping_add(u64::from(sent));
                let source = &*ports;
                let size = usize::try_from(chunk).unwrap_or(0);
                let fill = |dst: &mut [u8]| {
                    if dst.is_empty() {
                        return Ok(());
                    }
                    source.remote_read(rkey, from, dst)
                };
                match tx.packet(Dest::Peer, &headers, size, fill) {
                    Ok(()) => self.trains.on_response(psn, tx.place()),
                    Err(TxFault::Busy) => return Sent::Busy,
                    Err(TxFault::Fill(RemoteFault::NotPresent)) => return Sent::Waits,
                    Err(TxFault::Fill(RemoteFault::Refused)) => return Sent::Refused,
                    Err(TxFault::Unreachable) => {
                        self.resp.jobs.pop(ports.jobs());
                        return Sent::Yes;
                    }
                }
                if left <= mtu {
                    self.resp.jobs.pop(ports.jobs());
                } else if let Some(job) = self.resp.jobs.front(ports.jobs()) {
                    let sent = sent.saturating_add(chunk);
                    job.answer = Answer::Read {
                        rkey,
                        addr,
                        len,
                        sent,
                    };
                }
            }
        }
        Sent::Yes
    }
}
