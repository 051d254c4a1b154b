// SPDX-License-Identifier: GPL-2.0
//! Delayed acknowledgements: where the consumer replies to each message of the peer, the ACK of
//! the message waits for the reply and leaves with it.
//!
//! A process replies by a doorbell of its own, long after the message has arrived. An ACK sent
//! before that is one more traversal of the network stack for both hosts. Compare the delayed ACKs
//! of TCP (RFC 1122, 4.2.3.2). Processes that sleep until they are notified are an exception: they
//! handle the completion of their request while the peer wakes up, and would have to do it after
//! the reply has arrived.
//!
//! The ACK must not become what the peer waits for. So it is delayed only after many replies in a
//! row, one for each message, and only while nothing of this side is in flight: if both sides wait
//! for their own completions before they send again, neither ACK waits for the other. A reply that
//! does not come in time ends the delays. Now and then the ACKs of some messages are not delayed,
//! which shows a peer that would have sent its next message before the reply.

use super::attrs::{Attrs, State};
use super::qp::Qp;
use crate::time::Instant;
use crate::wire::aeth::Syndrome;
use crate::wire::rnr::ack_timeout_ns;

/// Replies in a row before ACKs are delayed. The number of replies wraps at 256, after which that
/// many are needed again.
const MIN_REPLIES: u8 = 16;

/// A reply counts if it follows the message within so many nanoseconds.
const REPLY_NS: u64 = 200_000;

/// Maximum delay of an ACK, in nanoseconds. That is less than the minimum timeout of the tail loss
/// probes of this driver's requester (`probe.rs`).
const MAX_DELAY_NS: u64 = 400_000;

/// Minimum acknowledgement timeout of a QP that delays ACKs, in nanoseconds: its peer, which is
/// assumed to have the same one, must not retransmit meanwhile.
const MIN_ACK_TIMEOUT_NS: u64 = 4_000_000;

/// What a responder knows about the replies of its consumer.
#[derive(Debug)]
pub(super) struct DelayedAck {
    /// When the last message arrived whose ACK may wait, until the consumer replies.
    unanswered: Option<Instant>,
    /// Messages in a row to which the consumer has replied in time.
    replies: u8,
}

impl DelayedAck {
    pub(super) const fn new() -> Self {
        Self {
            unanswered: None,
            replies: 0,
        }
    }

    /// A request has been executed that requests an ACK, which may wait if `may_wait` is true.
    #[inline]
    pub(super) fn on_request(&mut self, now: Instant, may_wait: bool) {
        if self.unanswered.is_some() {
            self.replies = 0;
        }
        self.unanswered = may_wait.then_some(now);
    }

    /// The consumer has requests to send; `idle` if nothing else of this side is in flight.
    #[inline]
    pub(super) fn on_send(&mut self, now: Instant, idle: bool) {
        let Some(at) = self.unanswered.take() else {
            return;
        };
        self.replies = match idle && now <= at.saturating_add(REPLY_NS) {
            true => self.replies.wrapping_add(1),
            false => 0,
        };
    }

    /// The ACK, if it is delayed, is to be sent now, and further ones are not to be delayed.
    pub(super) fn release(&mut self) {
        self.unanswered = None;
        self.replies = 0;
    }

    /// Until when the ACK of the last message may wait for a reply, if it may.
    #[inline]
    fn deadline(&self) -> Option<Instant> {
        let at = self.unanswered.filter(|_| self.replies >= MIN_REPLIES)?;
        Some(at.saturating_add(MAX_DELAY_NS))
    }

    /// Handles the time `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.release();
        }
    }
}

/// True if the timeout of a QP is long enough for delayed ACKs.
fn is_patient(attrs: &Attrs) -> bool {
    ack_timeout_ns(attrs.timeout).is_none_or(|timeout| timeout >= MIN_ACK_TIMEOUT_NS)
}

impl Qp {
    /// When the ACK that waits for a reply is sent without one; `None` if no ACK waits. The
    /// responder decides when to send an ACK, and may coalesce several (IBTA 9.7.5.1.2).
    #[inline]
    pub(super) fn delayed_ack_deadline(&self) -> Option<Instant> {
        let deadline = self.resp.delayed_ack.deadline()?;
        let waits = self.state == State::Rts
            && matches!(self.resp.ack, Some((_, Syndrome::Ack { .. })))
            && self.req.is_idle()
            && is_patient(&self.attrs);
        waits.then_some(deadline)
    }

    /// Sends the ACK that waits for a reply, if there is one, with the next
    /// [`Qp::poll_transmit`].
    pub fn release_ack(&mut self) {
        self.resp.delayed_ack.release();
    }
}
