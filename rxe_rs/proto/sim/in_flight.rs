// SPDX-License-Identifier: GPL-2.0
//! The packets in flight between the two sides: what tests find among them, and lose.

use super::Pair;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;
use std::vec::Vec;

impl Pair {
    /// The packets in flight.
    pub fn packets_in_flight(&self) -> impl Iterator<Item = &[u8]> {
        self.wire.values().map(|packet| &packet.bytes[..])
    }

    /// Lengths of the READ requests in flight.
    pub fn read_lengths(&self) -> Vec<u32> {
        self.packets_in_flight()
            .filter_map(|udp| Packet::parse(udp, udp.len()).ok())
            .filter(|packet| packet.opcode().operation() == Operation::ReadRequest)
            .filter_map(|packet| packet.reth().map(|reth| reth.dma_len()))
            .collect()
    }

    /// Sends requests of side 0 and has side 1 execute them, without responses.
    pub fn execute(&mut self) {
        self.transmit(0);
        let end = self.qps[0].sq_psn();
        while self.qps[1].rq_psn() != end {
            assert!(self.step());
        }
    }

    /// Lets all packets in flight arrive, before either side transmits.
    pub fn deliver_all(&mut self) {
        while let Some(((at, _), packet)) = self.wire.pop_first() {
            self.now = self.now.max(at);
            self.deliver(packet);
        }
    }

    /// Drops all packets in flight.
    pub fn drop_in_flight(&mut self) {
        self.wire.clear();
    }

    /// Drops the packets in flight that `lost` chooses; returns how many.
    pub fn drop_chosen(&mut self, lost: impl Fn(&Packet<'_>) -> bool) -> usize {
        let before = self.wire.len();
        self.wire.retain(|_, in_flight| {
            let bytes = &in_flight.bytes;
            !Packet::parse(bytes, bytes.len()).is_ok_and(|packet| lost(&packet))
        });
        before - self.wire.len()
    }

    /// Sends a packet of `len` bytes through the network: nanoseconds until it has passed the wire
    /// and the queue, and whether that has marked it; `None` if it was lost.
    pub(super) fn pass_network(&mut self, to: usize, len: usize) -> Option<(u64, bool)> {
        if self.rng.f64() < self.link.loss {
            return None;
        }
        let waits = self.enqueue(to)?;
        let Some(queue) = &self.queues[to] else {
            return Some((waits, false));
        };
        let (at, marked) = queue.borrow_mut().pass(self.now + waits, len)?;
        Some((at - self.now, marked))
    }

    /// Nanoseconds until a packet has passed the wire; `None` if the queue is full.
    fn enqueue(&mut self, to: usize) -> Option<u64> {
        if self.link.packet_ns == 0 {
            return Some(0);
        }
        let begin = self.wire_free[to].max(self.now);
        if (begin - self.now) / self.link.packet_ns >= self.link.queue {
            return None;
        }
        let stall = match self.rng.f64() < self.link.stall {
            true => self.rng.u64(0..=self.link.stall_ns),
            false => 0,
        };
        self.wire_free[to] = begin + stall + self.link.packet_ns;
        Some(self.wire_free[to] - self.now)
    }
}
