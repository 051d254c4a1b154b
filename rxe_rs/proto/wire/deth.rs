// SPDX-License-Identifier: GPL-2.0
//! Datagram extended transport header (IBTA 9.3.2).

use crate::ids::{QKey, Qpn};
use zerocopy::byteorder::big_endian::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of datagrams, 8 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Deth {
    qkey: U32,
    src_qpn: U32,
}

impl Deth {
    /// A DETH with source QP `src_qpn`.
    #[inline]
    pub const fn new(qkey: QKey, src_qpn: Qpn) -> Self {
        Self {
            qkey: U32::new(qkey.0),
            src_qpn: U32::new(src_qpn.get()),
        }
    }

    /// Q_Key; must match that of the destination QP.
    #[inline]
    pub const fn qkey(&self) -> QKey {
        QKey(self.qkey.get())
    }

    /// Source QP.
    #[inline]
    pub const fn src_qpn(&self) -> Qpn {
        Qpn::new(self.src_qpn.get())
    }
}
