// SPDX-License-Identifier: GPL-2.0
//! Forged acknowledgements and READ data.

use super::*;

/// ACKs and NAKs of all kinds, for every PSN in flight, with MSNs that do not match it: nothing
/// completes, nothing fails, nothing is retransmitted, no timer is extended.
///
/// One pair of PSN and MSN is accepted for each PSN in flight. With 2^22 PSNs in flight, the
/// maximum, that is 24 + 48 - 22 = 50 bits together with the QP number.
#[test]
fn acknowledgements_need_the_msn() {
    let (count, guesses) = if cfg!(miri) { (3, 1) } else { (60, 40) };
    let (mut pair, first) = in_flight(1, SendOp::Write, count);
    let timer = pair.qps[0].poll_timeout();
    let syndromes = [
        Syndrome::ACK,
        Syndrome::RnrNak { timer: 0 },
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Nak(NakCode::RemoteOperational),
    ];
    let (mut acks, mut naks) = (0, 0);
    for ahead in 0..3 * count as u32 {
        let psn = first.wrapping_add(ahead);
        for syndrome in syndromes {
            let positive = syndrome == Syndrome::ACK;
            // These two are accepted for their PSN, see `exact_psn_is_accepted_with_any_msn`.
            if positive && ahead + 1 == 3 * count as u32 || !positive && ahead == 0 {
                continue;
            }
            let right = if positive { (ahead + 1) / 3 } else { ahead / 3 };
            let mut wrong = vec![right + 1, right + 2, right + 60, right + 0x80_0000];
            wrong.extend((0..guesses).map(|_| pair.rng.u32(0..PSNS)));
            wrong.extend(right.checked_sub(1));
            for msn in wrong {
                if Msn::new(msn) == Msn::new(right) {
                    continue;
                }
                pair.inject(0, ack(psn, syndrome, Msn::new(msn)), &[]);
                *(if positive { &mut acks } else { &mut naks }) += 1;
            }
        }
    }
    assert!(pair.hosts[0].sent.is_empty());
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.qps[0].in_flight(), 3 * count as u32);
    assert_eq!(pair.qps[0].poll_timeout(), timer);
    assert_eq!(counts(&pair, 0, Count::SuspectAck), acks);
    assert_eq!(counts(&pair, 0, Count::SuspectNak), naks);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0).len(), count as usize);
    assert_eq!(counts(&pair, 0, Count::Retry), 0);
    assert_eq!(counts(&pair, 0, Count::MsnResync), 0);
}

/// A NAK that is accepted while READ data is missing counts when the data has arrived, unless the
/// peer acknowledges the request that it refuses.
#[test]
fn acknowledgement_outweighs_a_refusal() {
    for acknowledged in [false, true] {
        let (mut pair, first) = in_flight(1, SendOp::Read, 1);
        pair.post(0, wr(SendOp::Write, 1, MTU), 0);
        pair.transmit(0);
        let psn = first.wrapping_add(3);
        let fatal = Syndrome::Nak(NakCode::RemoteAccess);
        pair.inject(0, ack(psn, fatal, Msn::new(1)), &[]);
        if acknowledged {
            pair.inject(0, ack(psn, Syndrome::ACK, Msn::new(2)), &[]);
        }
        assert_eq!(pair.qps[0].state(), State::Rts);
        pair.run(SECOND);
        let last = match acknowledged {
            true => WcStatus::Success,
            false => WcStatus::RemAccessErr,
        };
        assert_eq!(pair.statuses(0), [(0, WcStatus::Success), (1, last)]);
    }
}

/// Every MSN but one for one PSN.
#[test]
fn one_msn_is_accepted_per_psn() {
    let (mut pair, first) = in_flight(2, SendOp::Write, 8);
    let step = match seeds(1).end {
        _ if cfg!(miri) => 99_991,
        1 => 61,
        _ => 1,
    };
    for msn in (0..PSNS).step_by(step).filter(|msn| *msn != 4) {
        let fatal = Syndrome::Nak(NakCode::RemoteAccess);
        pair.inject(0, ack(first.wrapping_add(12), fatal, Msn::new(msn)), &[]);
    }
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert!(pair.hosts[0].sent.is_empty());
    let fatal = Syndrome::Nak(NakCode::RemoteAccess);
    pair.inject(0, ack(first.wrapping_add(12), fatal, Msn::new(4)), &[]);
    assert_eq!(pair.qps[0].state(), State::Err);
}

/// A peer with another MSN is not cut off: an ACK of exactly the newest packet and a NAK of exactly
/// the oldest one are accepted. That is one PSN each: 24 + 24 = 48 bits.
#[test]
fn exact_psn_is_accepted_with_any_msn() {
    let (mut pair, first) = in_flight(3, SendOp::Write, 8);
    let newest = first.wrapping_add(23);
    pair.inject(0, ack(newest, Syndrome::ACK, Msn::new(0x1234)), &[]);
    assert_eq!(pair.statuses(0).len(), 8);
    assert_eq!(counts(&pair, 0, Count::MsnResync), 1);
    let (mut pair, first) = in_flight(3, SendOp::Write, 8);
    let fatal = Syndrome::Nak(NakCode::RemoteAccess);
    pair.inject(0, ack(first, fatal, Msn::new(0x1234)), &[]);
    assert_eq!(pair.qps[0].state(), State::Err);
}

fn offset_msn(packet: &mut [u8]) {
    if Opcode::parse(packet[0]).is_some_and(|o| o.headers().contains(HeaderSet::AETH)) {
        packet[13] ^= 0x55;
    }
}

fn meaningless_msn(packet: &mut [u8]) {
    if Opcode::parse(packet[0]).is_some_and(|o| o.headers().contains(HeaderSet::AETH)) {
        packet[14] = packet[11].wrapping_mul(37);
    }
}

/// Peers whose MSN starts elsewhere, or is meaningless: traffic runs without a timeout, and with
/// loss after the first MSN resync.
#[test]
fn peers_with_other_msns() {
    for rewrite in [offset_msn as fn(&mut [u8]), meaningless_msn] {
        for seed in seeds(60) {
            let mut pair = Pair::small(Service::Rc, seed, Link::PERFECT);
            pair.rewrite = Some(rewrite);
            if seed % 2 == 1 {
                for id in 0..4 {
                    pair.post(0, wr(SendOp::Write, id, 5000), 0x4000);
                    pair.run(SECOND);
                }
                assert_eq!(pair.statuses(0).len(), 4);
                pair.hosts[0].sent.clear();
                pair.link.loss = 0.02;
            }
            for id in 0..60 {
                let op = [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd]
                    [pair.rng.usize(0..4)];
                let len = match op {
                    SendOp::FetchAdd => 8,
                    _ => pair.rng.u32(0..9000),
                };
                let buf = RecvBuf {
                    wr_id: id,
                    at: 0,
                    len: 9000,
                };
                if op == SendOp::Send {
                    pair.hosts[1].receives.push_back(buf);
                }
                pair.post(0, wr(op, id, len), 0x4000);
            }
            pair.run(100 * SECOND);
            let done = pair.statuses(0);
            assert_eq!(done.len(), 60, "seed {seed}");
            assert!(
                done.iter().all(|(_, status)| *status == WcStatus::Success),
                "seed {seed}: {done:?}"
            );
            assert!(counts(&pair, 0, Count::MsnResync) <= 3, "seed {seed}");
            if seed % 2 == 0 {
                assert_eq!(counts(&pair, 0, Count::Timeout), 0, "seed {seed}");
            }
        }
    }
}

/// A peer whose MSN starts elsewhere, and a path that loses packets of the very first window. After
/// a timeout the peer acknowledges more than the packets that a short window would hold, and it may
/// take more timeouts than there are retries until one of its acknowledgements can be accepted.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn losses_before_the_first_resync() {
    for seed in seeds(2000) {
        let link = Link {
            loss: 0.02,
            ..Link::PERFECT
        };
        let mut pair = Pair::small(Service::Rc, seed, link);
        pair.rewrite = Some(offset_msn);
        for id in 0..4 {
            pair.post(0, wr(SendOp::Write, id, 30_000), 0x4000);
        }
        pair.run(100 * SECOND);
        let done = [0, 1, 2, 3].map(|id| (id, WcStatus::Success));
        assert_eq!(pair.statuses(0), done, "seed {seed}");
    }
}

/// The peer is gone, and someone who knows the queue pair and a PSN in flight sends
/// acknowledgements with another MSN. The connection fails, a limited number of timeouts later than
/// without them.
#[test]
fn answers_with_other_msns_end() {
    for (forged, timeouts) in [(0, 8), (1, 9), (u32::MAX, 24)] {
        let (mut pair, first) = in_flight(3, SendOp::Write, 4);
        pair.link.loss = 1.0;
        pair.drop_in_flight();
        let credits = 31;
        let mut left = forged;
        while pair.statuses(0).is_empty() {
            if left > 0 {
                left -= 1;
                let other = ack(first, Syndrome::Ack { credits }, Msn::new(99));
                pair.inject(0, other, &[]);
            }
            assert!(pair.step());
        }
        assert_eq!(pair.statuses(0)[0], (0, WcStatus::RetryExcErr));
        let counted = counts(&pair, 0, Count::Timeout);
        assert_eq!(counted, timeouts, "forged: {forged}");
    }
}

/// Responses with data at any PSN but the expected one: no memory changes, nothing completes or
/// fails, and the retransmissions that they cause are bounded.
#[test]
fn read_data_needs_the_next_psn() {
    for op in [SendOp::Read, SendOp::Write] {
        let (mut pair, first) = in_flight(4, op, 40);
        pair.hosts[0].memory.borrow_mut().fill(0x5a);
        for psn in psns(&mut pair, first, 3000) {
            for opcode in data_responses() {
                // The packet right after the expected one implies a NAK.
                if psn == first.next() {
                    continue;
                }
                let len = length(opcode.operation());
                pair.inject(0, forged(0, opcode, psn, len), &vec![0xee; len as usize]);
            }
        }
        assert!(pair.hosts[0].sent.is_empty(), "{op:?}");
        assert_eq!(pair.qps[0].state(), State::Rts);
        assert!(pair.hosts[0]
            .memory
            .borrow()
            .iter()
            .all(|byte| *byte == 0x5a));
        assert_eq!(counts(&pair, 0, Count::Retry), 0, "{op:?}");
        pair.run(SECOND);
        assert_eq!(pair.statuses(0).len(), 40);
        assert_eq!(counts(&pair, 0, Count::Retry), 0, "{op:?}");
    }
}
