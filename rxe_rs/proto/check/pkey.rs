// SPDX-License-Identifier: GPL-2.0
//! P_Key matching.

use crate::ids::PKey;

/// True if ports with P_Keys `a` and `b` may communicate: same partition, which is not 0, and at
/// least one of them a full member (IBTA 10.9.3).
///
/// # Examples
///
/// ```
/// use rxe_proto::check::pkey::matches;
/// use rxe_proto::ids::PKey;
///
/// let (full, limited) = (PKey(0x8001), PKey(0x0001));
/// assert!(matches(full, limited));
/// // Limited members reach full members only.
/// assert!(!matches(limited, limited));
/// assert!(!matches(full, PKey(0x8002)));
/// ```
#[inline]
pub const fn matches(a: PKey, b: PKey) -> bool {
    a.key() == b.key() && a.key() != 0 && (a.is_full() || b.is_full())
}

/// Index of the first entry of a P_Key table that matches `key`; the entries are passed as (index,
/// key) pairs.
#[inline]
pub fn find_matching(mut entries: impl Iterator<Item = (u16, PKey)>, key: PKey) -> Option<u16> {
    entries.find_map(|(index, own)| matches(own, key).then_some(index))
}
