// SPDX-License-Identifier: GPL-2.0
//! Immediate data (IBTA 9.3).

use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Four bytes for the completion at the receiver, never interpreted.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ImmDt {
    data: [u8; 4],
}

impl ImmDt {
    /// A header with `data` as the user gave it, in wire order.
    #[inline]
    pub const fn new(data: [u8; 4]) -> Self {
        Self { data }
    }

    /// The data, in wire order.
    #[inline]
    pub const fn data(&self) -> [u8; 4] {
        self.data
    }
}
