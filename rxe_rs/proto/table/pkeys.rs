// SPDX-License-Identifier: GPL-2.0
//! Rules of the P_Key table of a port. The driver keeps the entries, which the receive path reads
//! concurrently, and passes them as (index, key) pairs in the order of indices.

use crate::ids::PKey;

/// Number of entries; `pkey_tbl_len` of the port.
pub const LEN: usize = 128;

/// Initial value of entry `index`: the default P_Key first, the others invalid (IBTA 10.9.2,
/// IBTA A17.4.7).
pub const fn initial(index: usize) -> PKey {
    if index == 0 {
        PKey::DEFAULT
    } else {
        PKey::INVALID
    }
}

/// Why an entry cannot be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PKeyTableError {
    /// No such entry.
    NoEntry,
    /// Every entry is in use.
    Full,
    /// Partition 0 does not exist (IBTA 10.9.1).
    NoPartition,
    /// Another entry has the same P_Key.
    Duplicate,
    /// It is the last valid entry: a port is always a member of at least one partition
    /// (IBTA 10.9.2).
    Last,
}

/// Checks whether entry `index` may be set to `key`. [`PKey::INVALID`] clears an entry, but not the
/// last valid one: to leave its partition, set it to another key, or add that one first. A port may
/// be a full and a limited member of a partition at once.
///
/// # Errors
///
/// See [`PKeyTableError`].
pub fn check_set(
    entries: impl Iterator<Item = (u16, PKey)>,
    index: u16,
    key: PKey,
) -> Result<(), PKeyTableError> {
    if usize::from(index) >= LEN {
        return Err(PKeyTableError::NoEntry);
    }
    if key == PKey::INVALID {
        let (mut emptied, mut others) = (false, false);
        for (at, held) in entries {
            let valid = held.key() != 0;
            emptied |= valid && at == index;
            others |= valid && at != index;
        }
        return match emptied && !others {
            true => Err(PKeyTableError::Last),
            false => Ok(()),
        };
    }
    let others = entries.filter(|(at, _)| *at != index);
    check_key(others, key)
}

/// Checks whether the table may have `key` beside the `others`.
fn check_key(
    mut others: impl Iterator<Item = (u16, PKey)>,
    key: PKey,
) -> Result<(), PKeyTableError> {
    if key.key() == 0 {
        return Err(PKeyTableError::NoPartition);
    }
    match others.any(|(_, held)| held == key) {
        true => Err(PKeyTableError::Duplicate),
        false => Ok(()),
    }
}

/// Returns the entry in which `key` can be added, the first one that is not in use.
///
/// # Errors
///
/// [`PKeyTableError::NoPartition`], [`PKeyTableError::Duplicate`], [`PKeyTableError::Full`].
pub fn entry_for(
    entries: impl Iterator<Item = (u16, PKey)> + Clone,
    key: PKey,
) -> Result<u16, PKeyTableError> {
    check_key(entries.clone(), key)?;
    let mut free = entries.filter(|(_, held)| *held == PKey::INVALID);
    free.next().map(|(at, _)| at).ok_or(PKeyTableError::Full)
}
