// SPDX-License-Identifier: GPL-2.0
//! Data whose accesses loom checks.

use crate::backend::UnsafeCell;

/// A number that may be read by many or written by one, never both at once: a model in which two
/// accesses are not ordered fails.
pub struct Tracked(UnsafeCell<u32>);

// SAFETY: Loom checks accesses, and runs one thread at a time.
unsafe impl Sync for Tracked {}
// SAFETY: As above.
unsafe impl Send for Tracked {}

impl Tracked {
    /// Returns a value with that number.
    pub fn new(value: u32) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads the number.
    pub fn read(&self) -> u32 {
        // SAFETY: Not written meanwhile, which loom checks.
        self.0.with(|value| unsafe { *value })
    }

    /// Writes the number; the access must be exclusive.
    pub fn write(&self, value: u32) {
        // SAFETY: As above.
        self.0.with_mut(|at| unsafe { *at = value });
    }
}
