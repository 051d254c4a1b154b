// SPDX-License-Identifier: GPL-2.0
//! Congestion control of connections (IBTA vol1 annex A17.9): the receiver notifies, the sender
//! slows down.
//!
//! A router whose queue grows marks packets in the IP header. The [`Notifier`] of the receiving
//! queue pair asks for a notification (CNP) then, not too often. The [`Pacer`] of the sending one
//! cuts its rate when a notification comes, by more the more of them have come lately, and finds
//! its way back up by itself: halfway to where it was at a time, then beyond, until it is free
//! again. This is the shape of DCQCN (Zhu et al., SIGCOMM 2015).

use super::attrs::UdMeta;
use super::ports::{Dest, Tx, TxFault};
use super::wc::NetKind;
use crate::wire::repr::Headers;

/// True if a router on the way marked the packet: "congestion experienced" (RFC 3168).
#[inline]
pub(super) fn is_marked(meta: &UdMeta<'_>) -> bool {
    let byte = meta.ip_header.get(1).copied().unwrap_or(0);
    let ecn = match meta.net {
        NetKind::V4 => byte,
        NetKind::V6 => byte >> 4,
    };
    ecn & 3 == 3
}

/// Least time between two notifications of a queue pair, in nanoseconds.
pub(super) const NOTIFY_NS: u64 = 50_000;

/// When the peer is to be notified.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notifier {
    /// A notification is to be sent.
    pub(super) due: bool,
    last: Option<u64>,
}

impl Notifier {
    /// A marked packet arrived.
    pub(super) fn on_marked(&mut self, now: u64) {
        let wait = self
            .last
            .is_some_and(|at| now.saturating_sub(at) < NOTIFY_NS);
        if !wait {
            self.last = Some(now);
            self.due = true;
        }
    }
}

/// Full scale of [`Limit::alpha`].
const ALPHA_ONE: u64 = 1024;

/// By how much of the distance the estimate moves at a time: a sixteenth.
const ALPHA_SHIFT: u32 = 4;

/// Least time between two cuts, in nanoseconds.
const CUT_NS: u64 = 50_000;

/// Time of one step of the recovery, in nanoseconds.
const STEP_NS: u64 = 300_000;

/// Steps that lead back to the rate before the cut, each half of the way.
const FAST_STEPS: u32 = 5;

/// Steps without a notification after which nothing is limited any more.
const FREE_STEPS: u32 = 64;

/// Least rate, in bytes per millisecond: 10 Mbit/s.
const MIN_RATE: u64 = 1250;

/// Greatest rate, in bytes per millisecond: 400 Gbit/s. Keeps the products small.
const MAX_RATE: u64 = 50_000_000;

/// Time over which the rate of an unlimited sender is measured, in nanoseconds.
const MEASURE_NS: u64 = 1_000_000;

/// Least number of bytes saved up while nothing is sent.
const MIN_BURST: i64 = 16 * 1024;

/// Longest pause, in nanoseconds.
const MAX_WAIT_NS: u64 = 10_000_000;

/// Shortest pause: a timer has its cost.
const MIN_WAIT_NS: u64 = 20_000;

const NS_PER_MS: u64 = 1_000_000;

/// How fast a queue pair may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    limit: Option<Limit>,
    /// Bytes sent since `since`.
    sent: u64,
    since: u64,
    /// Rate of the measurement before, in bytes per millisecond.
    measured: u64,
}

/// Rates in bytes per millisecond, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Limit {
    rate: u64,
    target: u64,
    /// Estimate of how many of the packets are marked, of [`ALPHA_ONE`].
    alpha: u64,
    cut_at: u64,
    step_at: u64,
    steps: u32,
    /// Bytes that may be sent; below zero after a packet that was longer.
    tokens: i64,
    refilled: u64,
}

fn bytes_in(rate: u64, ns: u64) -> u64 {
    // Both are bounded, so the product is.
    rate.saturating_mul(ns.min(MAX_WAIT_NS))
        .checked_div(NS_PER_MS)
        .unwrap_or(0)
}

impl Limit {
    fn new(now: u64, rate: u64) -> Self {
        Self {
            rate,
            target: rate,
            alpha: ALPHA_ONE,
            cut_at: 0,
            step_at: now,
            steps: 0,
            tokens: 0,
            refilled: now,
        }
    }

    fn cut(&mut self, now: u64) {
        self.target = self.rate;
        let share = self.rate.saturating_mul(self.alpha) / (2 * ALPHA_ONE);
        self.rate = self.rate.saturating_sub(share).max(MIN_RATE);
        let rest = ALPHA_ONE.saturating_sub(self.alpha);
        self.alpha = self.alpha.saturating_add(rest >> ALPHA_SHIFT);
        self.cut_at = now;
        self.step_at = now;
        self.steps = 0;
    }

    /// Catches up with the steps of the recovery; false when it is over.
    fn recover(&mut self, now: u64) -> bool {
        for _ in 0..FREE_STEPS {
            if now.saturating_sub(self.step_at) < STEP_NS {
                break;
            }
            self.step_at = self.step_at.saturating_add(STEP_NS);
            self.steps = self.steps.saturating_add(1);
            self.alpha = self.alpha.saturating_sub(self.alpha >> ALPHA_SHIFT);
            if self.steps > FAST_STEPS {
                let more = (self.target >> 4).max(MIN_RATE);
                self.target = self.target.saturating_add(more).min(MAX_RATE);
            }
            self.rate = self.rate.saturating_add(self.target) >> 1;
        }
        self.steps < FREE_STEPS
    }

    fn burst(&self) -> i64 {
        i64::try_from(bytes_in(self.rate, NOTIFY_NS))
            .unwrap_or(MIN_BURST)
            .max(MIN_BURST)
    }

    fn refill(&mut self, now: u64) {
        let gained = bytes_in(self.rate, now.saturating_sub(self.refilled));
        // What is less than a byte is kept for the next time.
        if gained > 0 {
            self.refilled = now;
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(gained).min(self.burst());
        }
    }
}

impl Pacer {
    pub(super) const fn new() -> Self {
        Self {
            limit: None,
            sent: 0,
            since: 0,
            measured: 0,
        }
    }

    /// Rate in bytes per millisecond; `None` without a limit.
    pub(super) fn rate(&self) -> Option<u64> {
        self.limit.map(|limit| limit.rate)
    }

    /// A notification arrived.
    pub(super) fn on_notice(&mut self, now: u64) {
        let rate = self.current(now);
        let limit = self.limit.get_or_insert(Limit::new(now, rate));
        if !limit.recover(now) {
            *limit = Limit::new(now, rate);
        }
        if now.saturating_sub(limit.cut_at) >= CUT_NS || limit.cut_at == 0 {
            limit.cut(now);
        }
    }

    /// The rate of an unlimited sender.
    fn current(&self, now: u64) -> u64 {
        let elapsed = now.saturating_sub(self.since);
        let recent = self.sent.saturating_mul(NS_PER_MS);
        // Not from a moment: a burst is no rate.
        let recent = recent.checked_div(elapsed.max(MEASURE_NS / 4)).unwrap_or(0);
        recent.max(self.measured).clamp(MIN_RATE, MAX_RATE)
    }

    /// Bytes that may be sent now; [`u64::MAX`] without a limit, 0 during a pause.
    #[inline]
    pub(super) fn budget(&mut self, now: u64) -> u64 {
        let Some(limit) = &mut self.limit else {
            return u64::MAX;
        };
        if !limit.recover(now) {
            self.limit = None;
            return u64::MAX;
        }
        limit.refill(now);
        u64::try_from(limit.tokens).unwrap_or(0)
    }

    /// `bytes` were sent.
    #[inline]
    pub(super) fn spend(&mut self, now: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let Some(limit) = &mut self.limit {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            limit.tokens = limit.tokens.saturating_sub(bytes);
            return;
        }
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= MEASURE_NS {
            let rate = self.sent.saturating_mul(NS_PER_MS).checked_div(elapsed);
            self.measured = rate.unwrap_or(0);
            self.sent = 0;
            self.since = now;
        }
        self.sent = self.sent.saturating_add(bytes);
    }

    /// When to go on after the budget has been spent.
    pub(super) fn resume_at(&self, now: u64) -> u64 {
        let Some(limit) = &self.limit else {
            return now;
        };
        // Until half a burst has been saved up: packets go in trains.
        let missing = (limit.burst() >> 1).saturating_sub(limit.tokens);
        let missing = u64::try_from(missing).unwrap_or(0);
        let wait = missing.saturating_mul(NS_PER_MS).checked_div(limit.rate);
        let wait = wait.unwrap_or(MAX_WAIT_NS);
        now.saturating_add(wait.clamp(MIN_WAIT_NS, MAX_WAIT_NS))
    }
}

/// Counts what goes to a sink, which is full when the budget is spent.
pub(super) struct Meter<'a, T> {
    tx: &'a mut T,
    budget: u64,
    pub(super) sent: u64,
}

impl<'a, T: Tx> Meter<'a, T> {
    pub(super) fn new(tx: &'a mut T, budget: u64) -> Self {
        Self {
            tx,
            budget,
            sent: 0,
        }
    }

    /// True if it was the budget that ended.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.sent >= self.budget
    }

    #[inline]
    fn add(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.sent = self.sent.saturating_add(bytes);
    }
}

impl<T: Tx> Tx for Meter<'_, T> {
    #[inline]
    fn has_room(&self) -> bool {
        !self.is_spent() && self.tx.has_room()
    }

    #[inline]
    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        self.tx.packet(to, headers, payload_len, fill)?;
        self.add(headers.len().saturating_add(payload_len));
        Ok(())
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        self.tx.frame(len, fill)?;
        self.add(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends as much as it may for `ns`, in packets of 1000 bytes; returns bytes per millisecond.
    fn run(pacer: &mut Pacer, now: &mut u64, ns: u64, line: u64) -> u64 {
        let (start, mut sent) = (*now, 0);
        while *now < start + ns {
            if pacer.budget(*now) > 0 {
                pacer.spend(*now, 1000);
                sent += 1000;
                *now += 1000 * MS / line;
            } else {
                let at = pacer.resume_at(*now);
                assert!(at > *now);
                *now = at;
            }
        }
        sent * MS / (*now - start)
    }

    #[test]
    fn unlimited_until_told() {
        let mut pacer = Pacer::new();
        assert_eq!(pacer.budget(5), u64::MAX);
        assert_eq!(pacer.rate(), None);
    }

    /// The first notification halves the rate that was measured.
    #[test]
    fn halves_what_was_sent() {
        let (mut pacer, mut now) = (Pacer::new(), 7 * MS);
        let line = 1_000_000;
        let free = run(&mut pacer, &mut now, 10 * MS, line);
        assert!((900_000..=1_010_000).contains(&free), "{free}");
        pacer.on_notice(now);
        let rate = pacer.rate().unwrap();
        assert!((400_000..=600_000).contains(&rate), "{rate}");
        let limited = run(&mut pacer, &mut now, STEP_NS - 1, line);
        assert!((300_000..=650_000).contains(&limited), "{limited}");
    }

    #[test]
    fn cuts_are_bounded_in_time_and_depth() {
        let (mut pacer, mut now) = (Pacer::new(), MS);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000);
        pacer.on_notice(now);
        let once = pacer.rate();
        pacer.on_notice(now + CUT_NS - 1);
        assert_eq!(pacer.rate(), once);
        for _ in 0..100 {
            now += CUT_NS;
            pacer.on_notice(now);
        }
        assert_eq!(pacer.rate(), Some(MIN_RATE));
        assert!(pacer.resume_at(now) <= now + MAX_WAIT_NS);
    }

    /// Without further notifications it is soon as fast as before and then free.
    #[test]
    fn recovers() {
        let (mut pacer, mut now) = (Pacer::new(), MS);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000);
        for _ in 0..3 {
            pacer.on_notice(now);
            now += CUT_NS;
        }
        let low = pacer.rate().unwrap();
        run(&mut pacer, &mut now, 6 * STEP_NS, 1_000_000);
        let back = pacer.rate().unwrap();
        assert!(back > low * 3 / 2, "{low} {back}");
        run(&mut pacer, &mut now, 70 * STEP_NS, 1_000_000);
        assert_eq!(pacer.rate(), None);
    }

    /// Seldom marks cost little in the long run, for the estimate follows their share.
    #[test]
    fn few_marks_cut_less() {
        let (mut pacer, mut now) = (Pacer::new(), MS);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000);
        pacer.on_notice(now);
        now += 30 * STEP_NS;
        pacer.budget(now);
        let before = pacer.rate().unwrap();
        pacer.on_notice(now);
        let after = pacer.rate().unwrap();
        assert!(after > before * 3 / 4, "{before} {after}");
    }

    /// A clock that jumps and sizes at the limits do no harm.
    #[test]
    fn extremes() {
        let mut pacer = Pacer::new();
        pacer.spend(0, u64::MAX);
        pacer.on_notice(u64::MAX);
        pacer.on_notice(0);
        pacer.spend(3, u64::MAX);
        assert_eq!(pacer.budget(1), 0);
        assert!(pacer.resume_at(1) <= 1 + MAX_WAIT_NS);
        pacer.budget(u64::MAX);
    }

    #[test]
    fn notifications_are_spaced() {
        let mut notifier = Notifier::default();
        let mut sent = 0;
        for now in (0..MS).step_by(1000) {
            notifier.on_marked(now);
            sent += u64::from(core::mem::take(&mut notifier.due));
        }
        assert_eq!(sent, MS / NOTIFY_NS);
    }

    #[test]
    fn marks() {
        for (net, shift) in [(NetKind::V4, 0), (NetKind::V6, 4)] {
            for byte in 0..=255u8 {
                let header = [0x45, byte, 0, 0];
                let meta = UdMeta {
                    net,
                    ip_header: &header,
                    pkey_index: 0,
                    vlan: None,
                };
                assert_eq!(is_marked(&meta), (byte >> shift) & 3 == 3);
            }
        }
    }
}
