// SPDX-License-Identifier: GPL-2.0
//! Flush extended transport header (IBTA A19).

use zerocopy::byteorder::big_endian::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Selectivity level of a FLUSH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selectivity {
    /// The address range of the RETH.
    Range,
    /// The whole memory region of the RETH's key.
    Region,
}

/// Header of FLUSH requests, 4 bytes; the RETH follows it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Feth {
    bits: U32,
}

impl Feth {
    /// Placement type: global visibility.
    pub const GLOBAL: u8 = 1;
    /// Placement type: persistence.
    pub const PERSISTENT: u8 = 2;

    /// A header with the placement bits of `placement`.
    #[inline]
    pub fn new(selectivity: Selectivity, placement: u8) -> Self {
        let level = match selectivity {
            Selectivity::Range => 0,
            Selectivity::Region => 0x10,
        };
        Self {
            bits: U32::new(u32::from(placement & 0x0f) | level),
        }
    }

    /// Selectivity level; `None` for reserved values.
    #[inline]
    pub const fn selectivity(&self) -> Option<Selectivity> {
        match (self.bits.get() >> 4) & 3 {
            0 => Some(Selectivity::Range),
            1 => Some(Selectivity::Region),
            _ => None,
        }
    }

    /// Placement bits, [`Feth::GLOBAL`] and [`Feth::PERSISTENT`]; others are reserved.
    #[inline]
    pub const fn placement(&self) -> u8 {
        let [.., low] = self.bits.get().to_be_bytes();
        low & 0x0f
    }
}
