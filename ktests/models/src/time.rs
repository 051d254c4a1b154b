// SPDX-License-Identifier: GPL-2.0
//! `kernel::time`.

/// A span of time.
pub struct Delta;

impl Delta {
    /// Returns a span of microseconds.
    pub const fn from_micros(_: i64) -> Self {
        Self
    }
}

pub mod delay {
    //! Sleeping.

    /// Lets other threads run.
    pub fn fsleep(_: super::Delta) {
        crate::pause();
    }
}
