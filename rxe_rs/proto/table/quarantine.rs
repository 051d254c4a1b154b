// SPDX-License-Identifier: GPL-2.0
//! Quarantine of QP numbers after the QP is destroyed.
//!
//! A packet for a destroyed QP must not reach a new one. Packets are in flight for as long as
//! queues, switches and the retries of the peer last: retries end after 8 timeouts of 4.096 µs ·
//! 2^timeout, that is 2 s with the usual timeout of 14 and 18 s with 17. QP numbers are therefore
//! not reused for at least [`HOLD_NS`]. Later packets of a peer, because of a longer timeout or an
//! attack, must match a random QP number and a random PSN.

use crate::time::Instant;
use core::ops::DerefMut;

/// Minimum time in quarantine, in nanoseconds; the maximum is twice as long, if numbers are freed
/// in the meantime.
pub const HOLD_NS: u64 = 30_000_000_000;

/// Significant bits of a number: numbers that agree in them share one quarantine entry.
const BITS: u32 = 20;

/// Length of each of the two bitmaps, in words.
pub const WORDS: usize = 1 << (BITS - 6);

/// Numbers that are drawn before one in quarantine is used. If half of all numbers are in
/// quarantine, that happens to one draw in 2^63.
const DRAWS: u32 = 64;

/// Draws until a number is not `held`. If none of 64 is free, returns the last one: a process that
/// creates and destroys QPs in a loop may put nearly all numbers into quarantine, and must not keep
/// others from creating QPs thereby.
///
/// # Errors
///
/// Those of `draw`.
pub fn draw_free<T, E>(
    mut draw: impl FnMut() -> Result<T, E>,
    mut held: impl FnMut(&T) -> bool,
) -> Result<T, E> {
    for _ in 1..DRAWS {
        let number = draw()?;
        if !held(&number) {
            return Ok(number);
        }
    }
    draw()
}

/// Two generations of numbers, each a bitmap of constant size.
///
/// # Examples
///
/// ```
/// use rxe_proto::table::quarantine::{Quarantine, HOLD_NS, WORDS};
/// use rxe_proto::time::Instant;
///
/// let at = Instant::from_ns;
/// let mut quarantine = Quarantine::new(vec![0; WORDS], vec![0; WORDS], at(0));
/// quarantine.add(at(1), 0x1234);
/// assert!(quarantine.contains(at(HOLD_NS), 0x1234));
/// assert!(!quarantine.contains(at(HOLD_NS), 0x1235));
/// assert!(!quarantine.contains(at(3 * HOLD_NS), 0x1234));
/// ```
#[derive(Debug)]
pub struct Quarantine<S> {
    young: S,
    old: S,
    /// When `young` was started.
    since: Instant,
}

impl<S: DerefMut<Target = [u64]>> Quarantine<S> {
    /// A quarantine over two bitmaps of [`WORDS`] words, all zero. Numbers beyond the end of a
    /// shorter bitmap are never in quarantine.
    pub fn new(young: S, old: S, now: Instant) -> Self {
        Self {
            young,
            old,
            since: now,
        }
    }

    /// Puts `number` into quarantine.
    pub fn add(&mut self, now: Instant, number: u32) {
        self.rotate(now);
        let (word, bit) = Self::position(number);
        if let Some(word) = self.young.get_mut(word) {
            *word |= bit;
        }
    }

    /// True if `number` may not be allocated yet.
    pub fn contains(&mut self, now: Instant, number: u32) -> bool {
        self.rotate(now);
        let (word, bit) = Self::position(number);
        let mut stores = [&self.young, &self.old].into_iter();
        stores.any(|store| store.get(word).is_some_and(|word| word & bit != 0))
    }

    fn position(number: u32) -> (usize, u64) {
        let number = number & ((1 << BITS) - 1);
        let word = usize::try_from(number >> 6).unwrap_or(usize::MAX);
        (word, 1 << (number & 63))
    }

    /// Rotates the generations and drops the old one. The entries of `young` were added within
    /// [`HOLD_NS`] of its start.
    fn rotate(&mut self, now: Instant) {
        let age = now.ns_since(self.since);
        if age < HOLD_NS {
            return;
        }
        if age < 2 * HOLD_NS {
            core::mem::swap(&mut self.young, &mut self.old);
            self.since = self.since.saturating_add(HOLD_NS);
        } else {
            self.old.fill(0);
            self.since = now;
        }
        self.young.fill(0);
    }
}

#[cfg(test)]
#[path = "../tests/quarantine.rs"]
mod tests;
