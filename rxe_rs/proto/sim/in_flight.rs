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
}
