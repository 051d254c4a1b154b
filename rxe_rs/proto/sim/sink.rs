// SPDX-License-Identifier: GPL-2.0
//! Where engines of the simulator put their packets, and what the network adds to these.

use crate::engine::ports::{Dest, Tx, TxFault};
use crate::wire::icrc::{icrc, SoftCrc};
use crate::wire::repr::Headers;
use std::vec::Vec;

/// Takes the packets of one turn.
pub(super) struct Sink {
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) room: usize,
    pub(super) net: Vec<u8>,
    /// Number of packets after which there is no memory.
    pub(super) fails_at: usize,
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

pub(super) fn icrc_of(net: &[u8], udp: &[u8]) -> [u8; 4] {
    let bth: &[u8; 12] = udp[..12].try_into().unwrap();
    icrc(&SoftCrc, net, bth, [&udp[12..]])
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
        assert!(self.has_room(), "the engine asked for room first");
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
        let crc = icrc_of(&net, &udp);
        udp.extend(crc);
        self.packets.push(udp);
        Ok(())
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine asked for room first");
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        if !FRAME_LEN.contains(&len) {
            return Err(TxFault::Unreachable);
        }
        let mut frame = vec![0; len];
        fill(&mut frame).map_err(TxFault::Fill)?;
        self.packets.push(frame);
        Ok(())
    }
}

/// Lengths of the frames of the simulated Ethernet.
pub const FRAME_LEN: std::ops::RangeInclusive<usize> = 14..=1518;
