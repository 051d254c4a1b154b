// SPDX-License-Identifier: GPL-2.0
//! A received packet whose lengths have been checked.

use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, HeaderSet, Ieth, ImmDt, Opcode, Reth};
use crate::drop::DropReason;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

pub use super::payload::Payload;

/// Headers of a packet and the position of its payload.
///
/// Invariant: the version is 0, the opcode is defined, all its headers are present,
/// and payload, pad and ICRC fill the rest exactly.
///
/// # Examples
///
/// ```
/// use rxe_proto::drop::DropReason;
/// use rxe_proto::ids::{Psn, Qpn, RKey};
/// use rxe_proto::wire::{Bth, Headers, Opcode, Operation, Packet};
///
/// let payload = b"five!";
/// let bth = Bth {
///     pad: Bth::pad_for(payload.len()),
///     ..Bth::new(Opcode::rc(Operation::WriteOnly), Qpn::new(0x11), Psn::new(7))
/// };
/// let headers = Headers::new(bth).reth(0x1000, RKey(0x1234), 5);
/// let mut bytes = headers.as_slice().to_vec();
/// bytes.extend(payload);
/// bytes.resize(bytes.len() + headers.pad_len() + Packet::ICRC_LEN, 0);
///
/// let packet = Packet::parse(&bytes, bytes.len())?;
/// assert_eq!(packet.bth(), &bth);
/// assert_eq!(packet.reth().map(|reth| reth.dma_len()), Some(5));
/// assert_eq!(packet.payload_len(), 5);
/// assert!(packet.imm().is_none());
///
/// // Lengths are checked before anything is used.
/// let short = Packet::parse(&bytes, bytes.len() - 1);
/// assert_eq!(short.err(), Some(DropReason::BadLength));
/// # Ok::<(), DropReason>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bth: Bth,
    headers: &'a [u8],
    payload_len: usize,
}

impl<'a> Packet<'a> {
    /// Bytes of the ICRC at the end of every packet.
    pub const ICRC_LEN: usize = 4;

    /// Maximum header bytes of any packet.
    pub const MAX_HEADER_LEN: usize = 64;

    /// Checks the lengths of a packet of `udp_payload_len` bytes from BTH to ICRC.
    ///
    /// `head` is its contiguous beginning: all of it, or at least
    /// [`Packet::MAX_HEADER_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// [`DropReason::TooShort`], [`DropReason::BadVersion`], [`DropReason::UnknownOpcode`] or
    /// [`DropReason::BadLength`].
    #[inline]
    pub fn parse(head: &'a [u8], udp_payload_len: usize) -> Result<Self, DropReason> {
        let Some(bytes) = head.first_chunk::<{ Bth::LEN }>() else {
            return Err(DropReason::TooShort);
        };
        let bth = Bth::parse(bytes)?;
        let header_len = bth.opcode.header_len();
        let Some(headers) = head.get(..header_len) else {
            return Err(DropReason::TooShort);
        };
        let Some(padded) = udp_payload_len
            .checked_sub(header_len)
            .and_then(|rest| rest.checked_sub(Self::ICRC_LEN))
        else {
            return Err(DropReason::TooShort);
        };
        // IBTA 9.2: the pad fills the payload up to a multiple of four.
        if padded % 4 != 0 {
            return Err(DropReason::BadLength);
        }
        let Some(payload_len) = padded.checked_sub(usize::from(bth.pad)) else {
            return Err(DropReason::BadLength);
        };
        Ok(Self {
            bth,
            headers,
            payload_len,
        })
    }

    /// The packet with a payload of `len` bytes that is elsewhere: a packet by reference. `None` if
    /// the pad is not that of such a payload.
    #[inline]
    pub fn with_payload_len(self, len: usize) -> Option<Self> {
        let fits = Bth::pad_for(len) == self.bth.pad && u32::try_from(len).is_ok();
        fits.then_some(Self {
            payload_len: len,
            ..self
        })
    }

    /// The base transport header.
    #[inline]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// The opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// All headers as bytes, BTH first.
    #[inline]
    pub const fn header_bytes(&self) -> &'a [u8] {
        self.headers
    }

    /// Offset of the payload from the BTH.
    #[inline]
    pub const fn payload_offset(&self) -> usize {
        self.headers.len()
    }

    /// Bytes of payload, without pad.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Bytes of pad after the payload, 0 to 3.
    #[inline]
    pub fn pad_len(&self) -> usize {
        usize::from(self.bth.pad)
    }

    /// Offset of the ICRC from the BTH.
    #[inline]
    pub fn icrc_offset(&self) -> usize {
        self.headers
            .len()
            .saturating_add(self.payload_len)
            .saturating_add(self.pad_len())
    }

    #[inline]
    fn header<T>(&self, which: HeaderSet) -> Option<T>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned + Copy,
    {
        let set = self.bth.opcode.headers();
        if !set.contains(which) {
            return None;
        }
        let offset = set.before(which).byte_len().saturating_add(Bth::LEN);
        let (header, _) = T::ref_from_prefix(self.headers.get(offset..)?).ok()?;
        Some(*header)
    }

    /// The datagram header, if the opcode has one.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.header(HeaderSet::DETH)
    }

    /// The RDMA header, if the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.header(HeaderSet::RETH)
    }

    /// The atomic request header, if the opcode has one.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.header(HeaderSet::ATOMIC_ETH)
    }

    /// The acknowledge header, if the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.header(HeaderSet::AETH)
    }

    /// The atomic response header, if the opcode has one.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.header(HeaderSet::ATOMIC_ACK_ETH)
    }

    /// The immediate data in wire order, if the opcode has any.
    #[inline]
    pub fn imm(&self) -> Option<[u8; 4]> {
        self.header(HeaderSet::IMM).map(|imm: ImmDt| imm.data())
    }

    /// The key to invalidate, if the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        self.header(HeaderSet::IETH)
    }

    /// The flush header, if the opcode has one.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.header(HeaderSet::FETH)
    }
}
