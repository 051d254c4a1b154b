// SPDX-License-Identifier: GPL-2.0
//! Points in time. Durations are plain numbers of nanoseconds, with names that end in `_ns`.

use core::num::NonZero;

/// A point in time: nanoseconds of a monotonic clock that the owner of the engine reads.
///
/// The engine compares times of one clock only. The arithmetic saturates, so that neither a clock
/// that runs backwards nor a very long duration can panic or wrap around. An `Option` of it takes
/// eight bytes, and the state of a queue pair has many of them.
///
/// # Examples
///
/// ```
/// use rxe_proto::time::Instant;
///
/// let begin = Instant::from_ns(1_000);
/// let end = begin.saturating_add(500);
/// assert!(begin < end);
/// assert_eq!(end.ns_since(begin), 500);
/// assert_eq!(begin.ns_since(end), 0);
/// assert_eq!(end.saturating_add(u64::MAX), Instant::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Instant(
    /// One more than the nanoseconds.
    NonZero<u64>,
);

impl Instant {
    /// The zero of the clock: no other time is earlier.
    pub const ZERO: Self = Self(NonZero::<u64>::MIN);
    /// The latest time, 584 years after zero.
    pub const MAX: Self = Self(NonZero::<u64>::MAX);

    /// The time `ns` nanoseconds after the zero of the clock, at most [`Instant::MAX`].
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self::ZERO.saturating_add(ns)
    }

    /// Nanoseconds since the zero of the clock.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.ns_since(Self::ZERO)
    }

    /// The time `ns` nanoseconds later, at most [`Instant::MAX`].
    #[inline]
    pub const fn saturating_add(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// The time `ns` nanoseconds earlier, at least [`Instant::ZERO`].
    #[inline]
    pub const fn saturating_sub(self, ns: u64) -> Self {
        Self::from_ns(self.as_ns().saturating_sub(ns))
    }

    /// Nanoseconds from `earlier` to this time; 0 if `earlier` is later.
    #[inline]
    pub const fn ns_since(self, earlier: Self) -> u64 {
        self.0.get().saturating_sub(earlier.0.get())
    }
}

impl Default for Instant {
    fn default() -> Self {
        Self::ZERO
    }
}

impl core::fmt::Debug for Instant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Instant({})", self.as_ns())
    }
}
