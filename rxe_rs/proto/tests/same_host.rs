// SPDX-License-Identifier: GPL-2.0
//! Packets without an ICRC between queue pairs of one kernel: where they are sent, and what happens
//! if the path changes.
#![cfg(feature = "sim")]

use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{seeds, set_remote, wr, Link, Pair, RecvBuf};

const MEMORY: usize = 1 << 20;
const LEN: u32 = 20_000;

/// Writes and reads `count` messages of [`LEN`] bytes in turn, and calls `between` after each.
fn transfer(pair: &mut Pair, count: usize, mut between: impl FnMut(&mut Pair, usize)) {
    for i in 0..count {
        let op = [SendOp::Write, SendOp::Read][i % 2];
        let (from, to) = match op {
            SendOp::Write => (0, 1),
            _ => (1, 0),
        };
        let at = 65_536 + i * LEN as usize;
        let data: Vec<u8> = (0..LEN).map(|_| pair.rng.u8(..)).collect();
        pair.hosts[from].memory.get_mut()[at..at + LEN as usize].copy_from_slice(&data);
        let mut wr = wr(op, i as u64, LEN);
        set_remote(&mut wr, at as u64);
        pair.post(0, wr, at);
        pair.run(20_000_000_000);
        assert_eq!(
            pair.statuses(0).last(),
            Some(&(i as u64, WcStatus::Success))
        );
        assert!(
            pair.hosts[to].memory.get_mut()[at..at + LEN as usize] == data[..],
            "request {i}"
        );
        between(pair, i);
    }
}

#[test]
fn icrc_is_omitted_in_one_kernel() {
    for seed in seeds(20) {
        let mut pair = Pair::new(seed, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        pair.same_host = [true; 2];
        transfer(&mut pair, 2, |_, _| {});
        let (sent, before) = (pair.packets_sent, pair.without_icrc);
        transfer(&mut pair, 10, |_, _| {});
        assert_eq!(
            pair.without_icrc - before,
            pair.packets_sent - sent,
            "seed {seed}"
        );
    }
}

#[test]
fn icrc_is_sent_if_tags_arrive_in_one_direction_only() {
    for (seed, side) in seeds(20).zip([0, 1].into_iter().cycle()) {
        let mut pair = Pair::new(seed, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        pair.same_host[side] = true;
        transfer(&mut pair, 10, |_, _| {});
        assert_eq!(pair.without_icrc, 0, "seed {seed}");
    }
}

/// The path may change while nobody sends, and neither side is told. What is lost is sent again
/// with an ICRC, for which one retry is enough.
#[test]
fn path_that_leaves_the_kernel() {
    for seed in seeds(50) {
        let mut pair = Pair::new(seed, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        pair.same_host = [true; 2];
        for qp in &mut pair.qps {
            qp.attrs.retry_cnt = 1;
        }
        let changes = pair.rng.usize(2..8);
        let direction = pair.rng.usize(0..3);
        let mut before = 0;
        transfer(&mut pair, 12, |pair, i| {
            if i == changes {
                assert!(pair.without_icrc > 0);
                let gone = [[true, false], [false, true], [false, false]];
                pair.same_host = gone[direction];
            } else if i == changes + 2 {
                before = pair.without_icrc;
            }
        });
        assert_eq!(pair.without_icrc, before, "seed {seed}");
    }
}

/// The same in the middle of messages, again and again.
#[test]
fn path_that_leaves_the_kernel_and_returns() {
    for seed in seeds(50) {
        let link = Link {
            loss: 0.01,
            duplicate: 0.01,
            reorder: 0.01,
            corrupt: 0.01,
            ..Link::PERFECT
        };
        let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
        for i in 0..20u64 {
            let mut wr = wr(SendOp::Write, i, LEN);
            set_remote(&mut wr, 1 << 16);
            pair.post(0, wr, 0);
        }
        let mut steps = 0u64;
        while pair.hosts[0].sent.len() < 20 && pair.step() {
            steps += 1;
            if steps % 50 == 0 {
                pair.same_host = [pair.rng.bool(), pair.rng.bool()];
            }
            assert!(steps < 1_000_000, "seed {seed} hangs");
        }
        let all = (0..20).map(|i| (i, WcStatus::Success));
        assert!(pair.statuses(0).into_iter().eq(all), "seed {seed}");
    }
}

/// Such a QP has no retries yet, and needs none.
#[test]
fn responder_in_rtr_omits_the_icrc() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.same_host = [true; 2];
    pair.qps[1].attrs.retry_cnt = 0;
    pair.qps[1].set_state(State::Rtr, &mut pair.hosts[1]);
    transfer(&mut pair, 10, |_, _| {});
    assert!(pair.without_icrc > 0);
    // From here on it may send requests, whose loss would be an error.
    pair.qps[1].attrs.retry_cnt = 0;
    pair.qps[1].set_state(State::Rts, &mut pair.hosts[1]);
    transfer(&mut pair, 2, |_, _| {});
    let before = pair.without_icrc;
    transfer(&mut pair, 10, |_, _| {});
    assert_eq!(pair.without_icrc, before);
}

/// The loss of a packet may be an error then.
#[test]
fn connections_without_a_retry_keep_the_icrc() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.same_host = [true; 2];
    pair.qps[0].attrs.retry_cnt = 0;
    transfer(&mut pair, 10, |_, _| {});
    assert_eq!(pair.without_icrc, 0);
}

/// Nothing repeats a lost packet of UC, and nothing tells its sender.
#[test]
fn unreliable_connections_keep_the_icrc() {
    let mut pair = Pair::of(Service::Uc, 1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.same_host = [true; 2];
    for i in 0..20u64 {
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: i,
            at: 0,
            len: LEN,
        });
        pair.post(0, wr(SendOp::Send, i, LEN), 0);
        pair.run(1_000_000);
    }
    assert_eq!(pair.statuses(0).len(), 20);
    assert_eq!(pair.without_icrc, 0);
}
