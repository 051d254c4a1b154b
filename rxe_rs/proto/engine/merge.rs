// SPDX-License-Identifier: GPL-2.0
//! Merged packets: between two queue pairs of one kernel, a packet may carry the payload of several
//! consecutive packets of a message, more than the path MTU.
//!
//! It has the headers of the first of them, the operation of all together, and takes the PSNs of
//! all: a message of three packets, merged, is an "only" packet that takes three PSNs. The network
//! below delivers such a packet whole or drops it, and never divides it. A receiver accepts it only
//! with the tag of a packet that has not left the memory
//! ([`HostTag::NoIcrc`](super::same_host::HostTag)), so none comes from elsewhere.
//!
//! The payload need not be in the packet: the packet says where it is in the memory of the sender
//! ([`Reference`]), and the receiver copies it from there. So there is one copy instead of two. The
//! packets of a SEND or WRITE name bytes of a request, which the sender permits to be copied until
//! the request has completed. READ responses name bytes of a region, and the receiver needs the
//! same rights to it as the READ.
//!
//! Only what is sent for the first time is merged. There may be a device on the path that drops
//! merged packets and no others: after a loss none are sent for a while, a longer one each time.

use super::backend::{Dest, Tx, TxFault};
use super::qp::Qp;
use super::requester::packets;
use crate::ids::Psn;
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;

/// Packets that are not merged after the loss of a merged one.
const PAUSE: u32 = 64;

/// How often that number doubles, while no merged packet arrives.
const MAX_BACKOFF: u8 = 10;

/// Whether the packets in one direction may be merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merging {
    /// Packets that are still to be sent before one is merged again.
    pause: u32,
    /// Losses since a merged packet arrived.
    backoff: u8,
    /// PSN after the oldest merged packet that may not have arrived.
    end: Option<Psn>,
    /// Requests for a response since then.
    requests: u32,
}

impl Merging {
    pub(super) const fn new() -> Self {
        Self {
            pause: 0,
            backoff: 0,
            end: None,
            requests: 0,
        }
    }

    /// A merged packet is sent; `end` is the PSN after it.
    fn on_sent(&mut self, end: Psn) {
        if self.end.is_none() {
            self.end = Some(end);
            self.requests = 0;
        }
    }

    /// The peer has received all packets before `una`.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, una: Psn) {
        if self.end.is_some_and(|end| !una.is_before(end)) {
            self.on_arrived();
        }
    }

    /// A new request for a response arrived, of which the peer may have `limit` outstanding.
    #[inline]
    pub(super) fn on_new_request(&mut self, limit: u8) {
        if self.end.is_none() {
            return;
        }
        self.requests = self.requests.saturating_add(1);
        if self.requests > u32::from(limit) {
            // The peer has received the response of which the oldest merged packet was a part.
            self.on_arrived();
        }
    }

    fn on_arrived(&mut self) {
        self.end = None;
        self.backoff = 0;
    }

    /// A packet was lost; merged ones were in flight if any may not have arrived.
    pub(super) fn on_loss(&mut self) {
        if self.end.take().is_some() {
            self.pause = PAUSE.wrapping_shl(self.backoff.into());
            self.backoff = self.backoff.saturating_add(1).min(MAX_BACKOFF);
        }
    }

    /// Returns true if the next packet may be merged; one that could be, but is not to be yet, is
    /// counted.
    fn is_allowed(&mut self) -> bool {
        let allowed = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        allowed
    }

    /// Returns the payload of the next packet of a message, in bytes, of which `left` are still to
    /// be sent, and whether the packet is to refer to it; `room` is the maximum number of PSNs that
    /// it may take. `offer` permits the peer to copy so many bytes, or returns false.
    pub(super) fn next_len(
        &mut self,
        left: u32,
        mtu: u32,
        room: u32,
        tx: &impl Tx,
        offer: impl FnOnce(u32) -> bool,
    ) -> (u32, bool) {
        if left <= mtu || room <= 1 {
            return (left.min(mtu), false);
        }
        let referable = tx.max_by_reference();
        let by_reference = referable > mtu && offer(left.min(referable));
        let most = match by_reference {
            true => referable,
            false => tx.max_merged(),
        };
        let most = most.checked_div(mtu).unwrap_or(0).min(room);
        if most <= 1 || !self.is_allowed() {
            return (mtu, false);
        }
        (left.min(mtu.saturating_mul(most)), by_reference)
    }

    /// Sends a packet with `len` bytes of payload, merged if they are more than a path MTU.
    ///
    /// # Errors
    ///
    /// See [`TxFault`].
    pub(super) fn send_packet<E>(
        &mut self,
        headers: &Headers,
        (psn, len, mtu): (Psn, u32, u32),
        tx: &mut impl Tx,
        mut fill: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        let size = usize::try_from(len).unwrap_or(0);
        if len <= mtu {
            return tx.packet(Dest::Peer, headers, size, |dst| fill(0, dst));
        }
        let count = packets(len, mtu);
        tx.merged(headers, size, count, fill)?;
        self.on_sent(psn.wrapping_add(count));
        Ok(())
    }

    /// Sends a packet with a reference to more than a path MTU of payload.
    ///
    /// # Errors
    ///
    /// See [`TxFault`].
    pub(super) fn send_reference<E>(
        &mut self,
        headers: &Headers,
        psn: Psn,
        reference: &Reference,
        tx: &mut impl Tx,
    ) -> Result<(), TxFault<E>> {
        let count = packets(reference.len, reference.mtu);
        tx.by_reference(headers, reference, count)?;
        self.on_sent(psn.wrapping_add(count));
        Ok(())
    }
}

impl Qp {
    /// Returns how many packets a received packet with `len` bytes of payload stands for.
    #[inline]
    pub fn packets_of(&self, len: usize) -> usize {
        let mtu = usize::try_from(self.attrs.mtu.bytes()).unwrap_or(0);
        let full = len.saturating_sub(1).checked_div(mtu).unwrap_or(0);
        full.saturating_add(1)
    }

    /// Returns the number of PSNs that the received packet with `len` bytes of payload takes:
    /// several if it is merged. `None` if the length is invalid: only the `last` packet of a
    /// message may end with a part of the path MTU, and a merged one must be made of packets of the
    /// same path MTU, or the two sides would count PSNs differently.
    #[inline]
    pub(super) fn psns_of(&self, len: u32, last: bool) -> Option<u32> {
        let mtu = self.attrs.mtu.bytes();
        match self.same_host.merged() {
            None => (len == mtu || (last && len < mtu)).then_some(1),
            Some(of_peer) => {
                let full = last || len.checked_rem(mtu) == Some(0);
                (full && of_peer == mtu).then(|| packets(len, mtu))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_losses(count: u32) -> Merging {
        let mut merging = Merging::new();
        for _ in 0..count {
            merging.on_sent(Psn::new(16));
            merging.on_loss();
        }
        merging
    }

    fn pause_of(mut merging: Merging) -> u32 {
        let mut packets = 0;
        while !merging.is_allowed() {
            packets += 1;
        }
        packets
    }

    #[test]
    fn pauses_longer_after_each_loss() {
        assert_eq!(pause_of(Merging::new()), 0);
        assert_eq!(pause_of(after_losses(1)), PAUSE);
        assert_eq!(pause_of(after_losses(2)), 2 * PAUSE);
        assert_eq!(pause_of(after_losses(100)), PAUSE << MAX_BACKOFF);
    }

    #[test]
    fn losses_of_other_packets_do_not_count() {
        let mut merging = Merging::new();
        merging.on_loss();
        assert_eq!(pause_of(merging), 0);
        merging.on_sent(Psn::new(16));
        merging.on_acknowledged(Psn::new(16));
        merging.on_loss();
        assert_eq!(pause_of(merging), 0);
    }

    #[test]
    fn arrival_ends_the_doubling() {
        let mut merging = after_losses(5);
        merging.on_sent(Psn::new(16));
        merging.on_sent(Psn::new(32));
        merging.on_acknowledged(Psn::new(15));
        assert_ne!(merging.backoff, 0, "a part of it is not acknowledged");
        merging.on_acknowledged(Psn::new(16));
        merging.on_sent(Psn::new(48));
        merging.on_loss();
        assert_eq!(merging.pause, PAUSE);
    }

    /// A peer that may have four requests outstanding has received the first response when it sends
    /// the fifth request after it.
    #[test]
    fn requests_show_that_responses_arrive() {
        let mut merging = after_losses(5);
        merging.on_sent(Psn::new(16));
        for _ in 0..4 {
            merging.on_new_request(4);
            assert_ne!(merging.backoff, 0);
        }
        merging.on_new_request(4);
        assert_eq!(merging.backoff, 0);
        merging.on_loss();
        assert_eq!(pause_of(after_losses(5)), 16 * PAUSE);
        assert_eq!(merging.backoff, 0, "no merged packet was in flight");
    }
}
