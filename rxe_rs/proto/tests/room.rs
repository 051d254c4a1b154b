// SPDX-License-Identifier: GPL-2.0
//! Requests that wait for room in a completion queue: when they are tried again, for how long, and
//! that nothing is lost or retransmitted meanwhile.

use rxe_proto::engine::room::{RoomWait, WAIT_NS};
use rxe_proto::time::Instant;

/// Looks at a queue that stays full until the wait is over; the process publishes `index` of the
/// number of the look. Returns the times of the looks in nanoseconds.
fn looks(wait: &mut RoomWait, index: impl Fn(u32) -> u32, most: u32) -> Vec<u64> {
    let mut times = Vec::new();
    let mut now = Instant::from_ns(7);
    for n in 0..most {
        times.push(now.as_ns());
        let Some(next) = wait.until(now, index(n)) else {
            return times;
        };
        assert!(next > now);
        now = next;
    }
    times
}

#[test]
fn a_process_that_consumes_nothing_has_its_time() {
    let mut wait = RoomWait::default();
    let times = looks(&mut wait, |_| 3, 1000);
    assert_eq!(times[..4], [7, 50_007, 100_007, 200_007]);
    assert_eq!(*times.last().unwrap(), 7 + WAIT_NS);
    assert!(times.len() < 40, "{} looks", times.len());
    // It is over for further messages, too, until the process makes room.
    let later = Instant::from_ns(10 * WAIT_NS);
    assert_eq!(wait.until(later, 3), None);
    assert!(wait.is_over(3) && !wait.is_over(4));
    assert!(wait.until(later, 4).is_some());
    assert!(!wait.is_over(3) && !wait.is_over(4));
    wait.end();
    assert!(wait.until(later, 4).is_some());
}

#[test]
fn an_index_that_moves_without_end_costs_little() {
    let times = looks(&mut RoomWait::default(), |n| n, 1000);
    assert_eq!(times.len(), 1000);
    let second = times.iter().filter(|at| **at < 1_000_000_007).count();
    assert!(second < 120, "{second} looks in a second");
}

#[test]
fn a_full_queue_that_stays_full_is_not_given_more_time_by_looks() {
    let mut wait = RoomWait::default();
    let start = Instant::from_ns(1);
    for n in 0..100 {
        assert!(wait.until(start.saturating_add(n), 0).is_some());
    }
    assert_eq!(wait.until(start.saturating_add(WAIT_NS), 0), None);
}

mod messages {
    use rxe_proto::engine::backend::Count;
    use rxe_proto::engine::wc::WcStatus;
    use rxe_proto::engine::wr::{AhName, SendBody, SendOp, UdDest};
    use rxe_proto::engine::{Service, State};
    use rxe_proto::sim::{set_remote, wr, Link, Pair, RecvBuf, REMOTE};
    use rxe_proto::wire::payload::Payload;

    /// Posts a receive on side 1, and a request of `op` on side 0.
    fn post(pair: &mut Pair, op: SendOp, n: usize) {
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: n as u64,
            at: n * 256,
            len: 200,
        });
        let mut request = wr(op, n as u64, 100);
        if pair.qps[0].service() == Service::Ud {
            request.body = SendBody::Datagram(UdDest {
                qpn: pair.qps[1].attrs.qpn,
                qkey: pair.qps[1].attrs.qkey,
                ah: AhName::Number(0),
                pkey_index: 0,
            });
        } else {
            set_remote(&mut request, REMOTE);
        }
        pair.post(0, request, 0);
    }

    fn numbers(pair: &Pair) -> Vec<u64> {
        pair.hosts[1]
            .received
            .iter()
            .map(|got| got.0.wr_id)
            .collect()
    }

    #[test]
    fn they_arrive_in_order_when_there_is_room() {
        for (service, op) in [
            (Service::Rc, SendOp::Send),
            (Service::Rc, SendOp::WriteImm),
            (Service::Uc, SendOp::Send),
            (Service::Ud, SendOp::Send),
        ] {
            let mut pair = Pair::small(service, 1, Link::PERFECT);
            post(&mut pair, op, 0);
            pair.run(10_000_000);
            pair.hosts[1].full = true;
            for n in 1..5 {
                post(&mut pair, op, n);
            }
            pair.run(2_000_000);
            assert_eq!(numbers(&pair), [0], "{service:?} {op:?}");
            assert!(pair.deferred_packets >= 4, "{service:?} {op:?}");
            pair.hosts[1].full = false;
            pair.run(1_000_000_000);
            assert_eq!(numbers(&pair), [0, 1, 2, 3, 4], "{service:?} {op:?}");
            let sent = &pair.hosts[0].sent;
            assert!(sent.iter().all(|wc| wc.status == WcStatus::Success));
            assert_eq!(sent.len(), 5);
            let counts = pair.hosts.each_ref().map(|host| &host.counts);
            assert_eq!(counts[1][Count::RnrNakSent], 0);
            assert_eq!(counts[1][Count::SequenceNakSent], 0);
            assert_eq!(counts[0][Count::Retry], 0);
        }
    }

    /// Without a receive request the room does not matter: the peer is told at once that the
    /// receiver is not ready.
    #[test]
    fn they_do_not_wait_without_a_receive() {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.hosts[1].full = true;
        post(&mut pair, SendOp::Send, 0);
        let receive = pair.hosts[1].receives.pop_back();
        pair.run(2_000_000);
        assert!(pair.hosts[1].counts[Count::RnrNakSent] > 0);
        assert_eq!(pair.deferred_packets, 0);
        pair.hosts[1].full = false;
        pair.hosts[1].receives.extend(receive);
        pair.run(1_000_000_000);
        assert_eq!(numbers(&pair), [0]);
        assert_eq!(pair.hosts[0].sent[0].status, WcStatus::Success);
    }

    /// Raw frames are dropped and counted.
    #[test]
    fn frames_do_not_wait() {
        let mut pair = Pair::small(Service::Raw, 1, Link::PERFECT);
        let (qp, host) = (&mut pair.qps[1], &mut pair.hosts[1]);
        host.receives.push_back(RecvBuf {
            wr_id: 7,
            at: 0,
            len: 100,
        });
        host.full = true;
        qp.handle_frame(&Payload::from_slice(&[5; 60]), host);
        assert_eq!(host.counts[Count::PageFaultDropped], 1);
        assert!(host.received.is_empty());
        host.full = false;
        qp.handle_frame(&Payload::from_slice(&[6; 60]), host);
        assert_eq!(numbers(&pair), [7]);
    }

    /// A WRITE without immediate data needs no room, and neither do receives that are flushed.
    #[test]
    fn other_requests_do_not_wait() {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.hosts[1].full = true;
        post(&mut pair, SendOp::Write, 0);
        pair.run(10_000_000);
        assert_eq!(pair.hosts[0].sent.len(), 1);
        let (qp, host) = (&mut pair.qps[1], &mut pair.hosts[1]);
        qp.fail_locally(host);
        assert_eq!(qp.state(), State::Err);
        assert_eq!(host.received[0].0.status, WcStatus::WrFlushErr);
    }
}
