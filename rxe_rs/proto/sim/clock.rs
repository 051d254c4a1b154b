// SPDX-License-Identifier: GPL-2.0
//! Operators on points in time, for simulations and tests. There an overflow, or a clock that runs
//! backwards, is a mistake: they panic, where the engine's own arithmetic saturates.

use crate::time::Instant;
use core::ops::{Add, AddAssign, Sub};

impl Add<u64> for Instant {
    type Output = Self;

    fn add(self, ns: u64) -> Self {
        Self::from_ns(self.as_ns().checked_add(ns).expect("the clock overflows"))
    }
}

impl AddAssign<u64> for Instant {
    fn add_assign(&mut self, ns: u64) {
        *self = *self + ns;
    }
}

impl Sub for Instant {
    type Output = u64;

    fn sub(self, earlier: Self) -> u64 {
        let ns = self.as_ns().checked_sub(earlier.as_ns());
        ns.expect("the clock runs backwards")
    }
}

impl Sub<u64> for Instant {
    type Output = Self;

    fn sub(self, ns: u64) -> Self {
        let at = self.as_ns().checked_sub(ns);
        Self::from_ns(at.expect("before the zero of the clock"))
    }
}
