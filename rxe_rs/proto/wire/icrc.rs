// SPDX-License-Identifier: GPL-2.0
//! Invariant CRC: covers all that no router may change (RoCEv2 annex A17.3.3).
//!
//! The sum is the Ethernet CRC-32 over eight bytes of ones (in place of the InfiniBand link
//! header), the IP and UDP headers with the fields masked that change on the way, the BTH with
//! its congestion byte masked, the other headers, the payload and the pad. It is sent least
//! significant byte first.

use super::Bth;

/// State after the eight leading bytes of ones.
const PREFIX_STATE: u32 = 0xdebb_20e3;

const V4_LEN: usize = 20 + 8;
const V6_LEN: usize = 40 + 8;
const SCRATCH: usize = V6_LEN + super::Headers::CAPACITY;

/// CRC-32 engine: the kernel's library in the driver, a table on the host.
pub trait Crc {
    /// Continues the reflected CRC-32 (polynomial 0xEDB88320) from state `seed` over `data`, with
    /// no inversion on either side: the kernel's `crc32_le`.
    fn crc32_le(&self, seed: u32, data: &[u8]) -> u32;
}

/// CRC-32 by table, a byte at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftCrc;

impl SoftCrc {
    #[allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        reason = "evaluated by the compiler only"
    )]
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut state = index as u32;
            let mut bit = 0;
            while bit < 8 {
                state = (state >> 1) ^ (0xedb8_8320 & (state & 1).wrapping_neg());
                bit += 1;
            }
            table[index] = state;
            index += 1;
        }
        table
    };
}

impl Crc for SoftCrc {
    fn crc32_le(&self, seed: u32, data: &[u8]) -> u32 {
        data.iter().fold(seed, |state, byte| {
            let [low, ..] = state.to_le_bytes();
            let row = Self::TABLE.get(usize::from(low ^ byte)).copied().unwrap_or(0);
            (state >> 8) ^ row
        })
    }
}

/// IP and UDP header of a packet, exactly as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetHdr<'a> {
    /// IPv4 header without options, and UDP header.
    V4(&'a [u8; V4_LEN]),
    /// IPv6 header, and UDP header.
    V6(&'a [u8; V6_LEN]),
}

impl<'a> NetHdr<'a> {
    /// Tells the family by length and version: 28 bytes of IPv4 without options, or 48 of IPv6.
    #[inline]
    pub fn from_slice(bytes: &'a [u8]) -> Option<Self> {
        match bytes.first()? {
            0x45 => bytes.try_into().ok().map(Self::V4),
            version if version >> 4 == 6 => bytes.try_into().ok().map(Self::V6),
            _ => None,
        }
    }
}

/// State of the sum after the network headers and `headers`, which are the BTH and whatever
/// follows it in the same piece of memory.
#[inline]
pub fn prefix<C: Crc>(crc: &C, net: NetHdr<'_>, headers: &[u8]) -> u32 {
    let mut scratch = [0u8; SCRATCH];
    let net_len = match net {
        NetHdr::V4(header) => {
            if let Some(target) = scratch.first_chunk_mut::<V4_LEN>() {
                *target = *header;
                let [_, tos, _, _, _, _, _, _, ttl, _, sum0, sum1, rest @ ..] = target;
                (*tos, *ttl, *sum0, *sum1) = (0xff, 0xff, 0xff, 0xff);
                let [.., udp0, udp1] = rest;
                (*udp0, *udp1) = (0xff, 0xff);
            }
            V4_LEN
        }
        NetHdr::V6(header) => {
            if let Some(target) = scratch.first_chunk_mut::<V6_LEN>() {
                *target = *header;
                let [v0, v1, v2, v3, _, _, _, hop, rest @ ..] = target;
                *v0 |= 0x0f;
                (*v1, *v2, *v3, *hop) = (0xff, 0xff, 0xff, 0xff);
                let [.., udp0, udp1] = rest;
                (*udp0, *udp1) = (0xff, 0xff);
            }
            V6_LEN
        }
    };
    // One call for everything that fits the scratch buffer: short calls cost more than copies.
    let (short, long) =
        headers.split_at_checked(super::Headers::CAPACITY).unwrap_or((headers, &[]));
    let end = net_len.saturating_add(short.len());
    let mut state = PREFIX_STATE;
    if let Some(target) = scratch.get_mut(net_len..end) {
        target.copy_from_slice(short);
        if let Some(congestion) = target.get_mut(CONGESTION_BYTE) {
            *congestion = 0xff;
        }
    }
    if let Some(masked) = scratch.get(..end) {
        state = crc.crc32_le(state, masked);
    }
    if long.is_empty() {
        state
    } else {
        crc.crc32_le(state, long)
    }
}

/// Offset in the BTH of FECN, BECN and six reserved bits.
const CONGESTION_BYTE: usize = 4;

/// The four bytes on the wire of a sum in state `state`.
#[inline]
pub const fn finish(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}

/// The ICRC of a packet: `headers` is the BTH and any more bytes of the packet, `pieces` the rest
/// in order, pad included and ICRC not.
#[inline]
pub fn icrc<'p, C: Crc>(
    crc: &C,
    net: NetHdr<'_>,
    headers: &[u8],
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> [u8; 4] {
    let state = prefix(crc, net, headers);
    finish(pieces.into_iter().fold(state, |state, piece| crc.crc32_le(state, piece)))
}

const _: () = assert!(CONGESTION_BYTE < Bth::LEN);
