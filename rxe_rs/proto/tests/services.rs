// SPDX-License-Identifier: GPL-2.0
//! Services other than RC (UC, UD, raw packet), and CNPs of all services.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{AhName, SendOp, UdDest};
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Mtu, PKey, Psn, QKey, Qpn};
use rxe_proto::sim::{seeds, set_imm, set_remote, to_datagram, wr, Link, Pair, RecvBuf, RKEY};
use rxe_proto::wire::{Bth, Headers, Opcode, Operation, Packet, Payload};

const SECOND: u64 = 1_000_000_000;

/// The peer as the destination of datagrams.
const PEER: UdDest = UdDest {
    qpn: Qpn::new(0x12),
    qkey: QKey(0),
    ah: AhName::Number(1),
    pkey_index: 0,
};

/// UC over a lossy wire: every send completes; delivered messages are complete and in order.
#[test]
fn unreliable_connection() {
    for seed in seeds(400) {
        let link = Link {
            loss: [0.0, 0.01, 0.1][seed as usize % 3],
            corrupt: if seed % 2 == 0 { 0.0 } else { 0.02 },
            ..Link::PERFECT
        };
        let mut pair = Pair::of(Service::Uc, seed, link, Mtu::Mtu256, 1 << 20);
        let count = 60u64;
        let mut sizes = Vec::new();
        for id in 0..count {
            let len = pair.rng.u32(0..3000);
            sizes.push(len);
            let at = id as usize * 4096;
            pair.hosts[0].memory.borrow_mut()[at..at + len as usize].fill(id as u8 + 1);
            let op = [SendOp::Send, SendOp::SendImm, SendOp::WriteImm][pair.rng.usize(0..3)];
            let mut request = wr(op, id, len);
            set_imm(&mut request, (id as u32).to_be_bytes());
            set_remote(&mut request, 0x80000 + 4096 * id);
            pair.post(0, request, at);
            let buf = RecvBuf {
                wr_id: id,
                at,
                len: 4096,
            };
            pair.hosts[1].receives.push_back(buf);
        }
        pair.run(SECOND);
        let expected: Vec<_> = (0..count).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(pair.statuses(0), expected, "seed {seed}");
        assert_eq!(pair.qps[1].state(), State::Rts);
        let received = &pair.hosts[1].received;
        if link.loss == 0.0 && link.corrupt == 0.0 {
            assert_eq!(received.len() as u64, count);
        }
        // With a dozen packets per message and a tenth of them lost, some messages arrive.
        assert!(!received.is_empty(), "seed {seed}: nothing was received");
        let mut last = None;
        for (wc, buf) in received {
            assert_eq!(wc.status, WcStatus::Success);
            let memory = pair.hosts[1].memory.borrow();
            if let Some(imm) = wc.imm {
                let id = u32::from_be_bytes(imm);
                assert!(Some(id) > last, "seed {seed}: out of order");
                last = Some(id);
                assert_eq!(wc.byte_len, sizes[id as usize]);
                let write = wc.opcode == rxe_proto::engine::wc::WcOpcode::RecvRdmaWithImm;
                let at = if write {
                    0x80000 + 4096 * id as usize
                } else {
                    buf.at
                };
                let got = &memory[at..at + wc.byte_len as usize];
                assert!(
                    got.iter().all(|byte| *byte == id as u8 + 1),
                    "seed {seed}: mixed up"
                );
            } else {
                let got = &memory[buf.at..buf.at + wc.byte_len as usize];
                assert!(
                    got.windows(2).all(|w| w[0] == w[1]),
                    "seed {seed}: mixed up"
                );
            }
        }
    }
}

/// Datagrams: each is delivered completely, after 40 bytes of network header, or not at all.
#[test]
fn datagrams() {
    for seed in seeds(300) {
        let link = Link {
            loss: 0.1,
            reorder: 0.1,
            corrupt: 0.05,
            ..Link::PERFECT
        };
        let link = if seed % 3 == 0 { Link::PERFECT } else { link };
        let mut pair = Pair::of(Service::Ud, seed, link, Mtu::Mtu1024, 1 << 20);
        for id in 0..50u64 {
            let len = pair.rng.u32(0..=1024);
            let at = id as usize * 2048;
            pair.hosts[0].memory.borrow_mut()[at..at + len as usize].fill(id as u8 + 1);
            let mut request = wr(SendOp::SendImm, id, len);
            to_datagram(&mut request, PEER);
            set_imm(&mut request, [id as u8 + 1, 0, 0, 0]);
            pair.post(0, request, at);
            let buf = RecvBuf {
                wr_id: id,
                at,
                len: 1024 + 40,
            };
            pair.hosts[1].receives.push_back(buf);
        }
        pair.run(SECOND);
        assert_eq!(pair.hosts[0].sent.len(), 50, "seed {seed}");
        let received = &pair.hosts[1].received;
        if seed % 3 == 0 {
            assert_eq!(received.len(), 50);
        }
        for (wc, buf) in received {
            assert_eq!(wc.status, WcStatus::Success);
            assert_eq!(wc.src_qpn, 0x11);
            let memory = pair.hosts[1].memory.borrow();
            let body = &memory[buf.at + 40..buf.at + wc.byte_len as usize];
            assert!(
                body.iter().all(|byte| *byte == wc.imm.unwrap()[0]),
                "seed {seed}"
            );
            assert_eq!(memory[buf.at + 20], 0x45);
        }
    }
}

/// A datagram that does not fit its buffer must not move the QP to ERR: any host can send one.
#[test]
fn long_datagrams_are_harmless() {
    for service in [Service::Ud, Service::Gsi] {
        let mut pair = Pair::small(service, 1, Link::PERFECT);
        for (id, len) in [(0, 400), (1, 10)] {
            let mut request = wr(SendOp::Send, id, len);
            to_datagram(&mut request, PEER);
            pair.post(0, request, 0);
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id: id,
                at: 0,
                len: 256,
            });
        }
        pair.run(SECOND);
        assert_eq!(pair.qps[1].state(), State::Rts, "{service:?}");
        let received: Vec<_> = pair.hosts[1]
            .received
            .iter()
            .map(|r| (r.0.wr_id, r.0.byte_len))
            .collect();
        assert_eq!(received, [(0, 50)], "{service:?}");
    }
}

/// QP1 sends with the P_Key index of the request, other QPs with their own P_Key.
#[test]
fn pkey_of_datagrams() {
    for (service, expected) in [(Service::Ud, 0xffff), (Service::Gsi, 0xfffc)] {
        let mut pair = Pair::small(service, 1, Link::PERFECT);
        let mut request = wr(SendOp::Send, 0, 10);
        let to = UdDest {
            pkey_index: 3,
            ..PEER
        };
        to_datagram(&mut request, to);
        pair.post(0, request, 0);
        pair.transmit(0);
        let packets: Vec<_> = pair.packets_in_flight().collect();
        assert_eq!(packets.len(), 1);
        let bth = *Packet::parse(packets[0], packets[0].len()).unwrap().bth();
        assert_eq!(bth.pkey.0, expected, "{service:?}");
    }
}

/// Frames arrive unchanged; one that does not fit is dropped, and so are frames before RTR.
#[test]
fn frames() {
    let mut pair = Pair::small(Service::Raw, 2, Link::PERFECT);
    pair.hosts[0].memory.borrow_mut()[..14].copy_from_slice(b"to dst src typ");
    for (id, len) in [(0, 60), (1, 1518), (2, 600), (3, 14)] {
        pair.post(0, wr(SendOp::Send, id, len), 0);
    }
    for id in 0..4 {
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: id,
            at: 4096 * id as usize,
            len: 1000,
        });
    }
    pair.run(SECOND);
    let sent = pair.hosts[0].sent.len();
    assert_eq!(sent, 4);
    let received: Vec<_> = pair.hosts[1]
        .received
        .iter()
        .map(|(wc, _)| (wc.wr_id, wc.byte_len, wc.grh.is_none()))
        .collect();
    assert_eq!(received, [(0, 60, true), (1, 600, true), (2, 14, true)]);
    assert_eq!(
        &pair.hosts[1].memory.borrow()[8192..8206],
        b"to dst src typ"
    );

    let host = &mut pair.hosts[1];
    pair.qps[1].set_state(State::Reset, host);
    pair.qps[1].set_state(State::Init, host);
    pair.qps[1].handle_frame(&Payload::from_slice(&[0; 60]), host);
    assert_eq!(pair.hosts[1].received.len(), 3);
}

/// A frame of an invalid length, or with immediate data, fails.
#[test]
fn frames_refused() {
    for (op, len, status) in [
        (SendOp::Send, 13, WcStatus::LocLenErr),
        (SendOp::Send, 1519, WcStatus::LocLenErr),
        (SendOp::SendImm, 60, WcStatus::LocQpOpErr),
    ] {
        let mut pair = Pair::small(Service::Raw, 2, Link::PERFECT);
        pair.post(0, wr(op, 9, len), 0);
        pair.run(SECOND);
        assert_eq!(pair.hosts[0].sent[0].status, status);
        assert_eq!(pair.qps[0].state(), State::Sqe);
    }
}

/// A raw packet QP does not accept RoCE packets.
#[test]
fn raw_qps_ignore_roce_packets() {
    let mut pair = Pair::small(Service::Raw, 2, Link::PERFECT);
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: 1,
        at: 0,
        len: 1000,
    });
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(0x12), Default::default());
    let headers = Headers::new(bth).deth(QKey(0), Qpn::new(0x11));
    pair.inject(1, headers, &[0; 16]);
    assert!(pair.hosts[1].received.is_empty());
}

/// A CNP limits the rate of the sender and has no other effect.
#[test]
fn cnp_limits_the_rate() {
    let mut pair = Pair::small(Service::Rc, 3, Link::PERFECT);
    let rq = pair.qps[0].rq_psn();
    assert_eq!(pair.qps[0].rate_limit(), None);
    pair.post(0, wr(SendOp::Write, 1, 1000), 0);
    pair.run(SECOND / 1000);
    let mut bth = Bth::new(Opcode::CNP, Qpn::new(0x11), rq);
    bth.becn = true;
    pair.inject(0, Headers::new(bth), &[0; 16]);
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.qps[0].rq_psn(), rq);
    assert!(pair.qps[0].rate_limit().is_some());
    assert_eq!(pair.hosts[0].counts[Count::CnpHandled], 1);
}

/// A datagram QP ignores CNPs: any host could send one.
#[test]
fn datagram_qps_ignore_cnps() {
    let mut pair = Pair::small(Service::Ud, 3, Link::PERFECT);
    let bth = Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0));
    pair.inject(0, Headers::new(bth), &[0; 16]);
    assert_eq!(pair.qps[0].rate_limit(), None);
}

/// Time of a transfer by an operation when a share of the packets is marked, and the counters.
fn marked(service: Service, op: SendOp, mark: f64) -> (u64, [u64; 3], Pair) {
    let link = Link {
        mark,
        ..Link::PERFECT
    };
    let mut pair = Pair::of(service, 4, link, Mtu::Mtu1024, 1 << 18);
    let start = pair.now;
    for id in 0..32 {
        pair.post(0, wr(op, id, 100_000), 0);
    }
    pair.run(60 * SECOND);
    assert_eq!(pair.hosts[0].sent.len(), 32);
    assert!(pair.hosts[0]
        .sent
        .iter()
        .all(|wc| wc.status == WcStatus::Success));
    let (source, sink) = match op {
        SendOp::Read => (1, 0),
        _ => (0, 1),
    };
    let count = |side: usize, what: Count| pair.hosts[side].counts[what];
    let counts = [
        count(sink, Count::EcnMarked),
        count(sink, Count::CnpSent),
        count(source, Count::CnpHandled),
    ];
    (pair.now - start, counts, pair)
}

/// Marked packets cause CNPs and limit the rate of the sender of the data, requester or responder;
/// without marks there are no CNPs.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn marked_packets_slow_the_sender() {
    for (service, op) in [
        (Service::Rc, SendOp::Write),
        (Service::Rc, SendOp::Read),
        (Service::Uc, SendOp::Write),
    ] {
        let (free, none, pair) = marked(service, op, 0.0);
        assert_eq!(none, [0; 3], "{op:?}");
        assert_eq!(pair.qps.each_ref().map(|qp| qp.rate_limit()), [None; 2]);
        let (slowed, [seen, sent, handled], _) = marked(service, op, 1.0);
        assert!(seen > sent && sent > 0 && handled > 0, "{op:?}");
        assert!(handled <= sent, "{op:?}");
        // The last packets of a UC sender are in flight when its queue is empty.
        if service == Service::Rc {
            assert!(slowed > 2 * free, "{op:?} {free} {slowed}");
        }
    }
}

/// When marking ends the sender recovers to full rate.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn full_speed_after_congestion() {
    let (_, _, mut pair) = marked(Service::Rc, SendOp::Write, 1.0);
    assert!(pair.qps[0].rate_limit().is_some());
    pair.link.mark = 0.0;
    for _ in 0..100 {
        pair.now += SECOND / 100;
        pair.post(0, wr(SendOp::Write, 1, 1000), 0);
        pair.run(SECOND / 100);
    }
    assert_eq!(pair.qps[0].rate_limit(), None);
}

/// A CNP has the P_Key of the marked packet, which the membership bit distinguishes from that of
/// the queue pair (0xffff in the simulator).
#[test]
fn cnp_has_the_pkey_of_the_marked_packet() {
    for key in [PKey(0x7fff), PKey::DEFAULT] {
        let link = Link {
            mark: 1.0,
            ..Link::PERFECT
        };
        let mut pair = Pair::small(Service::Rc, 3, link);
        let bth = Bth {
            pkey: key,
            ..Bth::new(
                Opcode::rc(Operation::WriteOnly),
                Qpn::new(0x12),
                pair.qps[1].rq_psn(),
            )
        };
        pair.inject(1, Headers::new(bth).reth(0, RKEY, 0), &[]);
        pair.transmit(1);
        let keys: Vec<PKey> = pair
            .packets_in_flight()
            .map(|bytes| *Packet::parse(bytes, bytes.len()).unwrap().bth())
            .filter(|bth| bth.opcode == Opcode::CNP)
            .map(|bth| bth.pkey)
            .collect();
        assert_eq!(keys, [key]);
    }
}
