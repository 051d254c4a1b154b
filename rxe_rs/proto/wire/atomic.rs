// SPDX-License-Identifier: GPL-2.0
//! Headers of the atomic operations.

use crate::ids::RKey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of atomic requests, 28 bytes (IBTA 9.3.4). The values are big-endian here and host-endian
/// in memory.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AtomicEth {
    va: U64,
    rkey: U32,
    swap_add: U64,
    compare: U64,
}

impl AtomicEth {
    /// A header for the 8 bytes at address `va` of the region or window `rkey`; `compare` is 0
    /// in a fetch and add.
    #[inline]
    pub const fn new(va: u64, rkey: RKey, swap_add: u64, compare: u64) -> Self {
        Self {
            va: U64::new(va),
            rkey: U32::new(rkey.0),
            swap_add: U64::new(swap_add),
            compare: U64::new(compare),
        }
    }

    /// Address at the responder; must be a multiple of 8.
    #[inline]
    pub const fn va(&self) -> u64 {
        self.va.get()
    }

    /// Key of the region or window.
    #[inline]
    pub const fn rkey(&self) -> RKey {
        RKey(self.rkey.get())
    }

    /// New value of a compare and swap, addend of a fetch and add.
    #[inline]
    pub const fn swap_add(&self) -> u64 {
        self.swap_add.get()
    }

    /// Expected value of a compare and swap.
    #[inline]
    pub const fn compare(&self) -> u64 {
        self.compare.get()
    }
}

/// Header of atomic responses, 8 bytes (IBTA 9.3).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AtomicAckEth {
    original: U64,
}

impl AtomicAckEth {
    /// A header that returns `original`.
    #[inline]
    pub const fn new(original: u64) -> Self {
        Self {
            original: U64::new(original),
        }
    }

    /// The value before the operation.
    #[inline]
    pub const fn original(&self) -> u64 {
        self.original.get()
    }
}
