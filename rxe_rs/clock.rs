// SPDX-License-Identifier: GPL-2.0
//! The clock that the engine's times refer to: the kernel's monotonic clock, which timers use too.

use rxe_kapi::time::now_ns;
use rxe_proto::time::Instant;

/// Returns the present time.
///
/// # Context
///
/// Any context.
#[inline]
pub(crate) fn now() -> Instant {
    Instant::from_ns(now_ns())
}
