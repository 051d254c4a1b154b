// SPDX-License-Identifier: GPL-2.0
//! Invalidate extended transport header (IBTA 9.3).

use crate::ids::RKey;
use zerocopy::byteorder::big_endian::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Names the key that the receiver of a SEND is to invalidate, 4 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ieth {
    rkey: U32,
}

impl Ieth {
    /// A header that invalidates `rkey`.
    #[inline]
    pub const fn new(rkey: RKey) -> Self {
        Self {
            rkey: U32::new(rkey.0),
        }
    }

    /// The key to invalidate.
    #[inline]
    pub const fn rkey(&self) -> RKey {
        RKey(self.rkey.get())
    }
}
