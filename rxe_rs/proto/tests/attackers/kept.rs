// SPDX-License-Identifier: GPL-2.0
//! Packets ahead of the expected PSN, which are kept (selective repeat).

use super::*;

/// A connection in which both sides know that the peer keeps packets, with nothing in flight. Side
/// 1 knows the token of side 0, and sends it with READ data.
fn keeping(seed: u64) -> Pair {
    let link = Link {
        loss: 0.05,
        ..Link::PERFECT
    };
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, 1 << 18);
    pair.gso_max_segs = 1;
    for id in 0..10 {
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: id,
            at: 0,
            len: 40 * MTU,
        });
        pair.post(0, wr(SendOp::Send, id, 40 * MTU), 0);
        pair.post(0, wr(SendOp::Read, id, 40 * MTU), 0);
    }
    pair.run(SECOND);
    assert_eq!(pair.hosts[0].sent.len(), 20);
    assert!(counts(&pair, 0, Count::Kept) > 0 && counts(&pair, 1, Count::Kept) > 0);
    pair.link = Link::PERFECT;
    pair.hosts[1].received.clear();
    pair.hosts[0].sent.clear();
    pair.hosts[0].memory.borrow_mut().fill(0x5a);
    pair.hosts[1].memory.borrow_mut().fill(0x5a);
    pair
}

/// The same with READ requests in flight, which get lost. Returns the first expected PSN.
fn keeping_and_reading(seed: u64) -> (Pair, Psn) {
    let mut pair = keeping(seed);
    let first = pair.qps[0].sq_psn();
    for id in 0..2 {
        pair.post(0, wr(SendOp::Read, id, 64 * MTU), 0);
    }
    pair.transmit(0);
    pair.drop_in_flight();
    (pair, first)
}

/// A packet to `side` with all reserved bits that an attacker may choose.
fn marked(side: usize, operation: Operation, psn: Psn, bits: u8) -> Headers {
    let mut bth = Bth::new(Opcode::rc(operation), Qpn::new(0x11 + side as u32), psn);
    bth.resv7 = bits;
    Headers::new(bth)
}

/// The values of the reserved bits.
const BITS: u64 = 128;

/// With each value of the reserved bits, a request at any PSN: only those with the token of the
/// peer are kept ahead of the expected one, and that is executed with this token or none. So the
/// number of pairs of a PSN and bits that are accepted is not greater than the number of values of
/// the bits: an attacker has to guess 24 + 24 bits as without selective repeat.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn requests_ahead_need_the_token() {
    let mut accepted = 0;
    for bits in 0..BITS as u8 {
        let mut pair = keeping(7);
        let (expected, kept) = (pair.qps[1].rq_psn(), pair.kept_packets);
        let genuine = bits & 0x3f == pair.qps[0].attrs.token;
        let buf = RecvBuf {
            wr_id: 1,
            at: 0,
            len: 4096,
        };
        pair.hosts[1].receives.push_back(buf);
        for ahead in (1..100).chain([1000, 1 << 20, PSNS / 2 - 1]) {
            let psn = expected.wrapping_add(ahead);
            let headers = marked(1, Operation::SendOnly, psn, bits);
            pair.inject(1, headers, &[0xee; 100]);
        }
        let kept = pair.kept_packets - kept;
        assert_eq!(kept > 0, genuine, "{bits:#x}");
        accepted += kept;
        // Nothing is executed before the expected packet arrives.
        assert!(pair.hosts[1].received.is_empty());
        assert!(pair.hosts[1].memory.borrow().iter().all(|b| *b == 0x5a));
        assert_eq!(pair.qps[1].rq_psn(), expected);
        if !genuine {
            // Nothing of it is executed later either.
            pair.post(0, wr(SendOp::Write, 1, 100 * MTU), 0);
            pair.run(SECOND);
            assert_eq!(pair.statuses(0), [(1, WcStatus::Success)], "{bits:#x}");
            assert!(pair.hosts[1].received.is_empty());
        }

        let mut pair = keeping(7);
        pair.hosts[1].receives.push_back(buf);
        let headers = marked(1, Operation::SendOnly, expected, bits);
        pair.inject(1, headers, &[0xee; 100]);
        let executed = pair.hosts[1].received.len() as u64;
        assert_eq!(
            executed,
            u64::from(genuine || bits & 0x3f == 0),
            "{bits:#x}"
        );
        accepted += executed;
    }
    assert!(accepted <= BITS, "{accepted}");
}

/// The same for READ data.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn responses_ahead_need_the_token() {
    let mut accepted = 0;
    let payload = [0xee; MTU as usize];
    for bits in 0..BITS as u8 {
        let (mut pair, expected) = keeping_and_reading(7);
        let kept = pair.kept_packets;
        let genuine = bits & 0x3f == pair.qps[0].attrs.token;
        for ahead in 1..127 {
            let psn = expected.wrapping_add(ahead);
            let headers = marked(0, Operation::ReadRespMiddle, psn, bits);
            pair.inject(0, headers, &payload);
        }
        let kept = pair.kept_packets - kept;
        assert_eq!(kept > 0, genuine, "{bits:#x}");
        accepted += kept;
        assert!(pair.hosts[0].memory.borrow().iter().all(|b| *b == 0x5a));
        if !genuine {
            pair.run(SECOND);
            assert_eq!(pair.statuses(0), [0, 1].map(|id| (id, WcStatus::Success)));
            // The memory of the peer.
            assert!(pair.hosts[0].memory.borrow().iter().all(|b| *b == 0x5a));
        }

        let (mut pair, expected) = keeping_and_reading(7);
        let headers = marked(0, Operation::ReadRespMiddle, expected, bits);
        pair.inject(0, headers, &payload);
        let placed = pair.hosts[0].memory.borrow()[0] == 0xee;
        assert_eq!(placed, genuine || bits & 0x3f == 0, "{bits:#x}");
        accepted += u64::from(placed);
    }
    assert!(accepted <= BITS, "{accepted}");
}
