// SPDX-License-Identifier: GPL-2.0
//! Packet mutator: changes a few fields of frames of live connections, and mostly corrects lengths
//! and checksums, so that the packets pass those checks.

use crate::wire::icrc::{icrc, SoftCrc};
use std::collections::BTreeSet;
use std::vec::Vec;

/// Number of frames stored: the PSNs of older ones are out of date.
const KEEP: usize = 64;
/// Maximum bytes of a generated frame with headers: Ethernet of MTU 1500.
const LONGEST: usize = 1514;
const ETHERNET: usize = 14;
const UDP: usize = 8;
const BTH: usize = 12;
const ICRC: usize = 4;
const PORT: [u8; 2] = 4791u16.to_be_bytes();

/// Offset of the BTH in an Ethernet frame with RoCE v2 over IPv4 or IPv6; none in other frames.
fn bth_offset(frame: &[u8]) -> Option<usize> {
    let udp = match frame.get(12..14)? {
        [0x08, 0x00] if *frame.get(23)? == 17 => {
            let first = *frame.get(ETHERNET)?;
            (first >> 4 == 4 && first & 15 >= 5)
                .then_some(ETHERNET + 4 * usize::from(first & 15))?
        }
        [0x86, 0xdd] if *frame.get(20)? == 17 => ETHERNET + 40,
        _ => return None,
    };
    (frame.get(udp + 2..udp + 4)? == PORT).then_some(udp + UDP)
}

fn qpn_of(frame: &[u8], bth: usize) -> Option<u32> {
    match frame.get(bth + 5..bth + 8)? {
        [a, b, c] => Some(u32::from_be_bytes([0, *a, *b, *c])),
        _ => None,
    }
}

/// Corrects lengths, the IPv4 header checksum and the ICRC.
fn repair(frame: &mut [u8], bth: usize) {
    let udp_len = ((frame.len() - bth + UDP) as u16).to_be_bytes();
    frame[bth - 4..bth - 2].copy_from_slice(&udp_len);
    let ip = &mut frame[ETHERNET..];
    if ip[0] >> 4 == 4 {
        let total = (ip.len() as u16).to_be_bytes();
        ip[2..4].copy_from_slice(&total);
        ip[10..12].fill(0);
        let header = usize::from(ip[0] & 15) * 4;
        let sum: u32 = ip[..header]
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        ip[4..6].copy_from_slice(&udp_len);
    }
    if frame.len() >= bth + BTH + ICRC {
        let body = frame.len() - ICRC;
        let sum = icrc(&SoftCrc, &frame[ETHERNET..bth], &frame[bth..body], []);
        frame[body..].copy_from_slice(&sum);
    }
}

/// Learns frames and generates mutations of them. Deterministic for a seed.
pub struct Mutator {
    rng: fastrand::Rng,
    seen: Vec<Vec<u8>>,
    oldest: usize,
    excluded: BTreeSet<u32>,
}

impl Mutator {
    /// A mutator that never generates a packet for one of the QPs `excluded`.
    pub fn new(seed: u64, excluded: impl IntoIterator<Item = u32>) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            seen: Vec::new(),
            oldest: 0,
            excluded: excluded.into_iter().collect(),
        }
    }

    fn is_allowed(&self, frame: &[u8]) -> bool {
        bth_offset(frame)
            .and_then(|bth| qpn_of(frame, bth))
            .is_none_or(|qpn| !self.excluded.contains(&qpn))
    }

    /// Learns a frame; ignores other than RoCE packets, too long frames and excluded QPs.
    pub fn learn(&mut self, frame: &[u8]) {
        let whole = |bth: usize| frame.len() >= bth + BTH + ICRC && frame.len() <= LONGEST;
        if !bth_offset(frame).is_some_and(whole) || !self.is_allowed(frame) {
            return;
        }
        if self.seen.len() < KEEP {
            self.seen.push(frame.to_vec());
        } else {
            self.seen[self.oldest] = frame.to_vec();
            self.oldest = (self.oldest + 1) % KEEP;
        }
    }

    /// A mutated packet; `None` before a frame was learnt.
    pub fn packet(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.attempt()?;
            if self.is_allowed(&frame) {
                return Some(frame);
            }
        }
    }

    fn attempt(&mut self) -> Option<Vec<u8>> {
        let mut frame = self.rng.choice(&self.seen)?.clone();
        let bth = bth_offset(&frame)?;
        for _ in 0..self.rng.usize(1..4) {
            self.change(&mut frame, bth);
        }
        let care = self.rng.u8(0..16);
        if care != 0 {
            repair(&mut frame, bth);
        }
        if care == 1 {
            let last = frame.len() - 1;
            frame[last] ^= 1 << self.rng.u8(0..8);
        }
        // After the correction: wrong outer lengths.
        if care == 2 {
            frame[bth - 3] ^= 1 << self.rng.u8(0..8);
        }
        Some(frame)
    }

    fn interesting(&mut self) -> u32 {
        let chosen = [
            0,
            1,
            4,
            255,
            256,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX,
            u32::MAX - 7,
        ];
        let any = self.rng.u32(..);
        *self.rng.choice(&chosen).unwrap_or(&any) ^ if self.rng.bool() { 0 } else { any }
    }

    /// Changes one field of the packet with its BTH at `bth`, without moving the BTH.
    fn change(&mut self, frame: &mut Vec<u8>, bth: usize) {
        let body = bth + BTH..frame.len().max(bth + BTH + ICRC) - ICRC;
        // Every frame keeps its BTH.
        if frame.len() < bth + BTH + ICRC {
            frame.resize(bth + BTH + ICRC, 0);
        }
        match self.rng.u8(0..16) {
            0 => {
                for _ in 0..self.rng.usize(1..6) {
                    let at = self.rng.usize(bth..frame.len());
                    frame[at] ^= 1 << self.rng.u8(0..8);
                }
            }
            1 => frame[bth] = self.rng.u8(..),
            // Another operation of the same service, or of any.
            2 => frame[bth] = frame[bth] & 0xe0 | self.rng.u8(0..0x20),
            3 => {
                let psn = [
                    frame[bth + 8],
                    frame[bth + 9],
                    frame[bth + 10],
                    frame[bth + 11],
                ];
                let change = match self.rng.u8(0..4) {
                    0 => self.interesting(),
                    1 => 1 << self.rng.u8(0..24),
                    _ => self.rng.u32(0..16).wrapping_sub(8),
                };
                let new = u32::from_be_bytes(psn).wrapping_add(change) & 0xff_ffff;
                let ack_req = u32::from(self.rng.bool()) << 31;
                frame[bth + 8..bth + 12].copy_from_slice(&(new | ack_req).to_be_bytes());
            }
            // Solicited event, migration state, pad count, version.
            4 => frame[bth + 1] ^= self.rng.u8(..),
            5 => frame[bth + 2 + self.rng.usize(0..2)] ^= 1 << self.rng.u8(0..8),
            6 => {
                let other = self.rng.choice(&self.seen).cloned().unwrap_or_default();
                let known = bth_offset(&other).and_then(|at| qpn_of(&other, at));
                let qpn = match self.rng.u8(0..6) {
                    0 => 0,
                    1 => 1,
                    2 => 0xff_ffff,
                    3 => self.rng.u32(0..0x100_0000),
                    _ => known.unwrap_or(1),
                };
                frame[bth + 5..bth + 8].copy_from_slice(&qpn.to_be_bytes()[1..]);
            }
            // Words of the headers after the BTH: addresses, keys, lengths, syndromes.
            7..=9 if !body.is_empty() => {
                let room = body.len().min(28) / 4;
                if room > 0 {
                    let at = body.start + 4 * self.rng.usize(0..room);
                    let word = self.interesting().to_be_bytes();
                    frame[at..at + 4].copy_from_slice(&word);
                }
            }
            10 => frame.truncate(self.rng.usize(body.start..=body.end) + ICRC),
            11 => {
                let more = self.rng.usize(1..300);
                let len = (frame.len() + more).min(LONGEST);
                frame.resize(len, self.rng.u8(..));
            }
            // ECN codepoint, FECN and BECN, time to live.
            12 => {
                if frame[ETHERNET] >> 4 == 4 {
                    frame[ETHERNET + 1] = self.rng.u8(..);
                    frame[ETHERNET + 8] = self.rng.u8(..);
                } else {
                    frame[ETHERNET + 1] = self.rng.u8(..);
                    frame[ETHERNET + 7] = self.rng.u8(..);
                }
                frame[bth + 4] = self.rng.u8(..);
            }
            // Fragments, options of IPv4; traffic class and next header of IPv6.
            13 => {
                let at = ETHERNET + [0, 6, 7][self.rng.usize(0..3)];
                if frame[ETHERNET] >> 4 == 4 && self.rng.u8(0..4) == 0 {
                    let bit = 1 << self.rng.u8(0..8);
                    // The version stays and the header keeps its length, or nothing would find the
                    // BTH.
                    frame[at] ^= if at == ETHERNET { 0 } else { bit };
                }
            }
            // Another peer: source address, source port, checksum of UDP.
            14 => {
                let at = bth - UDP - self.rng.usize(1..9);
                frame[at] ^= 1 << self.rng.u8(0..8);
            }
            15 => frame[bth - 2..bth].copy_from_slice(&self.rng.u16(..).to_be_bytes()),
            _ => {}
        }
    }
}

/// Serves commands until the end of input: `L`, a length of two bytes and a frame: learn the frame;
/// `G` and a count of four bytes: write this many frames, each after its length (0 for none). All
/// numbers are big-endian.
pub fn serve(
    mutator: &mut Mutator,
    input: &mut impl std::io::Read,
    output: &mut impl std::io::Write,
) -> std::io::Result<()> {
    let mut kind = [0];
    while input.read(&mut kind)? != 0 {
        if &kind == b"L" {
            let mut len = [0; 2];
            input.read_exact(&mut len)?;
            let mut frame = std::vec![0; usize::from(u16::from_be_bytes(len))];
            input.read_exact(&mut frame)?;
            mutator.learn(&frame);
        } else {
            let mut count = [0; 4];
            input.read_exact(&mut count)?;
            for _ in 0..u32::from_be_bytes(count) {
                let frame = mutator.packet().unwrap_or_default();
                output.write_all(&(frame.len() as u16).to_be_bytes())?;
                output.write_all(&frame)?;
            }
            output.flush()?;
        }
    }
    Ok(())
}
