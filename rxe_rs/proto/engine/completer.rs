// SPDX-License-Identifier: GPL-2.0
//! Responses of the peer: acknowledgements, NAKs, READ and ATOMIC data.

use super::attrs::State;
use super::ports::{Count, Handled, LocalFault, Ports};
use super::qp::Qp;
use super::requester::index_before;
use super::wc::WcStatus;
use super::window::Window;
use super::wr::{SendOp, SqSlot};
use crate::ids::Psn;
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};
use crate::wire::rnr::rnr_timer_ns;

/// The memory for a response is not there.
struct Absent;

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
                    self.handle_ack(now, psn, aeth.syndrome(), ports);
                }
                Ok(())
            }
            Operation::ReadRespFirst | Operation::ReadRespMiddle => {
                self.handle_read_data(now, psn, false, payload, ports)
            }
            Operation::ReadRespLast | Operation::ReadRespOnly => {
                self.handle_read_data(now, psn, true, payload, ports)
            }
            Operation::AtomicAck => match packet.atomic_ack() {
                Some(value) => self.handle_atomic_data(now, psn, value.original(), ports),
                None => Ok(()),
            },
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
    /// is wanted only then: that is not silence. It cannot go on for ever.
    fn stray(&mut self, now: u64, packet: &Packet<'_>) {
        if packet.opcode().operation() == Operation::Acknowledge || self.req.deadline.is_none() {
            return;
        }
        self.req.strays = self.req.strays.saturating_add(1);
        if self.req.strays < Window::MAX {
            self.req.rearm(now, &self.attrs);
        }
    }

    fn handle_ack(&mut self, now: u64, psn: Psn, syndrome: Syndrome, ports: &mut impl Ports) {
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
                if self.attrs.rnr_retry != 7 {
                    if self.req.rnr_retries == 0 {
                        ports.count(Count::RnrRetryExceeded);
                        return self.fail_oldest(WcStatus::RnrRetryExcErr, ports);
                    }
                    self.req.rnr_retries = self.req.rnr_retries.saturating_sub(1);
                }
                self.seek(psn, ports);
                self.req.deadline = None;
                self.req.prober.on_repeat();
                self.req.prober.rearm(now, false);
                self.req.rnr_until = Some(now.saturating_add(rnr_timer_ns(timer)));
            }
            Syndrome::Nak(code) => {
                if self.acknowledge(now, psn, ports) == Acked::Hole {
                    return self.response_missing(now, ports);
                }
                let status = match code {
                    NakCode::PsnSequence => {
                        ports.count(Count::SequenceNakReceived);
                        return self.retry(now, ports);
                    }
                    NakCode::InvalidRequest | NakCode::InvalidRd => WcStatus::RemInvReqErr,
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
        self.req.window.on_progress(moved, self.req.una_psn);
        self.req.prober.on_progress(self.req.una_psn, now);
        self.req.rearm(now, &self.attrs);
        self.req.rnr_until = None;
        if self.req.psn.is_before(self.req.una_psn) {
            // Acknowledged after all while we were going back.
            self.seek(self.req.una_psn, ports);
        }
    }

    /// A response was lost on the way (IBTA vol1 9.7.5.2.8, implied NAK): ask again at once, but
    /// only once for a hole; the rest of the old responses is still under way.
    fn response_missing(&mut self, now: u64, ports: &mut impl Ports) {
        let at = self.req.una_psn;
        if self.req.gap_at == Some(at) {
            // The peer is alive and busy with what it was asked before.
            self.req.rearm(now, &self.attrs);
            return;
        }
        self.req.gap_at = Some(at);
        ports.count(Count::ImpliedNak);
        self.retry(now, ports);
    }

    /// Completes what precedes the READ or ATOMIC that `psn` answers and returns that request.
    fn answered_slot(&mut self, now: u64, psn: Psn, ports: &mut impl Ports) -> Option<SqSlot> {
        // The response acknowledges all requests before its own; find where that one begins.
        let mut index = self.req.una;
        let first = loop {
            if !index_before(index, self.req.fresh) {
                return None;
            }
            let run = ports.sq_slot(index)?.run;
            if !run.last.is_before(psn) {
                break run.first;
            }
            index = index.wrapping_add(1);
        };
        if first.is_before(self.req.una_psn) || index == self.req.una {
            // The oldest request itself.
        } else if self.acknowledge(now, first, ports) == Acked::Hole {
            self.response_missing(now, ports);
            return None;
        }
        let slot = *ports.sq_slot(self.req.una)?;
        if slot.wr.op.needs_response() {
            Some(slot)
        } else {
            ports.count(Count::Unexpected);
            None
        }
    }

    fn handle_read_data(
        &mut self,
        now: u64,
        psn: Psn,
        last: bool,
        payload: &Payload<'_>,
        ports: &mut impl Ports,
    ) -> Result<(), Absent> {
        let Some(slot) = self.answered_slot(now, psn, ports) else {
            return Ok(());
        };
        match slot.wr.op {
            SendOp::Read => {}
            SendOp::AtomicWrite | SendOp::Flush => {
                self.handle_done(now, psn, &slot, last && payload.is_empty(), ports);
                return Ok(());
            }
            _ => {
                ports.count(Count::Unexpected);
                return Ok(());
            }
        }
        let mtu = self.attrs.mtu.bytes();
        let placed = slot.run.placed;
        let expected = slot
            .run
            .first
            .wrapping_add(placed.checked_div(mtu).unwrap_or(0));
        if psn.is_before(expected) {
            return Ok(());
        }
        if psn != expected {
            self.response_missing(now, ports);
            return Ok(());
        }
        let left = slot.wr.length.saturating_sub(placed);
        let chunk = left.min(mtu);
        // The answer to a question for one packet ends there.
        let alone = last && left > mtu && self.req.asked_at == Some(psn);
        let ends = last && !alone;
        if usize::try_from(chunk).ok() != Some(payload.len()) || ends != (left <= mtu) {
            self.fail(&slot, WcStatus::BadRespErr, ports);
            return Ok(());
        }
        if chunk > 0 && !self.place(&slot, placed, payload, ports)? {
            return Ok(());
        }
        let before = self.req.una_psn;
        if ends {
            self.finish(&slot, WcStatus::Success, ports);
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
    fn handle_done(
        &mut self,
        now: u64,
        psn: Psn,
        slot: &SqSlot,
        fits: bool,
        ports: &mut impl Ports,
    ) {
        if psn != slot.run.first {
            return ports.count(Count::Unexpected);
        }
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
        psn: Psn,
        value: u64,
        ports: &mut impl Ports,
    ) -> Result<(), Absent> {
        let Some(slot) = self.answered_slot(now, psn, ports) else {
            return Ok(());
        };
        if !matches!(slot.wr.op, SendOp::CmpSwp | SendOp::FetchAdd) || psn != slot.run.first {
            ports.count(Count::Unexpected);
            return Ok(());
        }
        let bytes = value.to_ne_bytes();
        if !self.place(&slot, 0, &Payload::from_slice(&bytes), ports)? {
            return Ok(());
        }
        let before = self.req.una_psn;
        self.finish(&slot, WcStatus::Success, ports);
        self.finish_local(ports);
        self.progress(now, before, ports);
        Ok(())
    }
}
