// SPDX-License-Identifier: GPL-2.0
//! P_Key matching (IBTA vol. 1, 10.9.3).

use crate::ids::PKey;

/// True if ports with P_Keys `a` and `b` may communicate: same partition, which is not 0, and at
/// least one of them a full member.
#[inline]
pub const fn matches(a: PKey, b: PKey) -> bool {
    a.key() == b.key() && a.key() != 0 && (a.is_full() || b.is_full())
}
