// SPDX-License-Identifier: GPL-2.0
//! Responses of the peer: acknowledgements, NAKs, READ and ATOMIC data.
//!
//! What a stranger must know for one of them to be believed is in `evidence`.

mod evidence;

use super::attrs::State;
use super::ports::{Count, Handled, LocalFault, Ports};
use super::qp::Qp;
use super::requester::{ack_deadline, index_before};
use super::wc::WcStatus;
use super::window::Window;
use super::wr::{SendOp, SqSlot};
use crate::ids::Psn;
use crate::wire::aeth::{Aeth, NakCode, Syndrome};
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};
use crate::wire::rnr::rnr_timer_ns;

/// The memory for a response is not there.
struct Absent;

/// Responses that came before put the acknowledgement timer off for this many times its length at
/// most: the time within which the architecture has it expire (IBTA vol1 9.7.6.1.3).
const MAX_PATIENCE: u64 = 4;

/// What acknowledging up to a PSN ran into.
#[derive(PartialEq, Eq)]
enum Acked {
    /// All of it is acknowledged.
    Clean,
    /// A READ or ATOMIC before that PSN has not been answered: its response was lost.
    Hole,
}

impl Qp {
    /// Handles a response packet of an RC connection.
    pub(super) fn handle_response(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Handled {
        if !matches!(self.state, State::Rts | State::Sqd) {
            ports.count(Count::Unexpected);
            return Handled::Done;
        }
        let psn = packet.bth().psn;
        // What was never sent, or is acknowledged already, cannot be answered.
        if psn.is_before(self.req.una_psn) || !psn.is_before(self.req.top) {
            ports.count(Count::StrayAck);
            self.stray(now, packet);
            return Handled::Done;
        }
        let handled = match packet.opcode().operation() {
            Operation::Acknowledge => {
                if let Some(aeth) = packet.aeth() {
                    self.handle_ack(now, psn, aeth, ports);
                }
                Ok(())
            }
            Operation::ReadRespFirst
            | Operation::ReadRespMiddle
            | Operation::ReadRespLast
            | Operation::ReadRespOnly
            | Operation::AtomicAck => self.handle_data(now, packet, payload, ports),
            _ => {
                ports.count(Count::Unexpected);
                Ok(())
            }
        };
        if self.state == State::Sqd {
            self.note_drained();
        }
        match handled {
            Ok(()) => Handled::Done,
            Err(Absent) => Handled::Later,
        }
    }

    /// Data that has come already. The peer sends what it was asked for twice, and comes to what
    /// is wanted only then: that is not silence. It cannot go on for ever, and what lies further
    /// back than anything in flight does not come from there.
    fn stray(&mut self, now: u64, packet: &Packet<'_>) {
        let behind = u32::try_from(self.req.una_psn.delta(packet.bth().psn)).unwrap_or(0);
        let recent = (1..=Window::MAX).contains(&behind);
        let data = packet.opcode().operation() != Operation::Acknowledge;
        if !recent || !data || self.req.deadline.is_none() {
            return;
        }
        let Some(next) = ack_deadline(now, &self.attrs) else {
            return;
        };
        self.req.strays = self.req.strays.saturating_add(1);
        let wait = next.saturating_sub(now);
        let limit = now.saturating_add(wait.saturating_mul(MAX_PATIENCE));
        let limit = *self.req.patience.get_or_insert(limit);
        if self.req.strays < Window::MAX && next <= limit {
            self.req.rearm(now, &self.attrs);
        }
    }

    fn handle_ack(&mut self, now: u64, psn: Psn, aeth: Aeth, ports: &mut impl Ports) {
        let syndrome = aeth.syndrome();
        let negative = matches!(syndrome, Syndrome::RnrNak { .. } | Syndrome::Nak(_));
        if !self.is_vouched_for(psn, negative, aeth.msn(), ports) {
            return ports.count(match negative {
                true => Count::SuspectNak,
                false => Count::SuspectAck,
            });
        }
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge(now, psn.next(), ports) == Acked::Hole {
                    self.response_missing(now, ports);
                }
            }
            Syndrome::RnrNak { timer } => {
                ports.count(Count::RnrNakReceived);
                if self.acknowledge(now, psn, ports) == Acked::Hole {
                    return self.response_missing(now, ports);
                }
                // A second one for what has not been sent since is a copy of the first.
                if self.req.rnr_until.is_some() || self.req.psn == self.req.una_psn {
                    return;
                }
                if self.attrs.rnr_retry != 7 {
                    if self.req.rnr_retries == 0 {
                        ports.count(Count::RnrRetryExceeded);
                        return self.fail_oldest(WcStatus::RnrRetryExcErr, ports);
                    }
                    self.req.rnr_retries = self.req.rnr_retries.saturating_sub(1);
                }
                self.seek(psn, ports);
                self.req.deadline = None;
                self.req.prober.on_repeat(now);
                self.req.prober.rearm(now, false);
                self.req.rnr_until = Some(now.saturating_add(rnr_timer_ns(timer)));
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                ports.count(Count::SequenceNakReceived);
                // What is asked for by READs before it has been executed, so its data is on the
                // way.
                self.acknowledge(now, psn, ports);
                self.repeat(now, psn, ports);
            }
            Syndrome::Nak(code) => {
                if self.acknowledge(now, psn, ports) == Acked::Hole {
                    return self.response_missing(now, ports);
                }
                let status = match code {
                    NakCode::InvalidRequest | NakCode::InvalidRd => WcStatus::RemInvReqErr,
                    NakCode::PsnSequence => return,
                    NakCode::RemoteAccess => WcStatus::RemAccessErr,
                    NakCode::RemoteOperational => WcStatus::RemOpErr,
                };
                self.fail_oldest(status, ports);
            }
            Syndrome::Reserved => ports.count(Count::Unexpected),
        }
    }

    fn fail_oldest(&mut self, status: WcStatus, ports: &mut impl Ports) {
        if let Some(slot) = ports.sq_slot(self.req.una).map(|s| *s) {
            self.fail(&slot, status, ports);
        }
    }

    /// Completes all requests whose last PSN is before `upto` and notes how far the one that
    /// holds `upto` has come.
    fn acknowledge(&mut self, now: u64, upto: Psn, ports: &mut impl Ports) -> Acked {
        let before = self.req.una_psn;
        let mut result = Acked::Clean;
        while index_before(self.req.una, self.req.fresh) && self.req.una_psn.is_before(upto) {
            let Some(slot) = ports.sq_slot(self.req.una).map(|s| *s) else {
                break;
            };
            if slot.wr.op.needs_response() {
                result = Acked::Hole;
                break;
            }
            if slot.run.last.is_before(upto) {
                self.finish(&slot, WcStatus::Success, ports);
            } else {
                self.req.una_psn = upto;
                break;
            }
        }
        self.finish_local(ports);
        self.progress(now, before, ports);
        result
    }

    /// Book-keeping after `una_psn` may have moved from `before`.
    fn progress(&mut self, now: u64, before: Psn, ports: &mut impl Ports) {
        let moved = u32::try_from(self.req.una_psn.delta(before)).unwrap_or(0);
        if moved == 0 {
            return;
        }
        self.req.refill_retries(&self.attrs);
        self.req.strays = 0;
        self.req.patience = None;
        self.req.gap_due = None;
        self.trains.on_acknowledged(self.req.una_psn);
        self.req.window.on_progress(moved, self.req.una_psn);
        self.req.prober.on_progress(self.req.una_psn, now);
        let bytes = u64::from(moved).saturating_mul(self.attrs.mtu.bytes().into());
        self.pacer.on_acknowledged(now, bytes);
        self.req.rearm(now, &self.attrs);
        self.req.rnr_until = None;
        if self.req.psn.is_before(self.req.una_psn) {
            // Acknowledged after all while we were going back.
            self.seek(self.req.una_psn, ports);
        }
    }

    /// A response was lost on the way (IBTA vol1 9.7.5.2.8, implied NAK): ask again at once, but
    /// only once for a hole; the rest of the old responses is still under way.
    pub(super) fn response_missing(&mut self, now: u64, ports: &mut impl Ports) {
        self.req.gap_due = None;
        let at = self.req.una_psn;
        if self.req.gap_at == Some(at) {
            // The peer is alive and busy with what it was asked before.
            self.req.rearm(now, &self.attrs);
            return;
        }
        if self.repeat(now, at, ports) {
            self.req.gap_at = Some(at);
            ports.count(Count::ImpliedNak);
        }
    }

    /// A packet that answers a READ, an ATOMIC or the like.
    fn handle_data(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Absent> {
        let psn = packet.bth().psn;
        // Responses come in order, so there is but one packet that can be next.
        let Some((index, slot)) = self.oldest_asked(ports) else {
            ports.count(Count::Unexpected);
            return Ok(());
        };
        let placed = slot.run.placed;
        let done = placed.checked_div(self.attrs.mtu.bytes()).unwrap_or(0);
        let expected = slot.run.first.wrapping_add(done);
        if psn.is_before(expected) {
            if psn.is_before(slot.run.first) {
                ports.count(Count::Unexpected);
            }
            return Ok(());
        }
        if psn != expected {
            self.response_early(now, packet, expected, ports);
            return Ok(());
        }
        if index != self.req.una {
            // It acknowledges all requests before its own, none of which waits for data.
            self.acknowledge(now, slot.run.first, ports);
        }
        match (slot.wr.op, packet.opcode().operation(), packet.atomic_ack()) {
            (SendOp::CmpSwp | SendOp::FetchAdd, Operation::AtomicAck, Some(value)) => {
                self.handle_atomic_data(now, &slot, value.original(), ports)
            }
            (_, Operation::AtomicAck, _) | (SendOp::CmpSwp | SendOp::FetchAdd, ..) => {
                ports.count(Count::Unexpected);
                Ok(())
            }
            (op, operation, _) => {
                let last = matches!(operation, Operation::ReadRespLast | Operation::ReadRespOnly);
                if op == SendOp::Read {
                    return self.handle_read_data(now, psn, &slot, last, payload, ports);
                }
                self.handle_done(now, &slot, last && payload.is_empty(), ports);
                Ok(())
            }
        }
    }

    fn handle_read_data(
        &mut self,
        now: u64,
        psn: Psn,
        slot: &SqSlot,
        last: bool,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Absent> {
        let mtu = self.attrs.mtu.bytes();
        let placed = slot.run.placed;
        let left = slot.wr.length.saturating_sub(placed);
        let chunk = left.min(mtu);
        // The answer to a question for one packet ends there.
        let alone = last && left > mtu && self.req.asked_at == Some(psn);
        let ends = last && !alone;
        if usize::try_from(chunk).ok() != Some(payload.len()) || ends != (left <= mtu) {
            self.fail(slot, WcStatus::BadRespErr, ports);
            return Ok(());
        }
        if chunk > 0 && !self.place(slot, placed, payload, ports)? {
            return Ok(());
        }
        let before = self.req.una_psn;
        if ends {
            self.finish(slot, WcStatus::Success, ports);
            self.finish_local(ports);
        } else {
            if let Some(slot) = ports.sq_slot(self.req.una) {
                slot.run.placed = placed.saturating_add(chunk);
            }
            self.req.una_psn = psn.next();
        }
        self.progress(now, before, ports);
        if alone {
            // All that was sent before it is lost.
            self.response_missing(now, ports);
        }
        Ok(())
    }

    /// Places response data of the oldest request; false if that failed and the QP with it.
    fn place(
        &mut self,
        slot: &SqSlot,
        offset: u32,
        data: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<bool, Absent> {
        match ports.scatter(self.req.una, offset, data) {
            Ok(()) => Ok(true),
            Err(LocalFault::NotPresent) => Err(Absent),
            Err(LocalFault::Refused) => {
                self.fail(slot, WcStatus::LocProtErr, ports);
                Ok(false)
            }
        }
    }

    /// The answer to ATOMIC WRITE and FLUSH: a READ response of nothing.
    fn handle_done(&mut self, now: u64, slot: &SqSlot, fits: bool, ports: &mut impl Ports) {
        if !fits {
            return self.fail(slot, WcStatus::BadRespErr, ports);
        }
        let before = self.req.una_psn;
        self.finish(slot, WcStatus::Success, ports);
        self.finish_local(ports);
        self.progress(now, before, ports);
    }

    fn handle_atomic_data(
        &mut self,
        now: u64,
        slot: &SqSlot,
        value: u64,
        ports: &mut impl Ports,
    ) -> Result<(), Absent> {
        let bytes = value.to_ne_bytes();
        if !self.place(slot, 0, &Payload::from_slice(&bytes), ports)? {
            return Ok(());
        }
        let before = self.req.una_psn;
        self.finish(slot, WcStatus::Success, ports);
        self.finish_local(ports);
        self.progress(now, before, ports);
        Ok(())
    }
}
