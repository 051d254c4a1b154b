// SPDX-License-Identifier: GPL-2.0
//! RDMA extended transport header (IBTA 9.3.3).

use crate::ids::RKey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RETH: address, key and length of remote memory, 16 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Reth {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

impl Reth {
    /// A header for `dma_len` bytes at address `va` of the region or window `rkey`.
    #[inline]
    pub const fn new(va: u64, rkey: RKey, dma_len: u32) -> Self {
        Self {
            va: U64::new(va),
            rkey: U32::new(rkey.0),
            dma_len: U32::new(dma_len),
        }
    }

    /// Address at the responder.
    #[inline]
    pub const fn va(&self) -> u64 {
        self.va.get()
    }

    /// Key of the region or window.
    #[inline]
    pub const fn rkey(&self) -> RKey {
        RKey(self.rkey.get())
    }

    /// Bytes of the whole message; legal up to 2^31.
    #[inline]
    pub const fn dma_len(&self) -> u32 {
        self.dma_len.get()
    }
}
