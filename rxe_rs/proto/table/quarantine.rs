// SPDX-License-Identifier: GPL-2.0
//! Queue pair numbers that were in use not long ago.
//!
//! A packet to a queue pair that is gone must not reach one that was made since. Packets stay on
//! the way for as long as queues, switches and the peer's retries keep them: retries are over after
//! 8 timeouts of 4.096 µs · 2^timeout, that is 2 s with the usual timeout of 14 and 18 s with 17.
//! Numbers are therefore held back for [`HOLD_NS`] at least. What a peer still sends later, with a
//! longer timeout or by intent, meets a random number and a random PSN.

use core::ops::DerefMut;

/// Time for which a number is held back, in nanoseconds; twice as long at most, if numbers are
/// given back meanwhile.
pub const HOLD_NS: u64 = 30_000_000_000;

/// Bits of a number that are looked at: numbers that agree in them are held back together.
const BITS: u32 = 20;

/// Length of each of the two stores, in words.
pub const WORDS: usize = 1 << (BITS - 6);

/// Two generations of numbers; both bounded and of constant size, however many come and go.
#[derive(Debug)]
pub struct Quarantine<S> {
    young: S,
    old: S,
    /// When `young` was begun.
    since: u64,
}

impl<S: DerefMut<Target = [u64]>> Quarantine<S> {
    /// With two stores of [`WORDS`] words, all zero. Shorter ones hold back fewer numbers.
    pub fn new(young: S, old: S, now: u64) -> Self {
        Self {
            young,
            old,
            since: now,
        }
    }

    /// Holds back `number` from now on. `now` are nanoseconds of a monotonic clock.
    pub fn hold(&mut self, now: u64, number: u32) {
        self.turn(now);
        let (word, bit) = Self::place(number);
        if let Some(word) = self.young.get_mut(word) {
            *word |= bit;
        }
    }

    /// True if `number` may not be given out yet.
    pub fn holds(&mut self, now: u64, number: u32) -> bool {
        self.turn(now);
        let (word, bit) = Self::place(number);
        let mut stores = [&self.young, &self.old].into_iter();
        stores.any(|store| store.get(word).is_some_and(|word| word & bit != 0))
    }

    fn place(number: u32) -> (usize, u64) {
        let number = number & ((1 << BITS) - 1);
        let word = usize::try_from(number >> 6).unwrap_or(usize::MAX);
        (word, 1 << (number & 63))
    }

    /// Forgets what is old. What is in `young` came within [`HOLD_NS`] of its beginning.
    fn turn(&mut self, now: u64) {
        let age = now.saturating_sub(self.since);
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
