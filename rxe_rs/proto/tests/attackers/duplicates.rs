// SPDX-License-Identifier: GPL-2.0
//! Forged duplicates of requests, which ask for an old result.

use super::*;

/// Without the key an attacker gets no response from a replay entry and does not disturb pending
/// responses.
#[test]
fn duplicates_must_match_the_original() {
    for op in [
        SendOp::Read,
        SendOp::FetchAdd,
        SendOp::AtomicWrite,
        SendOp::Flush,
    ] {
        let mut pair = Pair::small(Service::Rc, 6, Link::PERFECT);
        let psn = pair.qps[0].sq_psn();
        let mut request = wr(op, 1, 8);
        if op == SendOp::Flush {
            let kind = FlushKind {
                placement: 1,
                selectivity: Selectivity::Range,
            };
            set_flush(&mut request, kind);
        }
        pair.post(0, request, 0);
        pair.run(SECOND);
        assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
        let opcode = Opcode::rc(match op {
            SendOp::Read => Operation::ReadRequest,
            SendOp::FetchAdd => Operation::FetchAdd,
            SendOp::AtomicWrite => Operation::AtomicWrite,
            _ => Operation::Flush,
        });
        let before = pair.packets_sent;
        for (addr, key) in [(REMOTE, RKey(0xbad)), (REMOTE + 8, RKEY)] {
            let bth = Bth::new(opcode, Qpn::new(0x12), psn);
            let headers = Headers::new(bth);
            let headers = match op {
                SendOp::FetchAdd => headers.atomic_eth(addr, key, 1, 0),
                SendOp::Flush => headers
                    .feth(rxe_proto::wire::feth::Selectivity::Range, 1)
                    .reth(addr, key, 8),
                _ => headers.reth(addr, key, 8),
            };
            let payload = if op == SendOp::AtomicWrite { 8 } else { 0 };
            pair.inject(1, headers, &vec![0; payload]);
            pair.transmit(1);
        }
        assert_eq!(pair.packets_sent, before, "{op:?}");
        assert_eq!(counts(&pair, 1, Count::DuplicateMismatch), 2, "{op:?}");
        assert_eq!(pair.qps[1].state(), State::Rts);
    }
}

/// PSNs wrap after 2^24. The replay entry of a request before the wrap is not used for the new
/// request with the same PSN.
#[test]
fn replay_entries_after_the_psn_wrapped() {
    let mut pair = Pair::small(Service::Rc, 7, Link::PERFECT);
    let psn = pair.qps[1].rq_psn();
    let add = |psn| {
        let bth = Bth::new(Opcode::rc(Operation::FetchAdd), Qpn::new(0x12), psn);
        Headers::new(bth).atomic_eth(REMOTE, RKEY, 1, 0)
    };
    pair.hosts[1].memory.borrow_mut().fill(0);
    pair.inject(1, add(psn), &[]);
    pair.transmit(1);
    pair.drop_in_flight();
    // The PSNs of many WRITEs.
    for quarter in 1..=4u32 {
        pair.qps[1].set_rq_psn(psn.wrapping_add(quarter << 22));
    }
    pair.inject(1, add(psn), &[]);
    pair.transmit(1);
    pair.drop_in_flight();
    assert_eq!(pair.qps[1].rq_psn(), psn.next());
    pair.inject(1, add(psn), &[]);
    pair.transmit(1);
    let response: Vec<Vec<u8>> = pair.packets_in_flight().map(<[u8]>::to_vec).collect();
    assert_eq!(response.len(), 1);
    let original = u64::from_be_bytes(response[0][16..24].try_into().unwrap());
    assert_eq!(original, 1, "the response from before the wrap");
    let word = pair.hosts[1].memory.borrow()[REMOTE as usize..][..8].to_vec();
    assert_eq!(word, 2u64.to_ne_bytes());
}

/// The same for a READ: a new one whose PSNs those of an old one contain is answered again, from
/// its own memory; and for ATOMIC WRITE.
#[test]
fn repeated_reads_after_the_psn_wrapped() {
    for opcode in [Operation::ReadRequest, Operation::AtomicWrite] {
        let mut pair = Pair::small(Service::Rc, 7, Link::PERFECT);
        let psn = pair.qps[1].rq_psn();
        let request = |psn, addr, len| {
            let bth = Bth::new(Opcode::rc(opcode), Qpn::new(0x12), psn);
            Headers::new(bth).reth(addr, RKEY, len)
        };
        let (len, data) = match opcode {
            Operation::ReadRequest => (3 * MTU, 0),
            _ => (8, 8),
        };
        pair.inject(1, request(psn, REMOTE, len), &vec![1; data]);
        pair.transmit(1);
        pair.drop_in_flight();
        for quarter in 1..=4u32 {
            pair.qps[1].set_rq_psn(psn.wrapping_add(quarter << 22));
        }
        for _ in 0..2 {
            pair.inject(1, request(psn, REMOTE + 64, 8), &vec![2; data]);
            pair.transmit(1);
            assert_eq!(pair.packets_in_flight().count(), 1, "{opcode:?}");
            pair.drop_in_flight();
        }
        assert_eq!(counts(&pair, 1, Count::DuplicateMismatch), 0, "{opcode:?}");
    }
}
