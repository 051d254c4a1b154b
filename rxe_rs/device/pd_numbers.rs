// SPDX-License-Identifier: GPL-2.0
//! The numbers of a device's protection domains.

use crate::limits::MAX_PD;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// The numbers of a device's protection domains.
///
/// A number is never used again: 64 bits do not wrap while a machine runs. What a domain leaves
/// behind can therefore not match one that is created later.
pub(crate) struct PdNumbers {
    /// The last number.
    last: Atomic<u64>,
    /// Number of domains that exist.
    count: Atomic<u32>,
}

impl PdNumbers {
    /// Creates the numbers of a device without domains.
    pub(crate) fn new() -> Self {
        Self {
            last: Atomic::new(0),
            count: Atomic::new(0),
        }
    }

    /// Returns the number for another domain, not 0.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there are [`MAX_PD`] domains.
    pub(crate) fn get(&self) -> Result<u64> {
        if self.count.fetch_add(1, Relaxed) >= MAX_PD {
            self.put();
            return Err(ENOSPC);
        }
        Ok(self.last.fetch_add(1, Relaxed).wrapping_add(1))
    }

    /// A domain has been destroyed.
    pub(crate) fn put(&self) {
        self.count.fetch_sub(1, Relaxed);
    }
}
