// SPDX-License-Identifier: GPL-2.0
//! Merged packets between queue pairs of one kernel: what is sent, and what happens if they are
//! lost.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::{Count, SendQueue};
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::State;
use rxe_proto::ids::{Mtu, PKey, Psn, Qpn, RKey};
use rxe_proto::sim::{seeds, set_remote, wr, Link, Pair, RecvBuf};
use rxe_proto::wire::bth::Bth;
use rxe_proto::wire::opcode::{Opcode, Operation};
use rxe_proto::wire::repr::Headers;

const MEMORY: usize = 1 << 21;
/// Where the buffers of the two sides begin.
const HALF: usize = MEMORY / 2;

fn same_host(seed: u64, link: Link) -> Pair {
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
    pair.same_host = [true; 2];
    pair
}

/// Transfers one message from side 0 by `op` and checks the data; the other messages must have
/// completed.
fn transfer(pair: &mut Pair, id: u64, op: SendOp, len: u32) {
    transfer_with(pair, id, op, len, |_| {});
}

/// As [`transfer`], with something that happens after the request has been posted.
fn transfer_with(pair: &mut Pair, id: u64, op: SendOp, len: u32, happens: impl FnOnce(&mut Pair)) {
    let (from, to) = match op {
        SendOp::Read => (1, 0),
        _ => (0, 1),
    };
    let (at, end) = (HALF, HALF + len as usize);
    let data: Vec<u8> = (0..len).map(|_| pair.rng.u8(..)).collect();
    pair.hosts[from].memory.get_mut()[at..end].copy_from_slice(&data);
    pair.hosts[to].memory.get_mut()[at..end].fill(0);
    if op == SendOp::Send {
        let wr_id = id;
        pair.hosts[1].receives.push_back(RecvBuf { wr_id, at, len });
    }
    let mut wr = wr(op, id, len);
    set_remote(&mut wr, at as u64);
    pair.post(0, wr, at);
    happens(pair);
    pair.run(20_000_000_000);
    let statuses = pair.statuses(0);
    assert_eq!(statuses.last(), Some(&(id, WcStatus::Success)), "{op:?}");
    assert!(
        pair.hosts[to].memory.get_mut()[at..end] == data[..],
        "{op:?} of {len} bytes"
    );
}

const OPS: [SendOp; 3] = [SendOp::Write, SendOp::Read, SendOp::Send];

/// Two small messages show both sides that packets need no ICRC.
fn confirm(pair: &mut Pair) {
    for id in 0..4 {
        transfer(pair, 1_000_000 + id, SendOp::Write, 64);
    }
}

#[test]
fn message_is_merged() {
    for seed in seeds(10) {
        let mut pair = same_host(seed, Link::PERFECT);
        confirm(&mut pair);
        for (id, op) in OPS.into_iter().cycle().take(30).enumerate() {
            let len = pair.rng.u32(2000..60_000);
            let (before, merged) = (pair.packets_sent, pair.merged);
            transfer(&mut pair, id as u64, op, len);
            assert_eq!(pair.merged - merged, 1, "seed {seed}: {op:?} of {len}");
            // The message, and the ACK or the request.
            assert_eq!(pair.packets_sent - before, 2, "seed {seed}: {op:?}");
        }
    }
}

#[test]
fn long_message_is_merged_in_parts() {
    for seed in seeds(10) {
        let mut pair = same_host(seed, Link::PERFECT);
        confirm(&mut pair);
        for (id, op) in OPS.into_iter().enumerate() {
            let before = pair.packets_sent;
            transfer(&mut pair, id as u64, op, 900_000);
            // 15 merged packets of 60 KiB each, and what acknowledges or requests them.
            assert!(pair.packets_sent - before < 60, "seed {seed}: {op:?}");
        }
    }
}

/// Messages of one packet, and packets that have an ICRC.
#[test]
fn other_packets_are_not_merged() {
    let mut pair = same_host(1, Link::PERFECT);
    confirm(&mut pair);
    for (id, op) in OPS.into_iter().cycle().take(30).enumerate() {
        let len = pair.rng.u32(0..=1024);
        transfer(&mut pair, id as u64, op, len);
    }
    assert_eq!(pair.merged, 0);
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    for (id, op) in OPS.into_iter().cycle().take(30).enumerate() {
        transfer(&mut pair, id as u64, op, 60_000);
    }
    assert_eq!(pair.merged, 0);
}

/// As [`same_host`], with packets by reference of up to 64 KiB.
fn by_reference(seed: u64, link: Link) -> Pair {
    let mut pair = same_host(seed, link);
    pair.max_by_reference = 1 << 16;
    pair
}

/// No packet that could be merged has a payload.
#[test]
fn payload_is_by_reference() {
    for seed in seeds(10) {
        let mut pair = by_reference(seed, Link::PERFECT);
        confirm(&mut pair);
        for (id, op) in OPS.into_iter().cycle().take(30).enumerate() {
            let len = pair.rng.u32(20_000..300_000);
            let before = pair.bytes_sent;
            transfer(&mut pair, id as u64, op, len);
            // The last packet of a window or a message may be a single one, with its payload.
            let sent = pair.bytes_sent - before;
            assert!(
                sent < u64::from(len) / 4,
                "seed {seed}: {op:?} of {len}: {sent}"
            );
        }
        for host in &pair.hosts {
            assert_eq!(host.counts[Count::ReferenceGone], 0);
        }
    }
}

/// A message of 64 KiB, which a merged packet cannot hold with its headers, takes one packet.
#[test]
fn reference_to_64_kib() {
    let mut pair = by_reference(1, Link::PERFECT);
    confirm(&mut pair);
    for (id, op) in OPS.into_iter().enumerate() {
        let before = pair.packets_sent;
        transfer(&mut pair, id as u64, op, 1 << 16);
        assert_eq!(pair.packets_sent - before, 2, "{op:?}");
    }
}

/// A payload that can no longer be copied is as good as lost: it is sent in packets then.
#[test]
fn withdrawn_reference() {
    for seed in seeds(20) {
        let mut pair = by_reference(seed, Link::PERFECT);
        confirm(&mut pair);
        for (id, op) in OPS.into_iter().enumerate() {
            let len = pair.rng.u32(2000..200_000);
            transfer_with(&mut pair, id as u64, op, len, |pair| {
                pair.transmit(0);
                if op == SendOp::Read {
                    // The request arrives, and the response is sent.
                    pair.step();
                    pair.transmit(1);
                }
                pair.withdraw_offers(usize::from(op == SendOp::Read));
            });
            // Packets are merged again when as many as the pause lasts have been sent.
            for id in 0..100 {
                transfer(&mut pair, 1000 + id, SendOp::Write, 1024);
            }
        }
        for host in &pair.hosts {
            assert!(host.counts[Count::ReferenceGone] > 0, "seed {seed}");
        }
    }
}

/// Requests without an offer complete before one that refers to its payload has arrived.
#[test]
fn reference_behind_small_requests() {
    for small in 1..5 {
        let mut pair = by_reference(1, Link::PERFECT);
        confirm(&mut pair);
        for id in 0..small {
            pair.post(0, wr(SendOp::Write, id, 64), 0);
            pair.transmit(0);
        }
        // They arrive, and their ACK leaves before the next packet does.
        pair.step();
        pair.transmit(1);
        transfer(&mut pair, 99, SendOp::Write, 50_000);
        assert_eq!(pair.merged, 1);
        assert_eq!(pair.hosts[1].counts[Count::ReferenceGone], 0, "{small}");
    }
}

/// A receiver that is not ready has the requester go back to a request that was not offered,
/// because there were too many before it, while later ones were.
#[test]
fn references_behind_a_receiver_not_ready() {
    const LEN: u32 = 2048;
    const COUNT: u64 = 200;
    for seed in seeds(20) {
        let link = Link {
            packet_ns: 1000,
            ..Link::PERFECT
        };
        let mut pair = by_reference(seed, link);
        confirm(&mut pair);
        let ready = pair.rng.u64(0..COUNT);
        let post_receive = |pair: &mut Pair, wr_id| {
            let at = HALF;
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id,
                at,
                len: LEN,
            });
        };
        for id in 0..ready {
            post_receive(&mut pair, id);
        }
        for id in 0..COUNT {
            pair.post(0, wr(SendOp::Send, id, LEN), 0);
        }
        pair.run(1_000_000);
        for id in ready..COUNT {
            post_receive(&mut pair, id);
            if pair.rng.u8(0..8) == 0 {
                pair.run(2_000_000);
            }
        }
        pair.run(20_000_000_000);
        assert_eq!(pair.hosts[0].outstanding(), 0, "seed {seed}");
        assert!(pair.hosts[1].counts[Count::RnrNakSent] > 0, "seed {seed}");
        assert_eq!(pair.hosts[1].counts[Count::ReferenceGone], 0, "seed {seed}");
        let (merged, bytes) = (pair.merged, pair.bytes_sent);
        for id in 0..64 {
            transfer(&mut pair, 1000 + id, SendOp::Write, 50_000);
        }
        assert_eq!(pair.merged - merged, 64);
        assert!(
            pair.bytes_sent - bytes < 64 * 200,
            "seed {seed}: not by reference"
        );
    }
}

/// Requests that cannot be offered are sent with their payload, and their errors are those of the
/// sender.
#[test]
fn request_that_is_not_offered() {
    let mut pair = by_reference(1, Link::PERFECT);
    confirm(&mut pair);
    for host in &mut pair.hosts {
        host.offers_nothing = true;
    }
    for (id, op) in OPS.into_iter().enumerate() {
        let before = pair.bytes_sent;
        transfer(&mut pair, id as u64, op, 50_000);
        assert!(pair.bytes_sent - before > 50_000, "{op:?} by reference");
    }
    pair.hosts[0].offers_nothing = false;
    let index = pair.hosts[0].sends_posted();
    pair.hosts[0].bad_local.push(index);
    let mut wr = wr(SendOp::Write, 77, 50_000);
    set_remote(&mut wr, HALF as u64);
    pair.post(0, wr, HALF);
    pair.run(20_000_000_000);
    let statuses = pair.statuses(0);
    assert_eq!(statuses.last(), Some(&(77, WcStatus::LocProtErr)));
    assert_eq!(pair.hosts[1].counts[Count::ReferenceGone], 0);
}

/// Transfers over a path that loses, repeats and reorders packets, between pairs that `pair_of`
/// makes.
fn transfer_over_lossy_path(pair_of: fn(u64, Link) -> Pair) {
    for seed in seeds(40) {
        let link = Link {
            loss: 0.02,
            duplicate: 0.02,
            reorder: 0.02,
            corrupt: 0.01,
            ..Link::PERFECT
        };
        let mut pair = pair_of(seed, link);
        for (id, op) in OPS.into_iter().cycle().take(60).enumerate() {
            let len = pair.rng.u32(0..200_000);
            transfer(&mut pair, id as u64, op, len);
        }
        assert!(pair.merged > 0, "seed {seed}");
    }
}

#[test]
fn lossy_path() {
    transfer_over_lossy_path(same_host);
}

#[test]
fn lossy_path_by_reference() {
    transfer_over_lossy_path(by_reference);
}

/// A READ is not influenced by a request behind it that has a fence.
#[test]
fn fenced_request_does_not_change_what_is_read() {
    for seed in seeds(20) {
        let mut pair = by_reference(seed, Link::PERFECT);
        confirm(&mut pair);
        let len = pair.rng.u32(2000..200_000);
        let (read_at, write_at) = (HALF, 0);
        let end = HALF + len as usize;
        pair.hosts[0].memory.get_mut()[write_at..len as usize].fill(2);
        pair.hosts[1].memory.get_mut()[HALF..end].fill(1);
        let mut read = wr(SendOp::Read, 1, len);
        set_remote(&mut read, HALF as u64);
        let mut write = wr(SendOp::Write, 2, len);
        set_remote(&mut write, HALF as u64);
        write.flags.fence = true;
        pair.post(0, read, read_at);
        pair.post(0, write, write_at);
        pair.run(20_000_000_000);
        assert!(pair.merged > 0);
        let all = |side: &[u8], value| side[HALF..end].iter().all(|byte| *byte == value);
        assert!(all(pair.hosts[0].memory.get_mut(), 1), "seed {seed}");
        assert!(all(pair.hosts[1].memory.get_mut(), 2), "seed {seed}");
    }
}

/// Requests that the responder executed, or refused, before others have their results.
#[test]
fn read_before_refused_request() {
    for seed in seeds(20) {
        for steps in [0, 1, 2] {
            let mut pair = by_reference(seed, Link::PERFECT);
            confirm(&mut pair);
            let mut read = wr(SendOp::Read, 1, 50_000);
            set_remote(&mut read, HALF as u64);
            pair.post(0, read, HALF);
            for _ in 0..steps {
                pair.step();
            }
            let mut write = wr(SendOp::Write, 2, 50_000);
            set_remote(&mut write, MEMORY as u64);
            pair.post(0, write, HALF);
            pair.run(20_000_000_000);
            let expected = [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)];
            assert!(pair.statuses(0).ends_with(&expected), "seed {seed}");
        }
    }
}

/// On-demand memory: a merged packet is deferred whole.
fn page_faults_between(pair_of: fn(u64, Link) -> Pair) {
    let (mut merged, mut deferred) = (0, 0);
    for seed in seeds(20) {
        let mut pair = pair_of(seed, Link::PERFECT);
        pair.evict = 1.0;
        for (id, op) in OPS.into_iter().cycle().take(60).enumerate() {
            let len = pair.rng.u32(0..100_000);
            transfer(&mut pair, id as u64, op, len);
        }
        merged += pair.merged;
        deferred += pair.deferred_packets;
    }
    assert!(merged > 0 && deferred > 0);
}

#[test]
fn page_faults() {
    page_faults_between(same_host);
}

#[test]
fn page_faults_by_reference() {
    page_faults_between(by_reference);
}

/// A device on the path carries packets of the path MTU only: merging is tried ever more rarely.
#[test]
fn path_that_drops_merged_packets() {
    for (seed, op) in seeds(9).zip(OPS.into_iter().cycle()) {
        let mut pair = same_host(seed, Link::PERFECT);
        pair.drops_merged = true;
        for id in 0..2000 {
            transfer(&mut pair, id, op, 20_000);
        }
        // 20 packets each: 64, 128, … 8192 packets between two attempts.
        assert!(
            (5..=10).contains(&pair.merged),
            "seed {seed}: {}",
            pair.merged
        );
        pair.drops_merged = false;
        let before = pair.merged;
        for id in 2000..6000 {
            transfer(&mut pair, id, op, 20_000);
        }
        assert!(pair.merged - before > 500, "seed {seed}: merged again");
    }
}

/// Merged packets wait for the window as others do.
#[test]
fn window_limits_merged_packets() {
    let mut pair = same_host(3, Link::PERFECT);
    confirm(&mut pair);
    let mut wr = wr(SendOp::Write, 0, 1 << 20);
    set_remote(&mut wr, 0);
    pair.post(0, wr, 0);
    while pair.hosts[0].sent.len() < 5 && pair.step() {
        assert!(pair.qps[0].in_flight() <= pair.qps[0].window());
    }
    assert!(pair.merged > 0);
}

/// The two sides would count the PSNs of a merged packet differently: it is an invalid request, as
/// the packets that it stands for would be.
#[test]
fn path_mtus_that_differ() {
    let mtus = [Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048];
    for (one, other) in mtus.into_iter().flat_map(|a| mtus.map(|b| (a, b))) {
        for len in [600, 1000, 1500, 3000, 4096] {
            let mut pair = same_host(7, Link::PERFECT);
            pair.qps[0].attrs.mtu = one;
            pair.qps[1].attrs.mtu = other;
            confirm(&mut pair);
            let mut wr = wr(SendOp::Write, 1, len);
            set_remote(&mut wr, HALF as u64);
            pair.post(0, wr, 0);
            pair.run(20_000_000_000);
            // What is one packet for both sides passes.
            let passes = one == other || len <= one.bytes().min(other.bytes());
            let status = match passes {
                true => WcStatus::Success,
                false => WcStatus::RemInvReqErr,
            };
            assert_eq!(
                pair.statuses(0).last(),
                Some(&(1, status)),
                "{one:?} {other:?} {len}"
            );
        }
    }
}

/// A packet longer than the path MTU that does not come from this kernel is refused.
#[test]
fn no_merged_packet_from_elsewhere() {
    for tagged_before in [false, true] {
        let mut pair = Pair::new(5, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        pair.same_host = [tagged_before; 2];
        confirm(&mut pair);
        let psn: Psn = pair.qps[1].rq_psn();
        let bth = Bth {
            pkey: PKey::DEFAULT,
            ack_req: true,
            ..Bth::new(
                Opcode::rc(Operation::WriteOnly),
                Qpn::new(pair.qps[1].attrs.qpn.get()),
                psn,
            )
        };
        let before = pair.hosts[1].memory.get_mut().clone();
        let headers = Headers::new(bth).reth(0, RKey(0x1234), 2048);
        pair.inject(1, headers, &[7; 2048]);
        assert!(*pair.hosts[1].memory.get_mut() == before);
        assert_eq!(pair.qps[1].state(), State::Err, "an invalid request");
    }
}
