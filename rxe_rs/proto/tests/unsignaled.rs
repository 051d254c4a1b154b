// SPDX-License-Identifier: GPL-2.0
//! Requests that complete without a completion: few of them request an acknowledgement, nothing is
//! lost, and nobody waits for the space that they take.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::State;
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{run_together, seeds, set_imm, wr, Link, Pair, RecvBuf};

const MEMORY: usize = 1 << 16;
/// From one post to the next, in nanoseconds.
const PAUSE: u64 = 14_000;
const NEAR: Link = Link {
    packet_ns: 500,
    latency_ns: 2_000,
    ..Link::PERFECT
};

fn pair(seed: u64, link: Link, limit: u32) -> Pair {
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
    for host in &mut pair.hosts {
        host.unacknowledged_limit = limit;
    }
    // The first one measures the round trip.
    send(&mut pair, 0, true);
    wait(&mut pair, 100_000 + 4 * link.latency_ns);
    pair
}

/// Lets `ns` nanoseconds pass.
fn wait(pair: &mut Pair, ns: u64) {
    let until = pair.now + ns;
    run_together(core::slice::from_mut(pair), until, |_, _| {});
}

/// Posts a small message.
fn send(pair: &mut Pair, id: u32, signaled: bool) {
    let mut request = wr(SendOp::SendImm, id.into(), 16);
    set_imm(&mut request, id.to_be_bytes());
    request.flags.signaled = signaled;
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: id.into(),
        at: 4096,
        len: 16,
    });
    pair.post(0, request, 0);
}

/// All messages have arrived once and in order.
fn check(pair: &Pair, count: u32, what: &str) {
    let received = pair.hosts[1].received.iter();
    let found: Vec<_> = received.filter_map(|(wc, _)| wc.imm).collect();
    let wanted: Vec<_> = (0..=count).map(u32::to_be_bytes).collect();
    assert_eq!(found, wanted, "{what}");
    assert_eq!(pair.hosts[0].outstanding(), 0, "{what}");
    assert_eq!(pair.qps[0].state(), State::Rts, "{what}");
}

/// Messages and acknowledgements of a stream of single posts, of which each `every`th is signaled.
fn packets(link: Link, limit: u32, pause: u64, every: u32) -> u64 {
    let count = 640;
    let mut pair = pair(1, link, limit);
    let before = pair.packets_sent;
    for id in 1..=count {
        send(&mut pair, id, id % every == 0);
        wait(&mut pair, pause);
        let most = limit as usize + usize::try_from(link.latency_ns / pause).unwrap() * 2;
        assert!(pair.hosts[0].outstanding() <= most.max(1), "{id}");
    }
    wait(&mut pair, 10_000_000);
    check(&pair, count, "clean");
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
    assert_eq!(pair.hosts[0].sent.len() as u32, 1 + count / every);
    pair.packets_sent - before - u64::from(count)
}

#[test]
fn few_acknowledgements() {
    // At most one within 100 us, and one for each request that is signaled.
    let acks = packets(NEAR, 32, PAUSE, 100);
    assert!(
        (640 * PAUSE / 120_000..640 * PAUSE / 100_000 + 20).contains(&acks),
        "{acks}"
    );
    // The last one of the stream is not acknowledged before a probe.
    let mut pair = pair(1, NEAR, 32);
    send(&mut pair, 1, true);
    send(&mut pair, 2, false);
    wait(&mut pair, PAUSE);
    send(&mut pair, 3, false);
    wait(&mut pair, PAUSE);
    assert_eq!(pair.hosts[0].outstanding(), 1);
    wait(&mut pair, 1_000_000);
    check(&pair, 3, "probe");
}

/// Each request is acknowledged at once if it is signaled, or follows others late, if the queue has
/// little room, or if the peer is far away.
#[test]
fn acknowledged_at_once() {
    assert_eq!(packets(NEAR, 32, PAUSE, 1), 640);
    assert_eq!(packets(NEAR, 0, PAUSE, 100), 640);
    assert_eq!(packets(NEAR, 32, 200_000, 100), 640);
    let far = Link {
        latency_ns: 60_000,
        ..NEAR
    };
    assert_eq!(packets(far, 32, PAUSE, 100), 640);
}

/// With a limit of one request, each second one is acknowledged at once.
#[test]
fn short_queue_is_not_blocked() {
    let mut pair = pair(2, NEAR, 1);
    for id in 1..=100 {
        send(&mut pair, id, false);
        wait(&mut pair, PAUSE);
        assert!(pair.hosts[0].outstanding() <= 1, "{id}");
    }
}

/// Draining does not wait for a request that comes after the present one.
#[test]
fn drains() {
    let mut pair = pair(3, NEAR, 32);
    send(&mut pair, 1, true);
    wait(&mut pair, PAUSE);
    send(&mut pair, 2, false);
    wait(&mut pair, PAUSE);
    pair.qps[0].set_state(State::Sqd, &mut pair.hosts[0]);
    wait(&mut pair, 2_000_000);
    assert!(pair.qps[0].take_events().sq_drained);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn lossy_path() {
    let rough = Link {
        loss: 0.03,
        duplicate: 0.02,
        corrupt: 0.01,
        reorder: 0.02,
        busy: 0.02,
        ..NEAR
    };
    for seed in seeds(60) {
        let what = format!("seed {seed}");
        let count = 300;
        let mut pair = pair(seed, rough, 32);
        for id in 1..=count {
            let signaled = pair.rng.u8(0..16) == 0;
            send(&mut pair, id, signaled);
            let pause = pair.rng.u64(0..2 * PAUSE);
            wait(&mut pair, pause);
        }
        wait(&mut pair, 1_000_000_000);
        check(&pair, count, &what);
    }
}
