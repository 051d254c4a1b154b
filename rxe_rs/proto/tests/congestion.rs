// SPDX-License-Identifier: GPL-2.0
//! Congestion control: senders that share the queue of a slow link, and forged CNPs.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::Service;
use rxe_proto::ids::{Mtu, PKey, Psn, Qpn};
use rxe_proto::sim::{run_together, seeds, wr, Link, Pair, Queue};
use rxe_proto::time::Instant;
use rxe_proto::wire::{Bth, Headers, Opcode};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const MESSAGE: u32 = 65_536;

/// Results of senders through one queue.
#[derive(Debug)]
struct Outcome {
    /// Utilization of the link, in per cent.
    used: u64,
    /// Jain's index of fairness, in thousandths.
    jain: u64,
    /// Queueing delay that half of the packets and that 99 in 100 did not exceed, in microseconds.
    median_us: u64,
    high_us: u64,
    lost: u64,
}

/// One of the senders.
#[derive(Clone, Copy)]
struct Sender {
    service: Service,
    op: SendOp,
    mtu: Mtu,
    starts_at: Instant,
}

const RC: Sender = Sender {
    service: Service::Rc,
    op: SendOp::Write,
    mtu: Mtu::Mtu1024,
    starts_at: Instant::ZERO,
};

/// Lets senders share a link of `mbit` for `time`, of which the last half is measured. The queue
/// holds 40 ms and, with `marking`, marks from 1 ms to 3 ms or from ten packets on.
fn share(senders: &[Sender], mbit: u64, time: u64, marking: bool, seed: u64) -> Outcome {
    let rate = mbit * 125;
    // Always enough to fill the queue if nothing limits them.
    let depth = 8 + rate as usize * 20 / MESSAGE as usize;
    let mut queue = Queue::new(seed, rate, (40 * rate).max(600_000));
    if marking {
        queue = queue.marking(rate.max(10_000), (3 * rate).max(40_000));
    }
    let queue = queue.shared();
    let mut pairs: Vec<Pair> = senders
        .iter()
        .enumerate()
        .map(|(index, sender)| {
            let link = Link {
                latency_ns: 15_000,
                ..Link::PERFECT
            };
            let seed = seed * 100 + index as u64;
            let mut pair = Pair::of(sender.service, seed, link, sender.mtu, 1 << 17);
            let to = usize::from(sender.op != SendOp::Read);
            pair.queues[to] = Some(queue.clone());
            // As librxe's users do, about 67 ms.
            pair.qps.iter_mut().for_each(|qp| qp.attrs.timeout = 14);
            pair
        })
        .collect();
    let mut done = vec![0; senders.len()];
    let post = |index: usize, pair: &mut Pair| {
        let sender = &senders[index];
        if pair.now < sender.starts_at {
            return;
        }
        while pair.hosts[0].outstanding() < depth {
            pair.post(0, wr(sender.op, 1, MESSAGE), 0);
        }
    };
    run_together(&mut pairs, Instant::from_ns(time / 2), post);
    let counts = |pairs: &[Pair], done: &mut Vec<u64>| {
        for (done, pair) in done.iter_mut().zip(pairs) {
            assert!(pair.hosts[0]
                .sent
                .iter()
                .all(|wc| wc.status == WcStatus::Success));
            *done = pair.hosts[0].sent.len() as u64 * u64::from(MESSAGE);
        }
    };
    counts(&pairs, &mut done);
    let before = done.clone();
    queue.borrow_mut().queue_lengths.clear();
    run_together(&mut pairs, Instant::from_ns(time), post);
    counts(&pairs, &mut done);
    let bytes: Vec<u64> = done.iter().zip(&before).map(|(a, b)| a - b).collect();
    let sum: u64 = bytes.iter().sum();
    let squares: u64 = bytes.iter().map(|b| (b >> 10) * (b >> 10)).sum();
    let queue = queue.borrow();
    let delay = |percent| queue.quantile(percent) * 1000 / rate;
    Outcome {
        used: sum * 100 / (rate * (time / 2 / MS)),
        jain: (sum >> 10).pow(2) * 1000 / (squares * senders.len() as u64).max(1),
        median_us: delay(50),
        high_us: delay(99),
        lost: queue.lost,
    }
}

/// Checks the shares, the use and the queue of senders that are alike.
fn check(what: &str, outcome: &Outcome, used: u64, high_us: u64) {
    assert!(outcome.jain >= 950, "{what}: {outcome:?}");
    assert!(outcome.used >= used, "{what}: {outcome:?}");
    assert!(outcome.high_us <= high_us, "{what}: {outcome:?}");
}

/// Two senders get equal shares of a slow link, use it, keep its queue short and lose nothing: at
/// any rate from 50 Mbit/s to 10 Gbit/s, with the same constants. Of the bits on the wire at most
/// 94 in 100 are payload.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn two_share_a_link() {
    for (mbit, time) in [(50, 4000), (200, 2000), (1000, 400), (10_000, 80)] {
        for seed in seeds(2) {
            let outcome = share(&[RC, RC], mbit, time * MS, true, seed);
            println!("{mbit} Mbit/s: {outcome:?}");
            check("RC", &outcome, 65, 12_000);
            assert_eq!(outcome.lost, 0, "{mbit} Mbit/s: {outcome:?}");
        }
    }
}

/// Without marks the same two fill the queue and lose packets.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn without_marks_the_queue_is_long() {
    for mbit in [50, 200] {
        let outcome = share(&[RC, RC], mbit, 2000 * MS, false, 0);
        println!("{mbit} Mbit/s without marks: {outcome:?}");
        assert!(
            outcome.median_us > 20_000 && outcome.lost > 0,
            "{outcome:?}"
        );
    }
}

/// The same for the peers that send what is READ, who know no round trip.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn two_readers_share_a_link() {
    let read = Sender {
        op: SendOp::Read,
        ..RC
    };
    for mbit in [50, 200, 1000] {
        let outcome = share(&[read, read], mbit, 2000 * MS, true, 1);
        println!("READ, {mbit} Mbit/s: {outcome:?}");
        check("READ", &outcome, 65, 15_000);
        assert_eq!(outcome.lost, 0, "{outcome:?}");
    }
}

/// A late sender gets its share, eight senders get theirs, long packets are harmless, and a single
/// sender uses the link.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn others_share_a_link() {
    let late = Sender {
        starts_at: Instant::from_ns(500 * MS),
        ..RC
    };
    let big = Sender {
        mtu: Mtu::Mtu4096,
        ..RC
    };
    for (what, senders, mbit) in [
        ("one", &[RC][..], 200),
        ("late", &[RC, late], 200),
        ("eight", &[RC; 8], 200),
        ("long packets", &[big, big], 200),
        ("long packets, slow", &[big, big], 50),
    ] {
        let outcome = share(senders, mbit, 3000 * MS, true, 1);
        println!("{what}: {outcome:?}");
        check(what, &outcome, 65, 25_000);
    }
}

/// Two unlimited senders have 1.5 MB of packets in the queue of a link that has become slow. A CNP
/// arrives for each packet that leaves it, while hardly anything is sent: these CNPs are genuine
/// and accepted. Soon the two share as others do.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn a_link_that_becomes_slow() {
    for mbit in [50, 100, 400] {
        let rate = mbit * 125;
        let queue = Queue::new(1, 1_250_000, 16_000_000).shared();
        let mut pairs: Vec<Pair> = (0..2)
            .map(|seed| {
                let link = Link {
                    latency_ns: 15_000,
                    ..Link::PERFECT
                };
                let mut pair = Pair::new(seed, link, Mtu::Mtu1024, 1 << 17);
                pair.queues[1] = Some(queue.clone());
                pair.qps.iter_mut().for_each(|qp| qp.attrs.timeout = 18);
                pair
            })
            .collect();
        let post = |_, pair: &mut Pair| {
            while pair.hosts[0].outstanding() < 12 {
                pair.post(0, wr(SendOp::Write, 1, MESSAGE), 0);
            }
        };
        run_together(&mut pairs, Instant::from_ns(100 * MS), post);
        {
            let queue = &mut *queue.borrow_mut();
            queue.rate = rate;
            queue.mark_from = (2 * rate).max(12_000);
            queue.mark_all = queue.mark_from + 1;
        }
        run_together(&mut pairs, Instant::from_ns(2000 * MS), post);
        queue.borrow_mut().queue_lengths.clear();
        let done = |pairs: &[Pair]| [0, 1].map(|at| pairs[at].hosts[0].sent.len() as u64);
        let before = done(&pairs);
        run_together(&mut pairs, Instant::from_ns(4000 * MS), post);
        let [one, two] = {
            let now = done(&pairs);
            [now[0] - before[0], now[1] - before[1]]
        };
        let jain = (one + two).pow(2) * 1000 / (2 * (one * one + two * two)).max(1);
        let used = (one + two) * u64::from(MESSAGE) * 100 / (rate * 2000);
        let delay = queue.borrow().quantile(99) * 1000 / rate;
        let count = |what: Count| [0, 1].map(|at| pairs[at].hosts[0].counts[what]);
        let what = format!(
            "{mbit} Mbit/s: Jain {jain}, used {used}, 99 in 100 find {delay} us; accepted {:?}, ignored {:?}, \
             NAKs {:?}, timeouts {:?}",
            count(Count::CnpHandled),
            count(Count::CnpIgnored),
            count(Count::SequenceNakReceived),
            count(Count::Timeout)
        );
        println!("{what}");
        assert_eq!(count(Count::CnpIgnored), [0, 0], "{what}");
        assert!(jain >= 950 && used >= 60 && delay < 12_000, "{what}");
        assert_eq!(queue.borrow().lost, 0, "{what}");
    }
}

/// A forged CNP with all numbers guessed correctly, for side 0.
fn forge(pair: &mut Pair, becn: bool) {
    forge_for(0, pair, becn);
}

fn forge_for(side: usize, pair: &mut Pair, becn: bool) {
    let bth = Bth {
        becn,
        migreq: false,
        pkey: PKey::DEFAULT,
        ..Bth::new(Opcode::CNP, Qpn::new(0x11 + side as u32), Psn::new(0))
    };
    pair.inject(side, Headers::new(bth), &[0; 16]);
}

/// A pair whose side `side` has much to send and has been slowed down to the minimum rate.
fn slowed(side: usize) -> Pair {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, 1 << 17);
    for _ in 0..64 {
        pair.post(side, wr(SendOp::Write, 1, 65_536), 0);
    }
    while pair.qps[side].rate_limit().is_none_or(|rate| rate > 2_100) {
        pair.step();
        forge_for(side, &mut pair, true);
        assert!(pair.hosts[side].outstanding() > 0);
    }
    pair
}

/// Throughput of a sender in one second while an attacker forges CNPs at a rate, in per cent of the
/// throughput without them; and how many CNPs it has accepted.
fn forged(service: Service, per_second: u64) -> (u64, u64) {
    let run = |per_second: u64| {
        let link = Link {
            latency_ns: 15_000,
            packet_ns: 10_000,
            ..Link::PERFECT
        };
        let mut pair = Pair::of(service, 1, link, Mtu::Mtu1024, 1 << 17);
        let every = SECOND.checked_div(per_second).unwrap_or(u64::MAX);
        let (mut next, end) = (Instant::from_ns(every), Instant::from_ns(3 * SECOND));
        while pair.now < end {
            // The messages of an unreliable sender are done at once: one each 10 ms.
            let ready = match service {
                Service::Uc => pair.hosts[0].sent.len() as u64 <= pair.now.as_ns() / (10 * MS),
                _ => pair.hosts[0].outstanding() < 4,
            };
            if ready && pair.hosts[0].outstanding() < 4 {
                pair.post(0, wr(SendOp::Write, 1, 65_536), 0);
            }
            let before = pair.now;
            if !pair.step() {
                pair.now = before + 100_000;
            }
            while next <= pair.now {
                forge(&mut pair, true);
                next = next.saturating_add(every);
            }
        }
        let handled = pair.hosts[0].counts[Count::CnpHandled];
        (pair.hosts[0].sent.len() as u64, handled)
    };
    let (free, none) = run(0);
    assert_eq!(none, 0);
    let (moved, handled) = run(per_second);
    (moved * 100 / free, handled)
}

/// More forged CNPs than packets are sent are soon rejected.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn excess_cnps_are_rejected() {
    for service in [Service::Rc, Service::Uc] {
        let (share, handled) = forged(service, 20_000);
        println!("{service:?}: {share} per cent, {handled} accepted");
        assert!(share >= 75, "{service:?}: {share} per cent");
        assert!(handled < 40_000);
    }
}

/// At most one forged CNP per packet leaves two packets per round trip or millisecond.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn plausible_cnps_leave_the_minimum_rate() {
    let (share, handled) = forged(Service::Rc, 1000);
    println!("{share} per cent, {handled} accepted");
    // 2048 bytes a millisecond of 100,000.
    assert!(share >= 1, "{share} per cent");
}

/// A pause of a rate-limited sender ends although the timers do not run, because responses wait for
/// a page fault: the end of the pause must not stay the deadline. So it is if transmission is also
/// paused by a full queue then.
#[test]
fn pause_ends_without_the_timer() {
    for busy in [false, true] {
        let mut pair = slowed(0);
        while pair.hosts[0].outstanding() > 0 || pair.qps[0].poll_resume().is_some() {
            assert!(pair.step());
        }
        let mut posted = 0;
        let resume = loop {
            assert!(posted < 64, "the sender is not limited");
            pair.post(0, wr(SendOp::Write, 1, 1024), 0);
            posted += 1;
            pair.transmit(0);
            if let Some(at) = pair.qps[0].poll_resume() {
                break at;
            }
        };
        pair.now = resume;
        if busy {
            pair.qps[0].on_congestion(resume);
        }
        pair.transmit(0);
        let next = pair.qps[0].poll_resume();
        assert!(next.is_none_or(|at| at > pair.now), "busy: {busy}");
        assert_eq!(next.is_some(), busy);
    }
}

/// CNPs without BECN, or without recent packets that could have been marked, are ignored.
#[test]
fn ignored_cnps() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, 1 << 17);
    let ignored = |pair: &Pair| pair.hosts[0].counts[Count::CnpIgnored];
    forge(&mut pair, true);
    assert_eq!((pair.qps[0].rate_limit(), ignored(&pair)), (None, 1));
    pair.post(0, wr(SendOp::Write, 1, 65_536), 0);
    pair.run(MS);
    forge(&mut pair, false);
    assert_eq!((pair.qps[0].rate_limit(), ignored(&pair)), (None, 2));
    forge(&mut pair, true);
    assert!(pair.qps[0].rate_limit().is_some());
    assert_eq!(ignored(&pair), 2);
}

/// A rate-limited QP acknowledges received packets at once.
#[test]
fn acknowledgements_are_not_paced() {
    let mut pair = slowed(0);
    let mut longest = 0;
    for id in 0..20 {
        let (start, done) = (pair.now, pair.hosts[1].sent.len());
        pair.post(1, wr(SendOp::Write, id, 100), 0);
        while pair.hosts[1].sent.len() == done {
            assert!(pair.step());
        }
        longest = longest.max(pair.now - start);
    }
    assert!(pair.hosts[0].outstanding() > 0, "nothing was held back");
    assert!(longest < 100_000, "{longest} ns");
}

/// Nor does the acknowledgement of a WRITE wait for READ data that does, nor the result of an
/// ATOMIC, as long as no READ is before it.
#[test]
fn responses_without_data_are_not_paced() {
    for (first, first_len, then, then_len) in [
        (SendOp::FetchAdd, 8, SendOp::FetchAdd, 8),
        (SendOp::Write, 100, SendOp::Read, 20_000),
    ] {
        let mut pair = slowed(1);
        let mut longest = 0;
        for id in 0..20 {
            let (start, done) = (pair.now, pair.hosts[0].sent.len());
            pair.post(0, wr(first, id, first_len), 0);
            // By itself, so that it requests an acknowledgement.
            pair.transmit(0);
            pair.post(0, wr(then, id, then_len), 0);
            while pair.hosts[0].sent.len() == done {
                assert!(pair.step());
            }
            longest = longest.max(pair.now - start);
            while pair.hosts[0].outstanding() > 0 {
                assert!(pair.step());
            }
            // A probe may have requested data again.
            pair.run(5 * MS);
            forge_for(1, &mut pair, true);
            while pair.hosts[1].outstanding() < 16 {
                pair.post(1, wr(SendOp::Write, 1, 65_536), 0);
            }
        }
        assert!(pair.hosts[1].outstanding() > 0, "nothing was held back");
        assert!(longest < 100_000, "{first:?}: {longest} ns");
    }
}

/// A CNP halves the rate of a side that sends READ data, whether it also sends requests, which are
/// acknowledged, or not.
#[test]
fn read_data_counts_as_delivered() {
    let link = Link {
        packet_ns: 10_000,
        ..Link::PERFECT
    };
    // The time of the first request, and the pause between two.
    for (first, pause) in [(SECOND, SECOND), (MS, SECOND), (MS, 10 * MS), (MS, MS)] {
        let mut pair = Pair::new(1, link, Mtu::Mtu1024, 1 << 17);
        let mut next = Instant::from_ns(first);
        while pair.now < Instant::from_ns(50 * MS) {
            while pair.hosts[0].outstanding() < 4 {
                pair.post(0, wr(SendOp::Read, 1, 65_536), 0);
            }
            if next <= pair.now {
                pair.post(1, wr(SendOp::Write, 1, 100), 0);
                next = pair.now.saturating_add(pause);
            }
            assert!(pair.step());
        }
        forge_for(1, &mut pair, true);
        // A packet in 10 us is 102 bytes in 1 us.
        let rate = pair.qps[1].rate_limit().unwrap();
        assert!((35_000..=70_000).contains(&rate), "{first} {pause}: {rate}");
    }
}

/// Side 0 posts READs until so many are outstanding.
fn read(pair: &mut Pair, reads: usize) {
    while pair.hosts[0].outstanding() < reads {
        pair.post(0, wr(SendOp::Read, 1, 65_536), 0);
    }
}

/// A pair of which side 0 READs all the time, and CNPs have slowed side 1.
fn reading(reads: usize) -> Pair {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, 1 << 17);
    while pair.qps[1].rate_limit().is_none_or(|rate| rate > 4_000) {
        read(&mut pair, reads);
        pair.step();
        forge_for(1, &mut pair, true);
    }
    pair
}

/// Requests of a QP are sent although the peer READs from it all the time, faster than the data may
/// be sent.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn read_data_does_not_starve_requests() {
    for reads in [1, 2, 4] {
        let mut pair = reading(reads);
        let begin = pair.now;
        for _ in 0..10 {
            pair.post(1, wr(SendOp::Write, 7, 10_000), 0);
        }
        while pair.hosts[1].outstanding() > 0 {
            read(&mut pair, reads);
            if pair.rng.u8(0..8) == 0 {
                forge_for(1, &mut pair, true);
            }
            assert!(pair.step());
            let waited = pair.now.ns_since(begin);
            assert!(waited < 200 * MS, "{reads} READs: {waited} ns");
        }
        // Neither stops the other.
        assert!(pair.hosts[0].outstanding() > 0);
        let before = pair.hosts[0].sent.len();
        while pair.hosts[0].sent.len() < before + 10 {
            read(&mut pair, reads);
            while pair.hosts[1].outstanding() < 4 {
                pair.post(1, wr(SendOp::Write, 7, 65_536), 0);
            }
            assert!(pair.step());
            assert!(pair.now.ns_since(begin) < SECOND, "{reads} READs wait");
        }
    }
}

/// A request that is lost together with its probes is sent again although the peer READs all the
/// time, more data than may be sent at once.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn lost_requests_beside_read_data() {
    for losses in [1, 4, 12] {
        let mut pair = reading(4);
        pair.post(1, wr(SendOp::Write, 7, 100), 0);
        let (begin, mut left) = (pair.now, losses);
        while pair.hosts[1].outstanding() > 0 {
            read(&mut pair, 4);
            if pair.rng.u8(0..8) == 0 {
                forge_for(1, &mut pair, true);
            }
            pair.transmit(1);
            if left > 0 {
                let lost = pair.drop_chosen(|packet| packet.opcode().is_write());
                left -= lost.min(left);
            }
            assert!(pair.step());
            let waited = pair.now.ns_since(begin);
            assert!(
                waited < 2 * SECOND,
                "{losses} losses: {waited} ns, {left} left"
            );
        }
        assert_eq!(left, 0);
        assert_eq!(pair.statuses(1), [(7, WcStatus::Success)]);
    }
}
