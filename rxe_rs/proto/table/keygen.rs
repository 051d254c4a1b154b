// SPDX-License-Identifier: GPL-2.0
//! How memory keys and queue pair numbers are made: unpredictable, from randomness that the
//! caller brings. Sequential keys let a peer guess those of others (ReDMArk, USENIX Security '21).

use crate::ids::{Qpn, RKey};

/// A memory key of a random row other than 0, and a random key byte.
///
/// The caller tries again with new randomness while the row is taken.
#[inline]
pub fn memory_key(random: u32) -> Option<RKey> {
    match RKey(random) {
        // Row 0 stays empty: key 0 is what an unfilled work request holds.
        key if key.index() == 0 => None,
        key => Some(key),
    }
}

/// The same row under the key byte `variant`, which the owner of a window or of a region for fast
/// registration chooses. `None` if `wanted` names another row.
#[inline]
pub fn renew(current: RKey, wanted: RKey) -> Option<RKey> {
    (current.index() == wanted.index()).then_some(wanted)
}

/// A queue pair number for ordinary use out of `random`: neither SMI, GSI nor the multicast
/// number. The caller tries again while the number is taken.
#[inline]
pub fn qpn(random: u32) -> Option<Qpn> {
    match Qpn::new(random) {
        Qpn::SMI | Qpn::GSI | Qpn::MULTICAST => None,
        number => Some(number),
    }
}
