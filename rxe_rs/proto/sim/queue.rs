// SPDX-License-Identifier: GPL-2.0
//! The queue of a router in front of a slow link that several pairs share. It marks packets as RED
//! with `ecn` (RFC 2309, RFC 3168), but by the instantaneous queue length instead of the average.

use super::Pair;
use crate::time::Instant;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

/// Bytes of the Ethernet, IP and UDP headers of a packet, and its checksum.
const OVERHEAD: u64 = 14 + 20 + 8 + 4;

/// A queue of packets.
pub struct Queue {
    /// Rate of the link in bytes per millisecond.
    pub rate: u64,
    /// Capacity in bytes; further packets are dropped.
    pub limit: u64,
    /// Thresholds in bytes from which some and all packets are marked; equal for a step.
    pub mark_from: u64,
    pub mark_all: u64,
    free_at: Instant,
    rng: fastrand::Rng,
    /// Packets dropped, marked and forwarded.
    pub lost: u64,
    pub marked: u64,
    pub passed: u64,
    /// Queue length in bytes seen by each packet, for averages and quantiles.
    pub queue_lengths: Vec<u64>,
}

impl Queue {
    /// An empty queue without marking.
    pub fn new(seed: u64, rate: u64, limit: u64) -> Self {
        Self {
            rate,
            limit,
            mark_from: u64::MAX,
            mark_all: u64::MAX,
            free_at: Instant::ZERO,
            rng: fastrand::Rng::with_seed(seed),
            lost: 0,
            marked: 0,
            passed: 0,
            queue_lengths: Vec::new(),
        }
    }

    /// Sets the marking thresholds in bytes.
    pub fn marking(mut self, from: u64, all: u64) -> Self {
        (self.mark_from, self.mark_all) = (from, all);
        self
    }

    /// Wraps the queue to share it between pairs.
    pub fn shared(self) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(self))
    }

    /// Enqueues a packet with `len` bytes of UDP payload: when it has left, and whether it is
    /// marked; `None` if the queue is full.
    pub(super) fn pass(&mut self, now: Instant, len: usize) -> Option<(Instant, bool)> {
        let begin = self.free_at.max(now);
        let waiting = (begin - now) * self.rate / 1_000_000;
        let len = len as u64 + OVERHEAD;
        self.queue_lengths.push(waiting);
        if waiting + len > self.limit {
            self.lost += 1;
            return None;
        }
        let marked = if waiting >= self.mark_all {
            true
        } else if waiting >= self.mark_from {
            self.rng.u64(self.mark_from..self.mark_all) < waiting
        } else {
            false
        };
        self.passed += 1;
        self.marked += u64::from(marked);
        self.free_at = begin + len * 1_000_000 / self.rate;
        Some((self.free_at, marked))
    }

    /// Quantile of the queue length in bytes, in per cent of the packets.
    pub fn quantile(&self, percent: usize) -> u64 {
        let mut queue_lengths = self.queue_lengths.clone();
        queue_lengths.sort_unstable();
        let at = (queue_lengths.len() * percent / 100).min(queue_lengths.len().saturating_sub(1));
        queue_lengths.get(at).copied().unwrap_or(0)
    }
}

/// Runs pairs that share queues until `until` in one order of time; calls `each` for each pair
/// before it sends.
pub fn run_together(pairs: &mut [Pair], until: Instant, mut each: impl FnMut(usize, &mut Pair)) {
    loop {
        let mut next = until;
        for (index, pair) in pairs.iter_mut().enumerate() {
            each(index, pair);
            next = pair.next_event().map_or(next, |at| next.min(at));
        }
        for pair in pairs.iter_mut() {
            pair.advance(next);
        }
        if next >= until {
            return;
        }
    }
}
