// SPDX-License-Identifier: GPL-2.0
//! Builds the headers of an outgoing packet.

use super::bytes::put;
use super::feth::Selectivity;
use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, Reth};
use crate::ids::{PKey, QKey, Qpn, RKey};
use zerocopy::{Immutable, IntoBytes};

/// BTH and extension headers of one packet, in a buffer of fixed size.
///
/// The caller appends the headers of its opcode in wire order; the tests check every opcode
/// against [`super::Opcode::headers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Headers {
    /// Size of the buffer; the longest legal headers are 40 bytes.
    pub const CAPACITY: usize = 64;

    /// The BTH alone.
    #[inline]
    pub fn new(bth: Bth) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        if let Some(target) = bytes.first_chunk_mut::<{ Bth::LEN }>() {
            *target = bth.emit();
        }
        Self {
            bytes,
            len: Bth::LEN,
        }
    }

    /// The P_Key of the BTH.
    #[inline]
    pub fn pkey(&self) -> PKey {
        let field = self.bytes.get(2..).and_then(|rest| rest.first_chunk());
        PKey(field.map_or(0, |key| u16::from_be_bytes(*key)))
    }

    /// True for a CNP.
    #[inline]
    pub fn is_cnp(&self) -> bool {
        self.bytes.first().copied() == Some(Opcode::CNP.to_u8())
    }

    #[inline]
    fn append<T: IntoBytes + Immutable>(mut self, header: &T) -> Self {
        let rest = self.bytes.get_mut(self.len..);
        if rest.is_some_and(|rest| put(rest, header.as_bytes()).is_some()) {
            self.len = self.len.saturating_add(size_of::<T>());
        }
        self
    }

    /// Appends a datagram header.
    #[must_use]
    #[inline]
    pub fn deth(self, qkey: QKey, src_qpn: Qpn) -> Self {
        self.append(&Deth::new(qkey, src_qpn))
    }

    /// Appends a flush header.
    #[must_use]
    #[inline]
    pub fn feth(self, selectivity: Selectivity, placement: u8) -> Self {
        self.append(&Feth::new(selectivity, placement))
    }

    /// Appends an RDMA header.
    #[must_use]
    #[inline]
    pub fn reth(self, va: u64, rkey: RKey, dma_len: u32) -> Self {
        self.append(&Reth::new(va, rkey, dma_len))
    }

    /// Appends an atomic request header.
    #[must_use]
    #[inline]
    pub fn atomic_eth(self, va: u64, rkey: RKey, swap_add: u64, compare: u64) -> Self {
        self.append(&AtomicEth::new(va, rkey, swap_add, compare))
    }

    /// Appends an acknowledge header.
    #[must_use]
    #[inline]
    pub fn aeth(self, header: Aeth) -> Self {
        self.append(&header)
    }

    /// Appends an atomic response header.
    #[must_use]
    #[inline]
    pub fn atomic_ack(self, original: u64) -> Self {
        self.append(&AtomicAckEth::new(original))
    }

    /// Appends immediate data, in wire order.
    #[must_use]
    #[inline]
    pub fn imm(self, data: [u8; 4]) -> Self {
        self.append(&ImmDt::new(data))
    }

    /// Appends the key to invalidate.
    #[must_use]
    #[inline]
    pub fn ieth(self, rkey: RKey) -> Self {
        self.append(&Ieth::new(rkey))
    }

    /// The headers in wire format.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    /// Bytes of the headers.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Always false: there is always a BTH.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pad count of the BTH, 0 to 3.
    #[inline]
    pub fn pad_len(&self) -> usize {
        let [_, flags, ..] = self.bytes;
        usize::from((flags >> 4) & 3)
    }
}
