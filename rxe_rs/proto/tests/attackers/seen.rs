// SPDX-License-Identifier: GPL-2.0
//! Attackers who see the packets of a connection.

use super::*;

/// What the packets of a WRITE show to whoever sees them.
struct Seen {
    /// QP number of the responder.
    qpn: Qpn,
    /// PSN of the last packet.
    psn: Psn,
    va: u64,
    rkey: RKey,
}

/// Posts a WRITE of one packet on a side, and reads the numbers from the packet.
fn observe(pair: &mut Pair, side: usize) -> Seen {
    pair.post(side, wr(SendOp::Write, 9, 100), 0x4000);
    pair.transmit(side);
    let udp = pair.packets_in_flight().last().unwrap();
    let packet = Packet::parse(udp, udp.len()).unwrap();
    let reth = packet.reth().unwrap();
    Seen {
        qpn: packet.bth().dest_qpn,
        psn: packet.bth().psn,
        va: reth.va(),
        rkey: reth.rkey(),
    }
}

/// Who sees the packets of a connection, as an on-path attacker or its peer does, guesses nothing:
/// a forged packet ends an RC connection, sends into it, completes a request of it, writes to
/// memory, and throttles it. On UC the same, except that no packet ends it and none completes a
/// request.
/// There is no defence in RoCE v2.
#[test]
fn packets_that_are_seen_show_all_numbers() {
    let rc = Opcode::rc;
    let uc = |operation| Opcode::new(Transport::Uc, operation).unwrap();
    // What the attacker needs to know of both directions, and a request of side 0 that the attacker
    // has kept from its responder.
    let start = |service| {
        let mut pair = Pair::small(service, 14, Link::PERFECT);
        let to = [1, 0].map(|side| {
            let seen = observe(&mut pair, side);
            pair.run(SECOND);
            seen.qpn
        });
        pair.hosts[0].sent.clear();
        pair.hosts[1].memory.borrow_mut().fill(0x5a);
        let seen = observe(&mut pair, 0);
        pair.drop_in_flight();
        assert_eq!(seen.qpn, to[1]);
        (pair, to[0], seen)
    };
    let cnp = |qpn| {
        Headers::new(Bth {
            becn: true,
            migreq: false,
            ..Bth::new(Opcode::CNP, qpn, Psn::new(0))
        })
    };
    for syndrome in [Syndrome::ACK, Syndrome::Nak(NakCode::RemoteAccess)] {
        let (mut pair, requester, seen) = start(Service::Rc);
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, requester, seen.psn);
        let headers = Headers::new(bth).aeth(Aeth::new(syndrome, Msn::new(2)));
        pair.inject(0, headers, &[]);
        match syndrome {
            Syndrome::ACK => assert_eq!(pair.statuses(0), [(9, WcStatus::Success)]),
            _ => assert_eq!(pair.qps[0].state(), State::Err),
        }
        assert!(pair.hosts[1].memory.borrow().iter().all(|b| *b == 0x5a));
    }
    let (mut pair, _, seen) = start(Service::Rc);
    let bth = Bth::new(rc(Operation::WriteOnly), seen.qpn, seen.psn);
    let headers = Headers::new(bth).reth(seen.va, RKey(seen.rkey.0 ^ 1), 100);
    pair.inject(1, headers, &[0xee; 100]);
    assert_eq!(pair.qps[1].state(), State::Err);
    for service in [Service::Rc, Service::Uc] {
        let opcode = |operation| match service {
            Service::Rc => rc(operation),
            _ => uc(operation),
        };
        let (mut pair, requester, seen) = start(service);
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: 1,
            at: 0,
            len: 4096,
        });
        let bth = Bth::new(opcode(Operation::SendOnly), seen.qpn, seen.psn);
        pair.inject(1, Headers::new(bth), &[0xee; 100]);
        assert_eq!(pair.hosts[1].received.len(), 1, "{service:?}");
        let bth = Bth::new(opcode(Operation::WriteOnly), seen.qpn, seen.psn.next());
        let headers = Headers::new(bth).reth(seen.va, seen.rkey, 100);
        pair.inject(1, headers, &[0xee; 100]);
        let written = pair.hosts[1].memory.borrow()[seen.va as usize..][..100].to_vec();
        assert_eq!(written, [0xee; 100], "{service:?}");
        assert_eq!(pair.qps[0].rate_limit(), None, "{service:?}");
        pair.inject(0, cnp(requester), &[0; 16]);
        assert!(pair.qps[0].rate_limit().is_some(), "{service:?}");
    }
}
