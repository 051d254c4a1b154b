// SPDX-License-Identifier: GPL-2.0
//! Probes where the last packet in flight is a long READ, or where the peer drops it unanswered
//! because it has sent an RNR NAK.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{wr, Link, Pair, RecvBuf};
use rxe_proto::wire::opcode::Operation;
use rxe_proto::wire::packet::Packet;

const MEMORY: usize = 1 << 20;
const MTU: u32 = 1024;
const MS: u64 = 1_000_000;
/// Packets and bytes of a READ that no probe may request again without need.
const PACKETS: u64 = 300;
const LONG: u32 = PACKETS as u32 * MTU;
/// Where READs put their data.
const DATA: usize = 1 << 19;

/// A pair whose side 0 knows the round trip time. Side 1 keeps packets if `token` is not 0.
fn warm_pair(token: u8) -> Pair {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    // 67 ms: no timer expires here.
    pair.qps[0].attrs.timeout = 14;
    pair.qps[1].attrs.token = token;
    pair.post(0, wr(SendOp::Write, 1, 100), 0);
    pair.run(60 * MS);
    pair
}

/// Sends requests of side 0, the first of which side 1 refuses: it has no receive.
fn execute_refused(pair: &mut Pair) {
    pair.transmit(0);
    while pair.hosts[1].counts[Count::RnrNakSent] == 0 {
        assert!(pair.step());
    }
}

/// A WRITE and READs behind it are not acknowledged for so long that the requester probes, because
/// the peer is busy. The probe does not request all of a long response again, whether the peer
/// keeps packets or not: it repeats the packet before the long READs.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn probe_behind_a_write_requests_no_long_response() {
    for (token, reads) in [(0, 1), (0, 3), (7, 1), (7, 3)] {
        let case = format!("token {token}, {reads} READs");
        let mut pair = warm_pair(token);
        pair.post(0, wr(SendOp::Write, 2, 100), 0);
        for id in 0..reads {
            pair.post(0, wr(SendOp::Read, 3 + id, LONG), DATA);
        }
        pair.execute();
        let sent_before = pair.packets_sent;
        // Both probes.
        for _ in 0..2 {
            let at = pair.qps[0].poll_timeout().expect("a probe is due");
            pair.now = at;
            let (now, host) = (pair.now, &mut pair.hosts[0]);
            pair.qps[0].handle_timeout(now, host);
            pair.transmit(0);
        }
        assert_eq!(pair.read_lengths(), [], "{case}");
        assert_eq!(pair.packets_sent, sent_before + 2, "{case}");
        let acks = pair.packets_in_flight().filter(|udp| {
            let packet = Packet::parse(udp, udp.len()).unwrap();
            packet.opcode().operation() == Operation::WriteOnly && packet.bth().ack_req
        });
        assert_eq!(acks.count(), 2, "{case}");
        pair.run(600 * MS);
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{case}");
        assert_eq!(pair.hosts[0].sent.len(), 2 + reads as usize, "{case}");
        let data = reads * PACKETS;
        let sent = pair.packets_sent - sent_before;
        assert!((data..data + 10).contains(&sent), "{case}: {sent} packets");
    }
}

/// The long READ that is the last request in flight is lost. The probe repeats the WRITE before it,
/// and as nothing follows the acknowledgement of that, the next one repeats the READ; a little
/// later if there is no room for it.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn lost_long_read_behind_a_write() {
    for (token, busy) in [(0, false), (7, false), (0, true), (7, true)] {
        let mut pair = warm_pair(token);
        pair.post(0, wr(SendOp::Write, 2, 100), 0);
        pair.post(0, wr(SendOp::Read, 3, LONG), DATA);
        let psn = pair.qps[0].sq_psn().next();
        pair.transmit(0);
        assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == psn), 1);
        while busy && pair.hosts[0].sent.len() < 2 {
            assert!(pair.step());
        }
        if busy {
            pair.now = pair.qps[0].poll_timeout().expect("a probe is due");
            pair.qps[0].handle_timeout(pair.now, &mut pair.hosts[0]);
            pair.link.busy = 1.0;
            pair.transmit_packets(0, 1);
            pair.link.busy = 0.0;
            assert_eq!(pair.packets_in_flight().count(), 0);
        }
        pair.run(600 * MS);
        let done = [1, 2, 3].map(|id| (id, WcStatus::Success));
        assert_eq!(pair.statuses(0), done, "token {token}");
        assert!(pair.packets_sent < PACKETS + 15, "token {token}");
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "token {token}");
    }
}

/// Packets of a WRITE are lost in front of long READs, and the peer keeps the READs. What the
/// requester sends behind the repeated packets, which shows if they are lost again, is not a READ:
/// the peer would send its data twice.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn repeat_in_front_of_a_long_read() {
    for lost_again in [false, true] {
        let mut pair = warm_pair(7);
        pair.gso_max_segs = 1;
        // A window that the READ fits in, also after a loss.
        for id in 2..6 {
            pair.post(0, wr(SendOp::Write, id, 256 * MTU), 0);
        }
        pair.run(60 * MS);
        pair.post(0, wr(SendOp::Read, 6, 64 * MTU), DATA);
        pair.execute();
        let psn = pair.qps[0].sq_psn();
        pair.transmit(1);
        pair.drop_chosen(|packet| packet.bth().psn.delta(psn) == -9);
        pair.run(60 * MS);
        let repeats = pair.hosts[0].counts[Count::SelectiveRepeat];
        pair.post(0, wr(SendOp::Write, 7, 6 * MTU), 0);
        pair.post(0, wr(SendOp::Read, 8, LONG), DATA);
        let psn = pair.qps[0].sq_psn().wrapping_add(2);
        let is_lost = |packet: &Packet<'_>| packet.bth().psn == psn;
        pair.transmit(0);
        assert_eq!(pair.drop_chosen(is_lost), 1);
        assert_eq!(pair.read_lengths(), [LONG]);
        let mut lost = u32::from(!lost_again);
        let (mut at, mut requested) = (pair.now, Vec::new());
        while pair.hosts[0].sent.len() < 8 {
            pair.transmit(0);
            if pair.now != at {
                at = pair.now;
                requested.extend(pair.read_lengths());
            }
            if lost == 0 && pair.drop_chosen(is_lost) > 0 {
                lost = 1;
            }
            assert!(pair.step(), "stuck");
        }
        assert_eq!(requested, [], "{lost_again}");
        assert_eq!(
            pair.hosts[0].counts[Count::SelectiveRepeat],
            repeats + 1 + u64::from(lost_again),
            "{lost_again}"
        );
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{lost_again}");
    }
}

/// The RNR NAK for the first of some SENDs is lost, or that SEND when it is sent again. The peer
/// drops all that follow it without a response, so the second probe repeats the first SEND. No
/// timer expires, whether the peer keeps packets or not.
#[test]
fn probe_of_a_receiver_that_was_not_ready() {
    for (token, nak_lost) in [(0, false), (0, true), (7, false), (7, true)] {
        let case = format!("token {token}, NAK lost: {nak_lost}");
        let mut pair = warm_pair(token);
        let psn = pair.qps[0].sq_psn();
        for id in 2..6 {
            pair.post(0, wr(SendOp::Send, id, 100), 0);
        }
        execute_refused(&mut pair);
        if nak_lost {
            pair.transmit(1);
            assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == psn), 1);
        }
        for wr_id in 0..4 {
            let (at, len) = (0, MTU);
            pair.hosts[1].receives.push_back(RecvBuf { wr_id, at, len });
        }
        let begin = pair.now;
        let mut lost = usize::from(nak_lost);
        while pair.hosts[0].sent.len() < 5 {
            pair.transmit(0);
            if lost == 0 {
                let request = |p: &Packet<'_>| !p.opcode().is_response() && p.bth().psn == psn;
                lost = pair.drop_chosen(request);
            }
            assert!(pair.step(), "{case}: stuck");
        }
        assert_eq!(lost, 1, "{case}");
        let done = [1, 2, 3, 4, 5].map(|id| (id, WcStatus::Success));
        assert_eq!(pair.statuses(0), done, "{case}");
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{case}");
        let duration = pair.now.ns_since(begin);
        assert!(duration < 10 * MS, "{case}: {duration} ns");
    }
}
