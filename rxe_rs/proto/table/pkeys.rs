// SPDX-License-Identifier: GPL-2.0
//! Partition table of the port.

use crate::check::pkey;
use crate::ids::PKey;

/// The P_Keys of a port. Entry 0 starts as the default partition, the others empty.
#[derive(Clone, Debug)]
pub struct PKeyTable {
    entries: [PKey; Self::LEN],
}

impl PKeyTable {
    /// Number of entries; `pkey_tbl_len` of the port.
    pub const LEN: usize = 128;

    /// The default partition alone.
    pub const fn new() -> Self {
        let mut entries = [PKey::INVALID; Self::LEN];
        if let Some((first, _)) = entries.split_first_mut() {
            *first = PKey::DEFAULT;
        }
        Self { entries }
    }

    /// Entry `index`; empty entries read as [`PKey::INVALID`].
    #[inline]
    pub fn get(&self, index: u16) -> Option<PKey> {
        self.entries.get(usize::from(index)).copied()
    }

    /// Replaces entry `index` and returns what was there; `None`, and no change, if there is no
    /// such entry.
    pub fn set(&mut self, index: u16, key: PKey) -> Option<PKey> {
        let entry = self.entries.get_mut(usize::from(index))?;
        Some(core::mem::replace(entry, key))
    }

    /// Index of the first entry of exactly this key.
    pub fn find(&self, key: PKey) -> Option<u16> {
        self.position(|entry| entry == key)
    }

    /// Index of the first entry whose member may talk to one with `key`.
    #[inline]
    pub fn find_matching(&self, key: PKey) -> Option<u16> {
        self.position(|entry| pkey::matches(entry, key))
    }

    #[inline]
    fn position(&self, wanted: impl Fn(PKey) -> bool) -> Option<u16> {
        self.entries
            .iter()
            .position(|entry| wanted(*entry))
            .and_then(|index| u16::try_from(index).ok())
    }
}

impl Default for PKeyTable {
    fn default() -> Self {
        Self::new()
    }
}
