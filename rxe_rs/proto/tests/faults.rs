// SPDX-License-Identifier: GPL-2.0
//! Faults other than on the wire: draining queues, failing requests, hostile peers.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Msn, Mtu, Psn, Qpn, RKey};
use rxe_proto::sim::{seeds, set_remote, set_rkey, wr, Link, Pair, RecvBuf, RKEY};
use rxe_proto::wire::aeth::NakCode;
use rxe_proto::wire::{Aeth, Bth, Headers, Opcode, Operation, Syndrome};

const SECOND: u64 = 1_000_000_000;

/// SQD completes started requests within a round trip and without a retry.
#[test]
fn drain_needs_no_timeout() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    for id in 0..3 {
        pair.post(0, wr(SendOp::Write, id, 5000), 0);
    }
    // The first packets are sent, then the QP enters SQD with requests still waiting.
    pair.transmit_packets(0, 6);
    let host = &mut pair.hosts[0];
    pair.qps[0].set_state(State::Sqd, host);
    pair.run(SECOND);
    assert!(pair.qps[0].is_drained());
    assert!(pair.qps[0].take_events().sq_drained);
    assert_eq!(
        pair.statuses(0),
        [(0, WcStatus::Success), (1, WcStatus::Success)]
    );
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
    // And again, after RTS.
    let host = &mut pair.hosts[0];
    pair.qps[0].set_state(State::Rts, host);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0).len(), 3);
    let host = &mut pair.hosts[0];
    pair.qps[0].set_state(State::Sqd, host);
    assert!(pair.qps[0].take_events().sq_drained);
}

/// SQD after the last packet of a request was sent without the AckReq bit.
#[test]
fn drain_between_messages() {
    for packets in 1..16 {
        let mut pair = Pair::small(Service::Rc, packets, Link::PERFECT);
        for id in 0..3 {
            pair.post(0, wr(SendOp::Write, id, 5000), 0);
        }
        pair.transmit_packets(0, packets as usize);
        let host = &mut pair.hosts[0];
        pair.qps[0].set_state(State::Sqd, host);
        pair.run(10 * SECOND);
        assert!(
            pair.qps[0].is_drained(),
            "after {packets} packets: {:?}",
            pair.statuses(0)
        );
        assert_eq!(pair.qps[0].state(), State::Sqd, "after {packets} packets");
        assert_eq!(
            pair.hosts[0].counts[Count::Timeout],
            0,
            "after {packets} packets"
        );
    }
}

/// A malformed request fails in order; earlier requests complete successfully and soon.
#[test]
fn invalid_request_after_good_ones() {
    for good in 0..5u64 {
        let mut pair = Pair::small(Service::Rc, good, Link::PERFECT);
        for id in 0..good {
            pair.post(0, wr(SendOp::Write, id, 3000), 0);
        }
        pair.post_invalid(0, wr(SendOp::Send, good, 10), WcStatus::LocQpOpErr);
        pair.post(0, wr(SendOp::Write, good + 1, 10), 0);
        pair.run(10 * SECOND);
        let mut expected: Vec<_> = (0..good).map(|id| (id, WcStatus::Success)).collect();
        expected.push((good, WcStatus::LocQpOpErr));
        expected.push((good + 1, WcStatus::WrFlushErr));
        assert_eq!(pair.statuses(0), expected);
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{good} good ones");
    }
}

/// The same for a local buffer that fails the access check when it is read.
#[test]
fn unusable_buffer_after_good_ones() {
    for good in 0..5u64 {
        let mut pair = Pair::small(Service::Rc, good, Link::PERFECT);
        for id in 0..good {
            pair.post(0, wr(SendOp::Write, id, 3000), 0);
        }
        pair.hosts[0].bad_local.push(good as u32);
        pair.post(0, wr(SendOp::Write, good, 10), 0);
        pair.post(0, wr(SendOp::Write, good + 1, 10), 0);
        pair.run(10 * SECOND);
        let mut expected: Vec<_> = (0..good).map(|id| (id, WcStatus::Success)).collect();
        expected.push((good, WcStatus::LocProtErr));
        expected.push((good + 1, WcStatus::WrFlushErr));
        assert_eq!(pair.statuses(0), expected);
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{good} good ones");
    }
}

/// Random traffic with one thing going wrong somewhere: every request completes exactly once and
/// in order, successes first, then one error, then the flushed ones.
#[test]
fn one_failure_in_random_traffic() {
    for seed in seeds(1500) {
        let link = Link {
            loss: 0.01,
            duplicate: 0.01,
            reorder: 0.02,
            busy: 0.05,
            mark: 0.1,
            ..Link::PERFECT
        };
        let link = if seed % 2 == 0 { Link::PERFECT } else { link };
        let mut pair = Pair::small(Service::Rc, seed, link);
        let count = pair.rng.u64(1..40);
        let bad = pair.rng.u64(0..count);
        let kind = pair.rng.u8(0..5);
        for id in 0..count {
            let op = [
                SendOp::Send,
                SendOp::Write,
                SendOp::WriteImm,
                SendOp::Read,
                SendOp::FetchAdd,
            ][pair.rng.usize(0..5)];
            let len = if op == SendOp::FetchAdd {
                8
            } else {
                pair.rng.u32(0..6000)
            };
            let mut request = wr(op, id, len);
            request.flags.fence = pair.rng.u8(0..4) == 0;
            request.flags.signaled = pair.rng.bool();
            if id == bad {
                request.length = request.length.max(8);
                if kind > 1 && op == SendOp::Send {
                    request.body = wr(SendOp::Write, id, len).body;
                }
                match kind {
                    0 => {
                        pair.post_invalid(0, request, WcStatus::LocQpOpErr);
                        continue;
                    }
                    1 => pair.hosts[0].bad_local.push(id as u32),
                    2 => set_rkey(&mut request, RKey(0xbad)),
                    3 => set_remote(&mut request, u64::MAX - 7),
                    _ => set_remote(&mut request, 1 << 16),
                }
            }
            pair.post(0, request, 0);
        }
        for id in 0..count + 2 {
            let buf = RecvBuf {
                wr_id: id,
                at: 0x4000,
                len: 8192,
            };
            pair.hosts[1].receives.push_back(buf);
        }
        pair.run(100 * SECOND);
        let done = pair.statuses(0);
        let ids: Vec<u64> = done.iter().map(|d| d.0).collect();
        assert!(
            ids.windows(2).all(|w| w[0] < w[1]),
            "seed {seed}: out of order {ids:?}"
        );
        let failed = pair.qps[0].state() == State::Err;
        let errors: Vec<_> = done
            .iter()
            .filter(|d| !matches!(d.1, WcStatus::Success | WcStatus::WrFlushErr))
            .collect();
        if failed {
            assert_eq!(
                errors.len(),
                1,
                "seed {seed} kind {kind} bad {bad}: {done:?}"
            );
            // The NAK is sent once; if it is lost, the oldest request exceeds its retries.
            let lost = link.loss > 0.0 && errors[0].1 == WcStatus::RetryExcErr;
            let at = errors[0].0;
            assert!(
                at == bad || lost && at < bad,
                "seed {seed} kind {kind}: {done:?}"
            );
            let after: Vec<_> = done.iter().filter(|d| d.0 > at).collect();
            assert_eq!(after.len() as u64, count - at - 1, "seed {seed}");
            assert!(
                after.iter().all(|d| d.1 == WcStatus::WrFlushErr),
                "seed {seed}"
            );
            let expected = match kind {
                0 => WcStatus::LocQpOpErr,
                1 => WcStatus::LocProtErr,
                _ => WcStatus::RemAccessErr,
            };
            assert!(
                lost || errors[0].1 == expected,
                "seed {seed} kind {kind}: {:?}",
                errors[0]
            );
        } else {
            // A request of zero length accesses no memory, so it cannot fail.
            panic!("seed {seed} kind {kind}: the bad request {bad} went through: {done:?}");
        }
        assert_eq!(pair.hosts[0].outstanding(), 0, "seed {seed}");
    }
}

/// An acknowledgement for packets never sent is ignored with any syndrome.
#[test]
fn acknowledgement_of_packets_never_sent() {
    for syndrome in 0..=255u8 {
        for ahead in [0u32, 1, 5, 1000, 0x7f_ffff] {
            let mut pair = Pair::small(
                Service::Rc,
                5,
                Link {
                    loss: 1.0,
                    ..Link::PERFECT
                },
            );
            pair.post(0, wr(SendOp::Send, 1, 10), 0);
            pair.transmit(0);
            let top = pair.qps[0].sq_psn();
            let bth = Bth::new(
                Opcode::RC_ACKNOWLEDGE,
                Qpn::new(0x11),
                top.wrapping_add(ahead),
            );
            let aeth = Aeth::new(Syndrome::decode(syndrome), Default::default());
            pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
            assert!(pair.hosts[0].sent.is_empty(), "{syndrome:#x} +{ahead}");
            assert_eq!(pair.qps[0].state(), State::Rts);
        }
    }
}

/// A message has all of its PSNs when its first packet is sent. Only those of packets that have
/// been sent can be acknowledged.
#[test]
fn acknowledgement_of_the_rest_of_a_message() {
    const PACKETS: u32 = 400;
    for syndrome in [
        Syndrome::Ack { credits: 0x1f },
        Syndrome::RnrNak { timer: 1 },
        Syndrome::Nak(NakCode::PsnSequence),
    ] {
        let lossy = Link {
            loss: 1.0,
            ..Link::PERFECT
        };
        let mut pair = Pair::new(5, lossy, Mtu::Mtu1024, 1 << 20);
        let first = pair.qps[0].sq_psn();
        pair.post(0, wr(SendOp::Send, 1, PACKETS * 1024), 0);
        pair.transmit(0);
        let sent = pair.packets_sent as u32;
        assert!((1..PACKETS).contains(&sent), "{sent} packets");
        let counted = |pair: &Pair| pair.hosts[0].counts[Count::UnmatchedResponse];
        for (n, ahead) in [sent, PACKETS - 1].into_iter().enumerate() {
            let msn = match syndrome {
                Syndrome::Ack { .. } if ahead == PACKETS - 1 => 1,
                _ => 0,
            };
            let bth = Bth::new(
                Opcode::RC_ACKNOWLEDGE,
                Qpn::new(0x11),
                first.wrapping_add(ahead),
            );
            let aeth = Aeth::new(syndrome, Msn::new(msn));
            pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
            assert_eq!(counted(&pair), n as u64 + 1, "{syndrome:?} +{ahead}");
        }
        assert!(pair.hosts[0].sent.is_empty(), "{syndrome:?}");
        assert_eq!(pair.qps[0].state(), State::Rts);
    }
}

/// A peer that sends arbitrary packets with PSNs near the expected ones: no panic, no write outside
/// of the granted range, and local requests complete or fail but never hang.
#[test]
fn hostile_peer() {
    for seed in seeds(3000) {
        let mut pair = Pair::small(Service::Rc, seed, Link::PERFECT);
        // Only the upper half is granted to the peer; the lower half is private.
        pair.hosts[0].grant_from = 0x8000;
        pair.hosts[0].memory.borrow_mut()[..0x8000].fill(0x5a);
        for id in 0..4 {
            let at = 0x8000 + 0x1000 * id as usize;
            pair.hosts[0].receives.push_back(RecvBuf {
                wr_id: id,
                at,
                len: 2048,
            });
        }
        for id in 0..4 {
            let op =
                [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd][pair.rng.usize(0..4)];
            let len = if op == SendOp::FetchAdd {
                8
            } else {
                pair.rng.u32(0..4000)
            };
            let mut request = wr(op, id, len);
            set_remote(&mut request, 0);
            pair.post(0, request, 0xc000);
        }
        pair.transmit_packets(0, 5);
        for _ in 0..60 {
            let operation = *pair.rng.choice(Operation::ALL).unwrap();
            let opcode = Opcode::rc(operation);
            let near = if opcode.is_response() {
                let sent = pair.qps[0].sq_psn();
                sent.wrapping_add(pair.rng.u32(0..8).wrapping_sub(6))
            } else {
                pair.qps[0]
                    .rq_psn()
                    .wrapping_add(pair.rng.u32(0..4) / 2)
                    .wrapping_add(if pair.rng.u8(0..5) == 0 {
                        0u32.wrapping_sub(pair.rng.u32(0..6))
                    } else {
                        0
                    })
            };
            let mut bth = Bth::new(opcode, Qpn::new(0x11), Psn::new(near.get()));
            bth.ack_req = pair.rng.bool();
            let len = match pair.rng.u8(0..4) {
                0 => 0,
                1 => pair.rng.usize(0..1500),
                _ => 1024,
            };
            bth.pad = Bth::pad_for(len);
            let rkey = if pair.rng.u8(0..6) == 0 {
                RKey(pair.rng.u32(..))
            } else {
                RKEY
            };
            let va = match pair.rng.u8(0..4) {
                0 => pair.rng.u64(..),
                1 => pair.rng.u64(0..0x10000),
                2 => u64::MAX - pair.rng.u64(0..64),
                _ => 0x8000 + 8 * pair.rng.u64(0..64),
            };
            let dma_len = match pair.rng.u8(0..4) {
                0 => pair.rng.u32(..),
                1 => len as u32,
                _ => pair.rng.u32(0..5000),
            };
            let set = opcode.headers();
            use rxe_proto::wire::HeaderSet as H;
            let mut headers = Headers::new(bth);
            if set.contains(H::FETH) {
                headers = headers.feth(rxe_proto::wire::feth::Selectivity::Range, 1);
            }
            if set.contains(H::RETH) {
                headers = headers.reth(va, rkey, dma_len);
            }
            if set.contains(H::ATOMIC_ETH) {
                headers = headers.atomic_eth(va, rkey, 1, 1);
            }
            if set.contains(H::AETH) {
                let syndrome = match pair.rng.u8(0..4) {
                    0 => Syndrome::decode(pair.rng.u8(..)),
                    1 => Syndrome::RnrNak { timer: 1 },
                    _ => Syndrome::ACK,
                };
                headers = headers.aeth(Aeth::new(syndrome, Default::default()));
            }
            if set.contains(H::ATOMIC_ACK_ETH) {
                headers = headers.atomic_ack(pair.rng.u64(..));
            }
            if set.contains(H::IMM) {
                headers = headers.imm([1, 2, 3, 4]);
            }
            if set.contains(H::IETH) {
                headers = headers.ieth(rkey);
            }
            let payload = vec![0xee; len];
            pair.inject(0, headers, &payload);
            if pair.rng.bool() {
                pair.transmit_packets(0, 3);
            }
            if pair.rng.u8(0..8) == 0 {
                pair.now += 20_000_000;
                let (now, host) = (pair.now, &mut pair.hosts[0]);
                pair.qps[0].handle_timeout(now, host);
            }
        }
        let memory = pair.hosts[0].memory.borrow();
        assert!(
            memory[..0x8000].iter().all(|byte| *byte == 0x5a),
            "seed {seed}: wrote outside"
        );
        drop(memory);
        pair.link.loss = 1.0;
        pair.run(1000 * SECOND);
        let ids: Vec<u64> = pair.hosts[0].sent.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3], "seed {seed}: {:?}", pair.statuses(0));
    }
}

/// A peer that keeps retransmitting old READs must not crowd out new requests.
#[test]
fn replays_do_not_crowd_out_new_requests() {
    let mut pair = Pair::small(Service::Rc, 9, Link::PERFECT);
    let first = pair.qps[0].rq_psn();
    let read = |psn: Psn| {
        let bth = Bth::new(Opcode::rc(Operation::ReadRequest), Qpn::new(0x11), psn);
        Headers::new(bth).reth(0, RKEY, 64)
    };
    pair.inject(0, read(first), &[]);
    for _ in 0..500 {
        pair.inject(0, read(first), &[]);
    }
    pair.inject(0, read(first.next()), &[]);
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.qps[0].rq_psn(), first.wrapping_add(2));
}
