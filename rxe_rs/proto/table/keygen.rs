// SPDX-License-Identifier: GPL-2.0
//! Key changes of a memory window or fast registration region: the index stays, the variant changes.

use crate::ids::RKey;

/// The key `wanted` if it has the same index as `current`; its variant byte is chosen by the
/// consumer. `None` if the index differs.
#[inline]
pub fn renew(current: RKey, wanted: RKey) -> Option<RKey> {
    (current.index() == wanted.index()).then_some(wanted)
}
