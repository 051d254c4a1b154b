// SPDX-License-Identifier: GPL-2.0
//! Invariant CRC: covers all fields that routers do not change.
//!
//! The sum is the Ethernet CRC-32 over eight bytes of ones (in place of the InfiniBand link
//! header), the IP and UDP headers with their variant fields masked, the BTH with
//! its congestion byte masked, the other headers, the payload and the pad. It is sent least
//! significant byte first.

use super::bytes::put;
use super::Headers;

/// State after the eight leading bytes of ones.
const PREFIX_STATE: u32 = 0xdebb_20e3;

/// Bytes of an IPv6 and a UDP header.
const MAX_NET_LEN: usize = 40 + 8;
const SCRATCH: usize = MAX_NET_LEN + Headers::CAPACITY;

/// CRC-32 implementation: the kernel's library in the driver, a table on the host.
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
            let row = Self::TABLE
                .get(usize::from(low ^ byte))
                .copied()
                .unwrap_or(0);
            (state >> 8) ^ row
        })
    }
}

/// State of the sum after the network headers and the first headers of the packet.
///
/// `net_hdr` is the IP and UDP header exactly as on the wire: 20 + 8 bytes of IPv4 (without
/// options: RoCEv2 has none) or 40 + 8 of IPv6. Any other length gives a CRC that does not match.
/// `headers` is the BTH and the bytes that follow it in the same fragment.
#[inline]
pub fn prefix<C: Crc>(crc: &C, net_hdr: &[u8], headers: &[u8]) -> u32 {
    let mut scratch = [0u8; SCRATCH];
    let net = net_hdr.get(..MAX_NET_LEN).unwrap_or(net_hdr);
    // One call for everything that fits the scratch buffer: a copy is cheaper than a call.
    let (short, long) = headers
        .split_at_checked(Headers::CAPACITY)
        .unwrap_or((headers, &[]));
    if let Some(rest) = put(&mut scratch, net) {
        put(rest, short);
        if let Some(congestion) = rest.get_mut(CONGESTION_BYTE) {
            *congestion = 0xff;
        }
    }
    if let Some(net) = scratch.get_mut(..net.len()) {
        mask_net(net);
    }
    let end = net.len().saturating_add(short.len());
    let state = crc.crc32_le(PREFIX_STATE, scratch.get(..end).unwrap_or(&[]));
    if long.is_empty() {
        state
    } else {
        crc.crc32_le(state, long)
    }
}

/// Masks the fields of an IP header and the UDP checksum, which routers change (IBTA A17.3.3).
#[inline]
fn mask_net(header: &mut [u8]) {
    match header {
        // TOS, TTL, header checksum.
        [0x45, tos, _, _, _, _, _, _, ttl, _, sum0, sum1, ..] => {
            (*tos, *ttl, *sum0, *sum1) = (0xff, 0xff, 0xff, 0xff);
        }
        // Traffic class, flow label, hop limit; the version stays.
        [b0, b1, b2, b3, _, _, _, hop, ..] => {
            *b0 |= 0x0f;
            (*b1, *b2, *b3, *hop) = (0xff, 0xff, 0xff, 0xff);
        }
        _ => {}
    }
    if let [.., sum0, sum1] = header {
        (*sum0, *sum1) = (0xff, 0xff);
    }
}

/// Offset in the BTH of FECN, BECN and six reserved bits.
const CONGESTION_BYTE: usize = 4;

/// The four bytes on the wire of a CRC in state `state`.
#[inline]
pub const fn finish(state: u32) -> [u8; 4] {
    (!state).to_le_bytes()
}

/// The ICRC of a packet (IBTA 7.8.1): `net_hdr` and `headers` as for [`prefix`], and `frags`, the
/// rest in order, including the pad, without the ICRC. One CRC call for the headers and one for
/// each fragment.
///
/// # Examples
///
/// ```
/// use rxe_proto::ids::{Psn, Qpn};
/// use rxe_proto::wire::icrc::{icrc, SoftCrc};
/// use rxe_proto::wire::{Bth, Opcode};
///
/// let mut net = [0; 28];
/// (net[0], net[8]) = (0x45, 64);
/// let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), Psn::new(7)).emit();
/// let sent = icrc(&SoftCrc, &net, &bth, [&b"data"[..]]);
///
/// // A router decrements the time to live; the payload may lie in several pieces.
/// net[8] -= 1;
/// assert_eq!(icrc(&SoftCrc, &net, &bth, [&b"da"[..], &b"ta"[..]]), sent);
/// assert_ne!(icrc(&SoftCrc, &net, &bth, [&b"date"[..]]), sent);
/// ```
#[inline]
pub fn icrc<'p, C: Crc>(
    crc: &C,
    net_hdr: &[u8],
    headers: &[u8],
    frags: impl IntoIterator<Item = &'p [u8]>,
) -> [u8; 4] {
    let state = prefix(crc, net_hdr, headers);
    finish(
        frags
            .into_iter()
            .fold(state, |state, frag| crc.crc32_le(state, frag)),
    )
}

const _: () = assert!(CONGESTION_BYTE < super::Bth::LEN);
