// SPDX-License-Identifier: GPL-2.0
//! What a packet by reference has in place of its payload (`engine/merge.rs`).
//!
//! Such a packet never leaves the kernel that sent it, so this is no wire format that others know.

use super::packet::Packet;
use super::payload::Source;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::FromBytes;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The payload that a packet refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Where it begins in the sender's request.
    pub source: Source,
    /// Its length in bytes.
    pub len: u32,
    /// The sender's path MTU in bytes: the packet takes as many PSNs as packets of that length
    /// would.
    pub mtu: u32,
}

/// The bytes of a [`Reference`].
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct Bytes {
    index: U32,
    offset: U32,
    len: U32,
    mtu: U32,
    /// As many of these bytes as the payload that is referred to needs count as the pad of the
    /// packet, so that the headers are those of a packet with the payload.
    pad: U32,
}

impl Reference {
    /// Bytes between the headers and the ICRC.
    pub const LEN: usize = core::mem::size_of::<Bytes>();

    /// Maximum payload that a packet refers to, in bytes: the receiver copies it with its queue
    /// pair locked.
    pub const MAX: u32 = 1 << 16;

    /// What a packet by reference has in place of the ICRC. Other packets without one have zeros.
    pub const MARK: [u8; Packet::ICRC_LEN] = *b"byrf";

    /// Returns the bytes between the headers and the ICRC.
    #[inline]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let bytes = Bytes {
            index: U32::new(self.source.index),
            offset: U32::new(self.source.offset),
            len: U32::new(self.len),
            mtu: U32::new(self.mtu),
            pad: U32::new(0),
        };
        zerocopy::transmute!(bytes)
    }

    /// Returns the reference in a packet without an ICRC, of which `bytes` are all; `None` if it
    /// has none, or one to more than [`MAX`](Self::MAX) bytes.
    #[inline]
    pub fn parse(packet: &Packet<'_>, bytes: &[u8]) -> Option<Self> {
        let body = bytes.get(packet.payload_offset()..)?;
        let (body, mark) = body.split_first_chunk::<{ Self::LEN }>()?;
        if *mark != Self::MARK {
            return None;
        }
        let found = Bytes::read_from_bytes(body).ok()?;
        if found.len.get() > Self::MAX {
            return None;
        }
        Some(Self {
            source: Source {
                index: found.index.get(),
                offset: found.offset.get(),
            },
            len: found.len.get(),
            mtu: found.mtu.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Psn, Qpn};
    use crate::wire::bth::Bth;
    use crate::wire::opcode::{Opcode, Operation};
    use crate::wire::repr::Headers;
    use std::vec::Vec;

    const REFERENCE: Reference = Reference {
        source: Source {
            index: 0xffff_fffe,
            offset: 65_536,
        },
        len: 60_001,
        mtu: 4096,
    };

    fn bytes_of(len: u32) -> Vec<u8> {
        let bth = Bth {
            pad: Bth::pad_for(len as usize),
            ..Bth::new(Opcode::rc(Operation::SendMiddle), Qpn::new(2), Psn::new(7))
        };
        let mut bytes = Headers::new(bth).as_slice().to_vec();
        bytes.extend(Reference { len, ..REFERENCE }.emit());
        bytes.extend(Reference::MARK);
        bytes
    }

    #[test]
    fn round_trip() {
        for len in 60_000..60_008 {
            let bytes = bytes_of(len);
            let packet = Packet::parse(&bytes, bytes.len()).unwrap();
            let found = Reference::parse(&packet, &bytes);
            assert_eq!(found, Some(Reference { len, ..REFERENCE }));
            let packet = packet.with_payload_len(len as usize).unwrap();
            assert_eq!(packet.payload_len(), len as usize);
            assert_eq!(packet.icrc_offset() % 4, 0);
        }
    }

    #[test]
    fn other_packets_have_none() {
        let mut bytes = bytes_of(REFERENCE.len);
        let end = bytes.len() - 4;
        bytes[end..].fill(0);
        let packet = Packet::parse(&bytes, bytes.len()).unwrap();
        assert_eq!(Reference::parse(&packet, &bytes), None);
        for len in (16..bytes.len()).step_by(4) {
            let mut bytes = bytes_of(REFERENCE.len);
            bytes.truncate(len - 4);
            bytes.extend(Reference::MARK);
            let packet = Packet::parse(&bytes, bytes.len());
            let found = packet.ok().and_then(|p| Reference::parse(&p, &bytes));
            assert_eq!(found.is_some(), len == 36, "{len} bytes");
        }
        for (len, fits) in [(Reference::MAX, true), (Reference::MAX + 1, false)] {
            let bytes = bytes_of(len);
            let packet = Packet::parse(&bytes, bytes.len()).unwrap();
            assert_eq!(Reference::parse(&packet, &bytes).is_some(), fits);
        }
    }

    /// The pad of the headers must be that of the payload that is referred to.
    #[test]
    fn pad_and_length_agree() {
        let bytes = bytes_of(60_001);
        let packet = Packet::parse(&bytes, bytes.len()).unwrap();
        for len in [0, 1, 60_000, 60_002, 60_003, 60_004, usize::MAX] {
            let fits = len == 1;
            assert_eq!(packet.with_payload_len(len).is_some(), fits, "{len}");
        }
    }
}
