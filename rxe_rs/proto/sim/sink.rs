// SPDX-License-Identifier: GPL-2.0
//! Packet sink of the simulator's engines, and the network headers.

use crate::engine::backend::{Dest, Tx, TxFault};
use crate::wire::icrc::{icrc, Crc};
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;
use std::vec::Vec;

/// Collects the packets of one round.
pub(super) struct Sink {
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) room: usize,
    pub(super) net: Vec<u8>,
    /// Number of packets after which the sink is out of memory.
    pub(super) fails_at: usize,
    /// Maximum number of packets in a GSO batch.
    pub(super) gso_max_segs: u32,
    /// Index of each packet in its GSO batch.
    pub(super) gso_indices: Vec<u32>,
    /// The GSO batch to which the next packet may be added: length of its segments, and whether a
    /// shorter one has ended it.
    pub(super) open_batch: Option<(usize, bool)>,
    pub(super) gso_disabled: bool,
    pub(super) has_icrc: bool,
    /// Maximum payload of a merged packet, and which packets are merged.
    pub(super) max_merged: u32,
    pub(super) merged: Vec<bool>,
    /// Maximum payload of a packet by reference.
    pub(super) max_by_reference: u32,
}

impl Sink {
    fn add(&mut self, packet: Vec<u8>) {
        let gso_index = match self.open_batch {
            Some((size, false)) if !self.gso_disabled && packet.len() <= size => {
                self.open_batch = Some((size, packet.len() < size));
                self.gso_index() + 1
            }
            _ => 0,
        };
        if gso_index == 0 || gso_index >= self.gso_max_segs {
            self.open_batch = Some((packet.len(), false));
            self.gso_indices.push(0);
        } else {
            self.gso_indices.push(gso_index);
        }
        self.packets.push(packet);
        self.merged.push(false);
    }

    /// Adds a packet that is in no GSO batch.
    fn add_alone(&mut self, packet: Vec<u8>, merged: bool) {
        self.packets.push(packet);
        self.gso_indices.push(0);
        self.merged.push(merged);
        self.open_batch = None;
    }
}

/// IPv4 and UDP header of a simulated packet; only what the ICRC covers matters.
pub(super) fn net_header(from: usize, udp_payload: usize) -> Vec<u8> {
    let mut h = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    h.extend([10, 0, 0, 1 + from as u8, 10, 0, 0, 2 - from as u8]);
    h[2..4].copy_from_slice(&((28 + udp_payload) as u16).to_be_bytes());
    h.extend([0xc0, 0, 0x12, 0xb7]);
    h.extend(((8 + udp_payload) as u16).to_be_bytes());
    h.extend([0, 0]);
    h
}

/// The CRC-32 of a library. A simulation, above all one in an interpreter, would spend most of its
/// time in the table look-ups of `SoftCrc`.
struct SimCrc;

impl Crc for SimCrc {
    fn crc32_le(&self, seed: u32, data: &[u8]) -> u32 {
        // The library inverts the state at both ends.
        let mut hasher = crc32fast::Hasher::new_with_initial(!seed);
        hasher.update(data);
        !hasher.finalize()
    }
}

pub(super) fn icrc_of(net: &[u8], udp: &[u8]) -> [u8; 4] {
    let bth: &[u8; 12] = udp[..12].try_into().unwrap();
    icrc(&SimCrc, net, bth, [&udp[12..]])
}

impl Tx for Sink {
    fn has_room(&self) -> bool {
        self.packets.len() < self.room
    }

    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine checks for room first");
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        assert!(matches!(to, Dest::Peer | Dest::Ah(_)));
        let mut udp = headers.as_slice().to_vec();
        let start = udp.len();
        udp.resize(start + payload_len, 0);
        fill(&mut udp[start..]).map_err(TxFault::Fill)?;
        udp.resize(udp.len().next_multiple_of(4), 0);
        let side = usize::from(self.net[15] - 1);
        let net = net_header(side, udp.len() + 4);
        let crc = match self.has_icrc {
            true => icrc_of(&net, &udp),
            false => [0; 4],
        };
        udp.extend(crc);
        self.add(udp);
        Ok(())
    }

    fn max_merged(&self) -> u32 {
        match self.has_icrc {
            true => 0,
            false => self.max_merged,
        }
    }

    fn merged<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        count: u32,
        mut fill: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine checks for room first");
        assert!(count > 1 && payload_len <= self.max_merged() as usize);
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        let mut udp = headers.as_slice().to_vec();
        let start = udp.len();
        udp.resize(start + payload_len, 0);
        for (i, part) in udp[start..].chunks_mut(MERGED_PART).enumerate() {
            fill((i * MERGED_PART) as u32, part).map_err(TxFault::Fill)?;
        }
        udp.resize(udp.len().next_multiple_of(4) + 4, 0);
        self.add_alone(udp, true);
        Ok(())
    }

    fn max_by_reference(&self) -> u32 {
        match self.has_icrc {
            true => 0,
            false => self.max_by_reference,
        }
    }

    fn by_reference<E>(
        &mut self,
        headers: &Headers,
        reference: &Reference,
        count: u32,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine checks for room first");
        assert!(count > 1 && reference.len <= self.max_by_reference());
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        let mut udp = headers.as_slice().to_vec();
        udp.extend(reference.emit());
        udp.extend(Reference::MARK);
        self.add_alone(udp, true);
        Ok(())
    }

    fn gso_index(&self) -> u32 {
        self.gso_indices.last().copied().unwrap_or(0)
    }

    fn disable_gso(&mut self) {
        self.gso_disabled = true;
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine checks for room first");
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        if !FRAME_LEN.contains(&len) {
            return Err(TxFault::Unreachable);
        }
        let mut frame = vec![0; len];
        fill(&mut frame).map_err(TxFault::Fill)?;
        self.add_alone(frame, false);
        Ok(())
    }
}

/// Bytes of a merged packet that are filled together.
const MERGED_PART: usize = 1500;

/// Lengths of the frames of the simulated Ethernet.
pub const FRAME_LEN: std::ops::RangeInclusive<usize> = 14..=1518;

#[cfg(test)]
mod tests {
    use super::{Crc, SimCrc};
    use crate::wire::icrc::SoftCrc;
    use std::vec::Vec;

    /// Both ends of a simulated pair use the same sum, so no other test would notice a wrong one.
    #[test]
    fn sum_of_the_simulator_is_that_of_the_protocol() {
        let data: Vec<u8> = (0..=255u8).cycle().take(1000).collect();
        for cut in [0, 1, 15, 16, 64, 999, 1000] {
            let (head, tail) = data.split_at(cut);
            let of = |crc: &dyn Fn(u32, &[u8]) -> u32| crc(crc(0x1234_5678, head), tail);
            assert_eq!(
                of(&|seed, data| SimCrc.crc32_le(seed, data)),
                of(&|seed, data| SoftCrc.crc32_le(seed, data))
            );
        }
    }
}
