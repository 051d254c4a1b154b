// SPDX-License-Identifier: GPL-2.0
//! What a packet by reference has in place of its payload (`engine/merge.rs`).
//!
//! Such a packet never leaves the kernel that sent it, so this is no wire format that others know.

use super::packet::Packet;
use super::payload::Source;
use crate::ids::RKey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::FromBytes;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The payload that a packet refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Where it begins in the sender's memory.
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
    /// Index of the request, or key of the region.
    name: U32,
    /// Offset in the request, or address in the region.
    place: U64,
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
        let (name, place) = match self.source {
            Source::Request { index, offset } => (index, u64::from(offset)),
            Source::Region { key, addr } => (key.0, addr),
        };
        let bytes = Bytes {
            name: U32::new(name),
            place: U64::new(place),
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
        let (name, place) = (found.name.get(), found.place.get());
        let source = match packet.opcode().is_response() {
            true => Source::Region {
                key: RKey(name),
                addr: place,
            },
            false => Source::Request {
                index: name,
                offset: u32::try_from(place).ok()?,
            },
        };
        Some(Self {
            source,
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
        source: Source::Request {
            index: 0xffff_fffe,
            offset: 65_536,
        },
        len: 60_001,
        mtu: 4096,
    };

    const TO_REGION: Reference = Reference {
        source: Source::Region {
            key: RKey(0xffff_fffe),
            addr: u64::MAX - 65_536,
        },
        ..REFERENCE
    };

    fn packet_with(operation: Operation, reference: Reference) -> Vec<u8> {
        let bth = Bth {
            pad: Bth::pad_for(reference.len as usize),
            ..Bth::new(Opcode::rc(operation), Qpn::new(2), Psn::new(7))
        };
        let mut bytes = Headers::new(bth).as_slice().to_vec();
        bytes.extend(reference.emit());
        bytes.extend(Reference::MARK);
        bytes
    }

    fn bytes_of(len: u32) -> Vec<u8> {
        packet_with(Operation::SendMiddle, Reference { len, ..REFERENCE })
    }

    #[test]
    fn round_trip() {
        let sends = (Operation::SendMiddle, REFERENCE);
        let responses = (Operation::ReadRespMiddle, TO_REGION);
        for (operation, reference) in [sends, responses] {
            for len in 60_000..60_008 {
                let reference = Reference { len, ..reference };
                let bytes = packet_with(operation, reference);
                let packet = Packet::parse(&bytes, bytes.len()).unwrap();
                let found = Reference::parse(&packet, &bytes);
                assert_eq!(found, Some(reference));
                let packet = packet.with_payload_len(len as usize).unwrap();
                assert_eq!(packet.payload_len(), len as usize);
                assert_eq!(packet.icrc_offset() % 4, 0);
            }
        }
    }

    /// A request is named by the packets of SENDs and WRITEs only, a region by READ responses only.
    #[test]
    fn operation_decides_what_is_named() {
        let bytes = packet_with(Operation::ReadRespMiddle, REFERENCE);
        let packet = Packet::parse(&bytes, bytes.len()).unwrap();
        let found = Reference::parse(&packet, &bytes).unwrap();
        assert!(matches!(found.source, Source::Region { .. }));
        // Its address is no offset in a request.
        let bytes = packet_with(Operation::SendMiddle, TO_REGION);
        let packet = Packet::parse(&bytes, bytes.len()).unwrap();
        assert_eq!(Reference::parse(&packet, &bytes), None);
    }

    #[test]
    fn place_behind_another() {
        let place = REFERENCE.source.advanced(3);
        let offset = 65_539;
        let index = 0xffff_fffe;
        assert_eq!(place, Source::Request { index, offset });
        let key = RKey(0xffff_fffe);
        let place = TO_REGION.source.advanced(65_536);
        assert_eq!(
            place,
            Source::Region {
                key,
                addr: u64::MAX
            }
        );
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
            assert_eq!(found.is_some(), len == 40, "{len} bytes");
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
