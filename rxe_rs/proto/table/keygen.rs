// SPDX-License-Identifier: GPL-2.0
//! How the key of a memory window or region changes while its row stays.

use crate::ids::RKey;

/// The same row under the key byte `variant`, which the owner of a window or of a region for fast
/// registration chooses. `None` if `wanted` names another row.
#[inline]
pub fn renew(current: RKey, wanted: RKey) -> Option<RKey> {
    (current.index() == wanted.index()).then_some(wanted)
}
