// SPDX-License-Identifier: GPL-2.0
//! Pacing: the sending rate of a QP after CNPs.
//!
//! The algorithm follows DCQCN (Zhu et al., SIGCOMM 2015): a CNP cuts the rate, by more the more
//! CNPs have arrived recently; without CNPs each step recovers half of the way to the rate before
//! the cut (fast recovery), later steps go beyond it. The parameters of DCQCN are absolute, for
//! adapters of 40 Gbit/s and round trips of microseconds; here they are relative, so that the same
//! constants serve links of 50 Mbit/s and of 10 Gbit/s. The interval of cuts follows the minimum
//! round trip time, because the excess must leave the queue soon, however long the queue has
//! become. A recovery step waits until the peer has acknowledged everything sent before the
//! previous step or CNP: behind a long queue the absence of CNPs proves nothing. The increment of a
//! step grows with the square root of the rate: more slowly than a cut, which makes shares equal in
//! the long run (binomial control, Bansal and Balakrishnan, INFOCOM 2001), and fits slow and fast
//! links. The rate never falls below two packets per round trip, also with forged CNPs.

use crate::ids::Psn;
use crate::time::Instant;

/// Full scale of [`Limit::alpha`].
const ALPHA_ONE: u64 = 1024;

/// Gain of the estimate per period_ns: 1/16 (RFC 8257, 4.2).
const ALPHA_SHIFT: u32 = 4;

/// Minimum and maximum period, in nanoseconds. The minimum is a few times that of ConnectX adapters
/// (`rpg_time_reset`, 300 µs): a cut takes effect only after a queue of about that length has
/// drained, and software responds late.
const MIN_PERIOD_NS: u64 = 1_000_000;
const MAX_PERIOD_NS: u64 = 20_000_000;

/// Minimum number of packets per period, so that its CE marks are significant, up to a maximum
/// time, so that recovery from a low rate does not take too long.
const PERIOD_PACKETS: u64 = 4;
const MAX_PACKETS_NS: u64 = 5_000_000;

/// Periods of fast recovery, each half of the way to the rate before the cut (F of DCQCN).
const FAST_STEPS: u32 = 5;

/// Periods without a CNP after which the rate grows by an eighth in each: the congestion is over
/// (hyper increase of QCN).
const HYPER_STEPS: u32 = 24;

/// Periods without a CNP after which the limit is released.
const RELEASE_STEPS: u32 = 96;

/// Additive increase per period, in multiples of the square root of the rate in bytes per
/// millisecond: 7 per cent of 25 Mbit/s, 3.6 of 100 Mbit/s, 0.5 of 5 Gbit/s.
const ADDITIVE_FACTOR: u64 = 4;

/// Packets that may always be sent per round trip, or per millisecond if that is longer: the
/// minimum window of TCP (RFC 5681, 3.1).
const MIN_WINDOW_PACKETS: u64 = 2;
const MIN_RTT_NS: u64 = 1_000_000;

/// Minimum rate in bytes per millisecond: 1 Mbit/s, as in ConnectX adapters (`rpg_min_rate`), and
/// 10 Mbit/s for a QP without round trip samples.
const MIN_RATE: u64 = 125;
const MIN_RATE_UNKNOWN: u64 = 1250;

/// Maximum rate, in bytes per millisecond: 400 Gbit/s. Keeps the products small.
const MAX_RATE: u64 = 50_000_000;

/// Time over which a rate is measured, in nanoseconds.
const MEASURE_NS: u64 = 4_000_000;

/// Minimum number of bytes available at the end of a pause, for a GSO batch.
const QUANTUM: i64 = 8 * 1024;

/// Depth of the token bucket: minimum in bytes, and in nanoseconds at the current rate. A timer
/// that fires up to this late costs no throughput.
const MIN_BURST: i64 = 2 * QUANTUM;
const BURST_NS: u64 = 2_000_000;

/// Time between two GSO batches of a fast sender, in nanoseconds.
const QUANTUM_NS: u64 = 25_000;

/// Maximum pause, in nanoseconds.
const MAX_WAIT_NS: u64 = 10_000_000;

/// Minimum pause, in nanoseconds: a timer has a cost.
const MIN_WAIT_NS: u64 = 20_000;

const NS_PER_MS: u64 = 1_000_000;

/// State of the path of a QP.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathState {
    /// Minimum round trip time so far in nanoseconds, that is without queueing; `None` before the
    /// first sample.
    pub(super) min_rtt_ns: Option<u64>,
    /// Current round trip time, likewise.
    pub(super) rtt_ns: Option<u64>,
    /// Maximum payload of a packet, in bytes.
    pub(super) mtu: u32,
    /// PSN of the next packet to send, and of the oldest unacknowledged packet; equal for services
    /// without acknowledgements.
    pub(super) next: Psn,
    pub(super) oldest: Psn,
}

/// Measures a rate in bytes per millisecond.
#[derive(Clone, Copy, Debug)]
struct RateEstimator {
    /// Number of bytes sent since `since`.
    bytes: u64,
    since: Instant,
    /// Rate of the previous measurement, in bytes per millisecond.
    measured: u64,
}

impl RateEstimator {
    const fn new() -> Self {
        Self {
            bytes: 0,
            since: Instant::ZERO,
            measured: 0,
        }
    }

    #[inline]
    fn add(&mut self, now: Instant, bytes: u64) {
        let elapsed = now.ns_since(self.since);
        if elapsed >= MEASURE_NS {
            let rate = self.bytes.saturating_mul(NS_PER_MS).checked_div(elapsed);
            self.measured = rate.unwrap_or(0);
            self.bytes = 0;
            self.since = now;
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn rate(&self, now: Instant) -> u64 {
        let elapsed = now.ns_since(self.since);
        let recent = self.bytes.saturating_mul(NS_PER_MS);
        // Not over a shorter time: a burst is not a rate.
        let recent = recent.checked_div(elapsed.max(MEASURE_NS / 2)).unwrap_or(0);
        recent.max(self.measured)
    }
}

/// Limits the sending rate of a QP after CNPs (IBTA A17.9.3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    limit: Option<Limit>,
    /// Rates of sending and of acknowledgement while there is no limit.
    sent: RateEstimator,
    acknowledged: RateEstimator,
}

/// Rates in bytes per millisecond, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// The sending rate, and the rate that recovery steps approach.
    rate: u64,
    target: u64,
    /// Minimum rate in bytes per millisecond.
    floor: u64,
    /// Estimate of the fraction of periods with a CNP, in units of 1/[`ALPHA_ONE`].
    alpha: u64,
    /// Interval of cuts and of recovery steps.
    period_ns: u64,
    cut_at: Instant,
    /// A packet was sent after the last cut.
    sent_since_cut: bool,
    /// When the current period of recovery began, and how many steps there were since the last CNP.
    step_at: Instant,
    steps: u32,
    /// The next step waits until all packets before this PSN are acknowledged; true if it was
    /// delayed by that.
    step_psn: Psn,
    step_delayed: bool,
    /// Token bucket in bytes; negative after a packet that was longer.
    tokens: i64,
    refilled: Instant,
}

fn bytes_in(rate: u64, ns: u64) -> u64 {
    // Both are bounded, so the product is.
    rate.saturating_mul(ns.min(MAX_WAIT_NS))
        .checked_div(NS_PER_MS)
        .unwrap_or(0)
}

/// Rate in bytes per millisecond of `bytes` in `ns`.
fn rate_of(bytes: u64, ns: u64) -> u64 {
    bytes
        .saturating_mul(NS_PER_MS)
        .checked_div(ns)
        .unwrap_or(MAX_RATE)
}

/// Integer square root of a number below 2^32.
fn sqrt(of: u64) -> u64 {
    let mut sqrt = 0u64;
    for bit in (0..16).rev() {
        let more = sqrt | 1u64.wrapping_shl(bit);
        if more.saturating_mul(more) <= of {
            sqrt = more;
        }
    }
    sqrt
}

impl Limit {
    fn new(now: Instant, rate: u64, path: PathState) -> Self {
        let mut limit = Self {
            rate,
            target: rate,
            floor: MIN_RATE_UNKNOWN,
            alpha: ALPHA_ONE,
            period_ns: MIN_PERIOD_NS,
            cut_at: now,
            sent_since_cut: true,
            step_at: now,
            steps: 0,
            step_psn: path.next,
            step_delayed: false,
            tokens: 0,
            refilled: now,
        };
        limit.measure(path);
        limit
    }

    /// Updates period and minimum rate from the state of the path.
    fn measure(&mut self, path: PathState) {
        let packet = u64::from(path.mtu);
        let least = path.min_rtt_ns.unwrap_or(0);
        let packets = packet
            .saturating_mul(PERIOD_PACKETS * NS_PER_MS)
            .checked_div(self.rate)
            .unwrap_or(0);
        let packets = packets.min(MAX_PACKETS_NS);
        self.period_ns = least.max(packets).clamp(MIN_PERIOD_NS, MAX_PERIOD_NS);
        self.floor = match path.rtt_ns {
            Some(ns) => rate_of(
                packet.saturating_mul(MIN_WINDOW_PACKETS),
                ns.max(MIN_RTT_NS),
            ),
            None => MIN_RATE_UNKNOWN,
        }
        .clamp(MIN_RATE, MAX_RATE);
        self.rate = self.rate.max(self.floor);
        self.target = self.target.max(self.rate);
    }

    /// Cuts the rate, at most once for the packets in flight.
    fn cut(&mut self, now: Instant) {
        self.target = self.rate;
        let share = self.rate.saturating_mul(self.alpha) / (2 * ALPHA_ONE);
        self.rate = self.rate.saturating_sub(share).max(self.floor);
        // The excess in flight leaves the queue before more is sent.
        let less = self.target.saturating_sub(self.rate);
        let excess = i64::try_from(bytes_in(less, self.period_ns)).unwrap_or(0);
        self.tokens = self.tokens.saturating_sub(excess);
        self.target = self.target.max(self.rate);
        let rest = ALPHA_ONE.saturating_sub(self.alpha);
        self.alpha = self.alpha.saturating_add(rest >> ALPHA_SHIFT);
        self.cut_at = now;
        self.sent_since_cut = false;
    }

    /// A CNP arrived.
    fn on_cnp(&mut self, now: Instant, path: PathState) {
        let period_over = now.ns_since(self.cut_at) >= self.period_ns;
        if self.sent_since_cut && period_over {
            self.measure(path);
            self.cut(now);
        }
        // The rate does not recover while CNPs arrive.
        self.step_at = now;
        self.steps = 0;
        self.step_psn = path.next;
    }

    /// Does the recovery steps that are due; false when the recovery is complete.
    fn recover(&mut self, now: Instant, path: PathState) -> bool {
        if now.ns_since(self.step_at) >= self.period_ns {
            if path.oldest.is_before(self.step_psn) {
                self.step_delayed = true;
                return true;
            }
            self.measure(path);
            if core::mem::take(&mut self.step_delayed) {
                // At most the steps of one minimum round trip time.
                let room = path.min_rtt_ns.unwrap_or(0).max(self.period_ns);
                self.step_at = self.step_at.max(now.saturating_sub(room));
            }
            self.step_psn = path.next;
        }
        for _ in 0..RELEASE_STEPS {
            if now.ns_since(self.step_at) < self.period_ns {
                break;
            }
            self.step_at = self.step_at.saturating_add(self.period_ns);
            self.steps = self.steps.saturating_add(1);
            self.alpha = self.alpha.saturating_sub(self.alpha >> ALPHA_SHIFT);
            if self.steps > FAST_STEPS {
                let mut more = sqrt(self.target).saturating_mul(ADDITIVE_FACTOR);
                if self.steps > HYPER_STEPS {
                    more = more.max(self.target >> 4);
                }
                self.target = self.target.saturating_add(more).min(MAX_RATE);
            }
            self.rate = self.rate.saturating_add(self.target) >> 1;
        }
        self.steps < RELEASE_STEPS
    }

    fn burst(&self) -> i64 {
        i64::try_from(bytes_in(self.rate, BURST_NS))
            .unwrap_or(MIN_BURST)
            .max(MIN_BURST)
    }

    fn refill(&mut self, now: Instant) {
        let refilled_bytes = bytes_in(self.rate, now.ns_since(self.refilled));
        // Fractions of a byte are carried over to the next refill.
        if refilled_bytes > 0 {
            self.refilled = now;
            let refilled_bytes = i64::try_from(refilled_bytes).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(refilled_bytes).min(self.burst());
        }
    }
}

impl Pacer {
    pub(super) const fn new() -> Self {
        Self {
            limit: None,
            sent: RateEstimator::new(),
            acknowledged: RateEstimator::new(),
        }
    }

    /// Rate in bytes per millisecond; `None` without a limit.
    pub(super) fn rate(&self) -> Option<u64> {
        self.limit.map(|limit| limit.rate)
    }

    /// An accepted CNP arrived. True if there was no limit before.
    pub(super) fn on_cnp(&mut self, now: Instant, path: PathState) -> bool {
        if let Some(limit) = &mut self.limit {
            if limit.recover(now, path) {
                limit.on_cnp(now, path);
                return false;
            }
        }
        let mut limit = Limit::new(now, self.current(now), path);
        limit.cut(now);
        self.limit = Some(limit);
        true
    }

    /// Releases the limit.
    pub(super) fn release(&mut self) {
        self.limit = None;
    }

    /// The rate of an unlimited sender: the delivery rate if known, else the send rate.
    fn current(&self, now: Instant) -> u64 {
        let sent = self.sent.rate(now);
        let rate = match self.acknowledged.rate(now) {
            0 => sent,
            rate => rate.min(sent),
        };
        rate.clamp(MIN_RATE, MAX_RATE)
    }

    /// Bytes that may be sent now; [`u64::MAX`] without a limit, 0 during a pause.
    #[inline]
    pub(super) fn budget(&mut self, now: Instant, path: PathState) -> u64 {
        let Some(limit) = &mut self.limit else {
            return u64::MAX;
        };
        limit.refill(now);
        if !limit.recover(now, path) {
            self.limit = None;
            return u64::MAX;
        }
        u64::try_from(limit.tokens).unwrap_or(0)
    }

    /// `bytes` were sent.
    #[inline]
    pub(super) fn spend(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let Some(limit) = &mut self.limit {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            limit.tokens = limit.tokens.saturating_sub(bytes);
            limit.sent_since_cut = true;
        } else {
            self.sent.add(now, bytes);
        }
    }

    /// The peer acknowledged `bytes`.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, now: Instant, bytes: u64) {
        if self.limit.is_none() {
            self.acknowledged.add(now, bytes);
        }
    }

    /// When to resume transmission after the budget is spent.
    pub(super) fn resume_at(&self, now: Instant) -> Instant {
        let Some(limit) = &self.limit else {
            return now;
        };
        let quantum = i64::try_from(bytes_in(limit.rate, QUANTUM_NS)).unwrap_or(QUANTUM);
        let missing = quantum.max(QUANTUM).saturating_sub(limit.tokens);
        let missing = u64::try_from(missing).unwrap_or(0);
        let wait = missing.saturating_mul(NS_PER_MS).checked_div(limit.rate);
        let wait = wait.unwrap_or(MAX_WAIT_NS);
        now.saturating_add(wait.clamp(MIN_WAIT_NS, MAX_WAIT_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const NONE: Psn = Psn::new(0);

    const MS: u64 = 1_000_000;

    const BEGIN: Instant = Instant::from_ns(MS);

    /// A path with this round trip time and packets of 1024 bytes.
    fn path(ns: u64) -> PathState {
        PathState {
            min_rtt_ns: Some(ns),
            rtt_ns: Some(ns),
            mtu: 1024,
            next: NONE,
            oldest: NONE,
        }
    }

    const UNKNOWN: PathState = PathState {
        min_rtt_ns: None,
        rtt_ns: None,
        mtu: 1024,
        next: NONE,
        oldest: NONE,
    };

    /// Sends as much as the pacer allows for `ns`, in packets of 1000 bytes; returns bytes per
    /// millisecond.
    fn run(pacer: &mut Pacer, now: &mut Instant, ns: u64, line: u64, path: PathState) -> u64 {
        let (start, mut sent) = (*now, 0);
        while *now < start + ns {
            if pacer.budget(*now, path) > 0 {
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
    fn unlimited_without_cnps() {
        let mut pacer = Pacer::new();
        assert_eq!(pacer.budget(BEGIN, UNKNOWN), u64::MAX);
        assert_eq!(pacer.rate(), None);
    }

    #[test]
    fn square_roots() {
        for n in (0..100_000).chain([MAX_RATE, u32::MAX.into(), u64::MAX]) {
            let n_32 = n.min(u32::MAX.into());
            let sqrt = sqrt(n);
            assert!(sqrt * sqrt <= n && (sqrt + 1) * (sqrt + 1) > n_32, "{n}");
        }
    }

    /// The first CNP halves the measured rate.
    #[test]
    fn first_cnp_halves_the_send_rate() {
        let (mut pacer, mut now) = (Pacer::new(), BEGIN);
        let line = 1_000_000;
        let free = run(&mut pacer, &mut now, 10 * MS, line, UNKNOWN);
        assert!((900_000..=1_010_000).contains(&free), "{free}");
        assert!(pacer.on_cnp(now, path(MS)));
        let rate = pacer.rate().unwrap();
        assert!((400_000..=600_000).contains(&rate), "{rate}");
        // The excess in flight leaves the network first.
        let paused = run(&mut pacer, &mut now, MS - 1, line, path(MS));
        assert!(paused < 100_000, "{paused}");
        let limited = run(&mut pacer, &mut now, MS, line, path(MS));
        assert!((300_000..=850_000).contains(&limited), "{limited}");
    }

    /// The delivery rate counts if it is known, not the rate at which a queue fills.
    #[test]
    fn first_cnp_halves_the_delivery_rate() {
        let (mut pacer, mut now) = (Pacer::new(), BEGIN);
        for _ in 0..10_000 {
            pacer.spend(now, 1000);
            pacer.on_acknowledged(now, 10);
            now += 1000;
        }
        pacer.on_cnp(now, path(MS));
        let rate = pacer.rate().unwrap();
        assert!((4_000..=6_000).contains(&rate), "{rate}");
    }

    /// One cut per round trip, and only if a packet was sent after the previous cut; never below
    /// two packets per round trip.
    #[test]
    fn cuts_are_bounded() {
        for rtt in [MS, 2 * MS, 8 * MS] {
            let (mut pacer, mut now) = (Pacer::new(), BEGIN);
            run(&mut pacer, &mut now, 10 * MS, 1_000_000, UNKNOWN);
            pacer.on_cnp(now, path(rtt));
            let once = pacer.rate();
            pacer.on_cnp(now + rtt - 1, path(rtt));
            assert_eq!(pacer.rate(), once);
            pacer.on_cnp(now + rtt, path(rtt));
            let idle = pacer.rate();
            assert!(idle >= once, "nothing was sent");
            for _ in 0..1000 {
                now += MIN_PERIOD_NS;
                pacer.spend(now, 1);
                pacer.on_cnp(now, path(rtt));
                let least = 2 * 1024 * MS / rtt.max(MS);
                assert!(pacer.rate().unwrap() >= least);
            }
            assert!(pacer.rate() < once);
            assert!(pacer.resume_at(now) <= now + MAX_WAIT_NS);
        }
    }

    /// Without round trip samples the minimum rate is absolute.
    #[test]
    fn min_rate_without_rtt() {
        let (mut pacer, mut now) = (Pacer::new(), BEGIN);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000, UNKNOWN);
        for _ in 0..10_000 {
            now += MS;
            pacer.spend(now, 1);
            pacer.on_cnp(now, UNKNOWN);
            assert!(pacer.rate().unwrap() >= MIN_RATE_UNKNOWN);
        }
        assert!(pacer.rate().unwrap() < 4 * MIN_RATE_UNKNOWN);
    }

    /// Without further CNPs the rate soon recovers, and then the limit is released.
    #[test]
    fn recovers() {
        let (mut pacer, mut now) = (Pacer::new(), BEGIN);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000, UNKNOWN);
        for _ in 0..3 {
            pacer.on_cnp(now, path(MS));
            run(&mut pacer, &mut now, MS, 1_000_000, path(MS));
        }
        let low = pacer.rate().unwrap();
        run(&mut pacer, &mut now, 6 * MS, 1_000_000, path(MS));
        let back = pacer.rate().unwrap();
        assert!(back > low * 3 / 2, "{low} {back}");
        run(&mut pacer, &mut now, 100 * MS, 1_000_000, path(MS));
        assert_eq!(pacer.rate(), None);
    }

    /// The rate does not recover before the peer has acknowledged what was sent before, and then by
    /// one step.
    #[test]
    fn recovery_waits_for_acks() {
        let (mut pacer, mut now) = (Pacer::new(), BEGIN);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000, UNKNOWN);
        let mut state = path(MS);
        state.next = Psn::new(100);
        state.oldest = Psn::new(90);
        pacer.on_cnp(now, state);
        let low = pacer.rate();
        for _ in 0..100 {
            now += MS;
            pacer.budget(now, state);
            assert_eq!(pacer.rate(), low);
        }
        state.oldest = Psn::new(100);
        state.next = Psn::new(110);
        pacer.budget(now, state);
        let more = pacer.rate();
        assert!(more > low);
        now += 100 * MS;
        pacer.budget(now, state);
        assert_eq!(pacer.rate(), more);
        state.oldest = Psn::new(110);
        pacer.budget(now, state);
        let yet_more = pacer.rate().unwrap();
        assert!(yet_more > more.unwrap() && yet_more < 2 * more.unwrap());
    }

    /// Rare marks cost little in the long run, because the estimate follows their share.
    #[test]
    fn rare_marks_cut_less() {
        let (mut pacer, mut now) = (Pacer::new(), BEGIN);
        run(&mut pacer, &mut now, 10 * MS, 1_000_000, UNKNOWN);
        pacer.on_cnp(now, path(MS));
        run(&mut pacer, &mut now, 30 * MS, 1_000_000, path(MS));
        let before = pacer.rate().unwrap();
        pacer.on_cnp(now, path(MS));
        let after = pacer.rate().unwrap();
        assert!(after > before * 3 / 4, "{before} {after}");
    }

    /// Clock jumps and extreme sizes and round trip times are harmless.
    #[test]
    fn extreme_inputs() {
        for rtt in [None, Some(0), Some(u64::MAX)] {
            for mtu in [0, u32::MAX] {
                let path = PathState {
                    min_rtt_ns: rtt,
                    rtt_ns: rtt,
                    mtu,
                    next: NONE,
                    oldest: NONE,
                };
                let (mut pacer, early) = (Pacer::new(), Instant::from_ns(1));
                pacer.spend(Instant::ZERO, u64::MAX);
                pacer.on_acknowledged(Instant::ZERO, u64::MAX);
                pacer.on_cnp(Instant::MAX, path);
                pacer.on_cnp(Instant::ZERO, path);
                pacer.spend(Instant::from_ns(3), u64::MAX);
                assert_eq!(pacer.budget(early, path), 0);
                assert!(pacer.resume_at(early) <= early + MAX_WAIT_NS);
                pacer.budget(Instant::MAX, path);
            }
        }
    }
}
