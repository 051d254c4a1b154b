// SPDX-License-Identifier: GPL-2.0
//! On-demand paging: with page faults nothing is lost, executed twice or out of order, and waiting
//! for them uses no retries.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Msn, Mtu, Psn, Qpn};
use rxe_proto::sim::{seeds, set_addend, set_remote, wr, Link, Pair, RecvBuf, PAGE, REMOTE, RKEY};
use rxe_proto::wire::opcode::{Opcode, Operation};
use rxe_proto::wire::packet::Payload;
use rxe_proto::wire::repr::Headers;
use rxe_proto::wire::{Aeth, Bth, Syndrome};

const MEMORY: usize = 1 << 20;
const MESSAGE: u32 = 5000;
/// Buffer areas: side 0 sends from; side 1 receives to, is written to and is read from.
const FROM: usize = 0;
const TO: usize = 0x80000;
const ROUNDS: usize = 30;

fn slot(base: usize, n: usize) -> usize {
    base + n * 8192
}

/// Posts message `n`, a different kind each time, and returns where its data goes from and to on
/// which side.
fn post(pair: &mut Pair, n: usize, ops: &[SendOp]) -> (usize, usize, SendOp) {
    let (from, to) = (slot(FROM, n) + n, slot(TO, n) + 3 * n);
    let op = ops[n % ops.len()];
    let mut request = wr(op, n as u64, MESSAGE);
    set_remote(&mut request, to as u64);
    match op {
        SendOp::Send => pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: n as u64,
            at: to,
            len: MESSAGE,
        }),
        SendOp::FetchAdd => {
            request.length = 8;
            set_remote(&mut request, MEMORY as u64 - 8);
            set_addend(&mut request, 1);
        }
        _ => {}
    }
    pair.post(0, request, from);
    (from, to, op)
}

fn fill(pair: &mut Pair) {
    for side in 0..2 {
        let mut state = side as u32 + 1;
        for byte in pair.hosts[side].memory.borrow_mut().iter_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        pair.hosts[side].memory.borrow_mut()[MEMORY - 8..].fill(0);
    }
}

/// All pages are absent at the start, and pages are invalidated all the time.
fn run(service: Service, ops: &[SendOp], link: Link, seed: u64) -> Pair {
    let mut pair = Pair::of(service, seed, link, Mtu::Mtu1024, MEMORY);
    fill(&mut pair);
    pair.evict = 0.7;
    for host in &mut pair.hosts {
        host.absent.get_mut().extend(0..MEMORY / PAGE);
    }
    let before = pair
        .hosts
        .each_ref()
        .map(|host| host.memory.borrow().clone());
    let mut messages = Vec::new();
    for n in 0..ROUNDS {
        messages.push(post(&mut pair, n, ops));
        if pair.rng.bool() {
            pair.step();
        }
    }
    pair.run(60_000_000_000);
    let mut adds = 0u64;
    for (n, (from, to, op)) in messages.into_iter().enumerate() {
        let memory = pair.hosts.each_ref().map(|host| host.memory.borrow());
        let bytes = |side: usize, at: usize| &memory[side][at..at + MESSAGE as usize];
        match op {
            SendOp::Read => assert_eq!(
                bytes(0, from),
                &before[1][to..to + MESSAGE as usize],
                "seed {seed}: READ {n}"
            ),
            SendOp::FetchAdd => {
                let got = u64::from_ne_bytes(memory[0][from..from + 8].try_into().unwrap());
                assert_eq!(got, adds, "seed {seed}: ATOMIC {n}");
                adds += 1;
            }
            _ => assert_eq!(
                bytes(1, to),
                &before[0][from..from + MESSAGE as usize],
                "seed {seed}: {op:?} {n}"
            ),
        }
    }
    assert!(
        pair.deferred_packets > 0,
        "seed {seed}: no packet was deferred"
    );
    pair
}

fn assert_done(pair: &Pair, seed: u64) {
    for side in 0..2 {
        assert_eq!(pair.qps[side].state(), State::Rts, "seed {seed}");
    }
    assert_eq!(pair.hosts[0].sent.len(), ROUNDS, "seed {seed}");
    for (n, wc) in pair.hosts[0].sent.iter().enumerate() {
        assert_eq!(
            (wc.wr_id, wc.status),
            (n as u64, WcStatus::Success),
            "seed {seed}"
        );
    }
    for (wc, _) in &pair.hosts[1].received {
        assert_eq!(wc.status, WcStatus::Success, "seed {seed}");
    }
}

const RC: [SendOp; 4] = [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd];

#[test]
fn reliable() {
    for seed in seeds(60) {
        let pair = run(Service::Rc, &RC, Link::PERFECT, seed);
        assert_done(&pair, seed);
        let lost = [Count::RetryExceeded, Count::RnrNakSent, Count::ImpliedNak];
        for count in lost {
            assert_eq!(pair.hosts[0].counts[count], 0, "seed {seed}: {count:?}");
            assert_eq!(pair.hosts[1].counts[count], 0, "seed {seed}: {count:?}");
        }
    }
}

/// Loss and page faults together.
#[test]
fn reliable_on_a_lossy_wire() {
    for seed in seeds(60) {
        let link = Link {
            loss: 0.02,
            duplicate: 0.05,
            reorder: 0.05,
            ..Link::PERFECT
        };
        let pair = run(Service::Rc, &RC, link, seed);
        assert_done(&pair, seed);
    }
}

/// UC and UD have no retransmission: no packet may be lost by a page fault.
#[test]
fn unreliable() {
    for seed in seeds(60) {
        let ops = [SendOp::Send, SendOp::Write];
        let pair = run(Service::Uc, &ops, Link::PERFECT, seed);
        assert_done(&pair, seed);
    }
}

/// The oldest request waits for a page fault longer than all retries take: this is a local wait and
/// does not fail the QP.
#[test]
fn page_faults_use_no_retries() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    fill(&mut pair);
    pair.qps[0].attrs.retry_cnt = 0;
    pair.qps[0].attrs.timeout = 1;
    pair.hosts[0].absent.get_mut().extend(0..MEMORY / PAGE);
    for n in 0..3 {
        post(&mut pair, n, &[SendOp::Write]);
    }
    pair.run(10_000_000_000);
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.hosts[0].sent.len(), 3);
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
}

/// Runs both sides for `ns` nanoseconds as [`Pair::run`] does, but no page fault ends. Returns how
/// often the timer of side 0 expired.
fn run_with_page_faults(pair: &mut Pair, ns: u64) -> u64 {
    let (end, mut expired) = (pair.now + ns, 0);
    while pair.now < end {
        for side in 0..2 {
            pair.transmit(side);
        }
        if pair.deliver_next() {
            continue;
        }
        let timers = pair.qps.each_ref().map(|qp| qp.poll_timeout());
        let Some(next) = timers.into_iter().flatten().min() else {
            break;
        };
        pair.now = pair.now.max(next);
        for (side, timer) in timers.into_iter().enumerate() {
            if timer.is_some_and(|at| at <= pair.now) {
                pair.qps[side].handle_timeout(pair.now, &mut pair.hosts[side]);
                expired += u64::from(side == 0);
            }
        }
    }
    expired
}

/// Posts a WRITE of one packet, and one of four, whose last page is absent.
fn write_behind_another(pair: &mut Pair) {
    pair.post(0, wr(SendOp::Write, 1, 100), FROM);
    pair.hosts[0].absent.get_mut().insert(FROM / PAGE + 3);
    pair.post(0, wr(SendOp::Write, 2, 4 * 1024), FROM);
}

/// A page fault may take as long as a process likes: the timer must not expire all the time.
#[test]
fn page_faults_do_not_keep_the_timer_running() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.qps[0].attrs.timeout = 1;
    write_behind_another(&mut pair);
    let expired = run_with_page_faults(&mut pair, 1_000_000_000);
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
    assert!(expired < 20, "{expired} times");
    pair.hosts[0].absent.get_mut().clear();
    pair.run(1_000_000_000);
    assert_eq!(pair.statuses(0), [1, 2].map(|id| (id, WcStatus::Success)));
}

/// What precedes a packet that waits for a page does not wait for that: it is acknowledged, or sent
/// again if it was lost, and fails if the peer is gone.
#[test]
fn packets_before_a_page_fault_do_not_wait() {
    for outage in [0, 100_000_000, 10_000_000_000] {
        let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        pair.qps[0].attrs.timeout = 14;
        let first = pair.qps[1].rq_psn();
        write_behind_another(&mut pair);
        pair.link.loss = 1.0;
        run_with_page_faults(&mut pair, outage);
        pair.link.loss = 0.0;
        run_with_page_faults(&mut pair, 1_000_000_000);
        if outage > 1_000_000_000 {
            let wanted = [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
            assert_eq!(pair.statuses(0), wanted);
            continue;
        }
        assert_eq!(pair.statuses(0), [(1, WcStatus::Success)], "{outage} ns");
        assert_eq!(pair.qps[1].rq_psn(), first.wrapping_add(4));
        assert_eq!(pair.qps[0].in_flight(), 0, "not all is acknowledged");
    }
}

/// The first or a later packet of a selective repeat waits for a page, a local wait that uses no
/// retries.
#[test]
fn page_faults_of_a_repetition_use_no_retries() {
    for count in [1, 2] {
        let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        pair.gso_max_segs = 1;
        pair.qps[0].attrs.retry_cnt = 1;
        // The first loss shows that the peer keeps packets.
        for id in 1..=2 {
            let lost = pair.qps[0].sq_psn().wrapping_add(5);
            pair.post(0, wr(SendOp::Write, id, 20 * 1024), FROM);
            pair.transmit(0);
            let dropped =
                pair.drop_chosen(|packet| (0..count).contains(&packet.bth().psn.delta(lost)));
            assert_eq!(dropped, count as usize);
            if id == 2 {
                let page = FROM / PAGE + 4 + count as usize;
                pair.hosts[0].absent.get_mut().insert(page);
                run_with_page_faults(&mut pair, 1_000_000_000);
                assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
                pair.hosts[0].absent.get_mut().clear();
            }
            pair.run(1_000_000_000);
        }
        assert_eq!(
            pair.statuses(0),
            [1, 2].map(|id| (id, WcStatus::Success)),
            "{count} lost"
        );
        assert_eq!(pair.hosts[0].counts[Count::SelectiveRepeat], 1);
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{count} lost");
    }
}

/// A connection whose sides have found out that the peer keeps responses, by a first READ one
/// response of which was lost.
fn after_a_lost_response(timeout: u8) -> Pair {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.gso_max_segs = 1;
    for qp in &mut pair.qps {
        qp.attrs.timeout = timeout;
    }
    read_losing(&mut pair, 5);
    pair.run(1_000_000_000);
    pair
}

/// READs 20 packets; the response of one of them is lost.
fn read_losing(pair: &mut Pair, nth: u32) {
    let first = pair.qps[0].sq_psn();
    pair.post(0, wr(SendOp::Read, 1, 20 * 1024), TO);
    pair.execute();
    pair.transmit(1);
    lose(pair, first.wrapping_add(nth));
}

/// The packet `psn`, which is in flight, is lost.
fn lose(pair: &mut Pair, psn: Psn) {
    assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == psn), 1);
}

fn post_atomic_write(pair: &mut Pair, id: u64, from: usize) {
    let mut request = wr(SendOp::AtomicWrite, id, 8);
    set_remote(&mut request, TO as u64);
    pair.post(0, request, from);
}

/// The response of an ATOMIC WRITE is lost, and it is requested again, or probed if nothing was
/// sent behind it. By then the last page, where its payload is, is absent.
fn atomic_write_waits(timeout: u8, probed: bool) -> Pair {
    let mut pair = after_a_lost_response(timeout);
    let psn = pair.qps[0].sq_psn();
    post_atomic_write(&mut pair, 2, MEMORY - 8);
    if !probed {
        pair.post(0, wr(SendOp::Read, 3, 1024), TO);
    }
    pair.execute();
    pair.transmit(1);
    lose(&mut pair, psn);
    pair.hosts[0].absent.get_mut().insert(MEMORY / PAGE - 1);
    let expired = run_with_page_faults(&mut pair, 1_000_000_000);
    assert!(!pair.hosts[0].faulted.get_mut().is_empty());
    assert!(expired < 20, "{expired} times");
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
    pair.hosts[0].absent.get_mut().clear();
    pair
}

/// It uses no retries while it waits, and is sent as soon as the page is there, even without an
/// acknowledgement timer.
#[test]
fn atomic_write_that_is_repeated_waits_for_its_page() {
    for (timeout, probed) in [(10, false), (10, true), (0, false), (0, true)] {
        let mut pair = atomic_write_waits(timeout, probed);
        pair.run(1_000_000_000);
        let done = [1, 2, 3].map(|id| (id, WcStatus::Success));
        let count = 3 - usize::from(probed);
        assert_eq!(pair.statuses(0), done[..count], "{timeout}, {probed}");
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
    }
}

/// It fails if there will be no page.
#[test]
fn atomic_write_that_is_repeated_without_its_page() {
    for (timeout, probed) in [(10, false), (10, true), (0, false), (0, true)] {
        let mut pair = atomic_write_waits(timeout, probed);
        let rest = pair.hosts[0].memory.get_mut().len() - PAGE;
        pair.hosts[0].memory.get_mut().truncate(rest);
        pair.run(1_000_000_000);
        let statuses = pair.statuses(0);
        assert_eq!(
            statuses[1],
            (2, WcStatus::LocProtErr),
            "{timeout}, {probed}"
        );
        assert_eq!(pair.qps[0].state(), State::Err);
    }
}

/// An older WRITE does not wait for that page: a probe asks for its acknowledgement.
#[test]
fn atomic_write_that_is_repeated_does_not_delay_a_write() {
    for timeout in [10, 0] {
        let mut pair = after_a_lost_response(timeout);
        let last = pair.qps[0].sq_psn().wrapping_add(19);
        pair.post(0, wr(SendOp::Read, 2, 20 * 1024), TO);
        pair.post(0, wr(SendOp::Write, 3, 100), FROM);
        post_atomic_write(&mut pair, 4, MEMORY - 8);
        pair.post(0, wr(SendOp::Read, 5, 1024), TO);
        pair.execute();
        pair.transmit(1);
        lose(&mut pair, last);
        lose(&mut pair, last.wrapping_add(2));
        pair.hosts[0].absent.get_mut().insert(MEMORY / PAGE - 1);
        run_with_page_faults(&mut pair, 1_000_000_000);
        let done = [1, 2, 3, 4, 5].map(|id| (id, WcStatus::Success));
        assert_eq!(pair.statuses(0), done[..3], "timeout {timeout}");
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
        pair.hosts[0].absent.get_mut().clear();
        pair.run(1_000_000_000);
        assert_eq!(pair.statuses(0), done, "timeout {timeout}");
    }
}

/// The response of an ATOMIC WRITE arrives while its probe waits for a page. That of the next one
/// is on its way: no probe of that is sent, which would wait, too, and what follows with it.
#[test]
fn probe_ends_with_its_request() {
    let mut pair = after_a_lost_response(10);
    let psn = pair.qps[0].sq_psn();
    post_atomic_write(&mut pair, 2, MEMORY - 8);
    post_atomic_write(&mut pair, 3, MEMORY - 8);
    pair.execute();
    pair.transmit(1);
    pair.drop_in_flight();
    pair.hosts[0].absent.get_mut().insert(MEMORY / PAGE - 1);
    while pair.hosts[0].faulted.get_mut().is_empty() {
        pair.now = pair.qps[0].poll_timeout().expect("a probe");
        pair.qps[0].handle_timeout(pair.now, &mut pair.hosts[0]);
        pair.transmit(0);
    }
    let aeth = Aeth::new(Syndrome::Ack { credits: 0x1f }, Msn::new(2));
    let bth = Bth::new(Opcode::rc(Operation::ReadRespOnly), Qpn::new(0x11), psn);
    pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
    assert_eq!(pair.statuses(0), [1, 2].map(|id| (id, WcStatus::Success)));
    pair.post(0, wr(SendOp::Write, 4, 100), FROM);
    pair.transmit(0);
    assert_eq!(pair.packets_in_flight().count(), 1, "the WRITE waits");
}

/// Nothing is lost: the peer owes no acknowledgement until a probe asks for it, which waits for a
/// page.
#[test]
fn page_fault_of_a_probe_uses_no_retries() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.qps[0].attrs.retry_cnt = 0;
    pair.hosts[0].unacknowledged_limit = 32;
    pair.post(0, wr(SendOp::Write, 1, 100), FROM + PAGE);
    pair.run(1_000_000);
    for id in 2..=3 {
        let mut write = wr(SendOp::Write, id, 100);
        write.flags.signaled = false;
        pair.post(0, write, FROM + PAGE * id as usize);
    }
    pair.transmit(0);
    pair.hosts[0].absent.get_mut().insert(FROM / PAGE + 3);
    run_with_page_faults(&mut pair, 1_000_000_000);
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
}

/// A probe repeats the oldest request, which waits for a page, and is acknowledged meanwhile. Those
/// behind it have been lost.
#[test]
fn acknowledged_while_its_probe_waits_for_a_page() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.qps[0].attrs.timeout = 14;
    pair.link.loss = 1.0;
    let first = pair.qps[0].sq_psn();
    for id in 1..=3 {
        pair.post(0, wr(SendOp::Write, id, 100), FROM + PAGE * id as usize);
    }
    pair.transmit(0);
    pair.hosts[0].absent.get_mut().insert(FROM / PAGE + 1);
    while pair.hosts[0].faulted.get_mut().is_empty() {
        pair.now = pair.qps[0].poll_timeout().expect("a probe");
        pair.qps[0].handle_timeout(pair.now, &mut pair.hosts[0]);
        pair.transmit(0);
    }
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
    let aeth = Aeth::new(Syndrome::Ack { credits: 0x1f }, Msn::new(1));
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), first);
    pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
    pair.transmit(0);
    assert!(pair.qps[0].poll_timeout().is_some(), "nothing will happen");
    pair.link.loss = 0.0;
    pair.hosts[0].absent.get_mut().clear();
    // As the acknowledgement says.
    pair.qps[1].set_rq_psn(first.next());
    pair.run(1_000_000_000);
    assert_eq!(pair.qps[0].in_flight(), 0, "the others have not arrived");
}

/// A READ has to be repeated, which waits for the response to the one before it because the window
/// has shrunk, and behind them a WRITE waits for a page. When that is there the READs wait for the
/// peer, not for the page: after an outage they are repeated, and if the peer is gone they fail.
#[test]
fn outage_behind_a_page_fault() {
    for outage in [100_000_000, 10_000_000_000] {
        let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        for qp in &mut pair.qps {
            // Neither side keeps packets.
            qp.attrs.token = 0;
        }
        pair.qps[0].attrs.timeout = 14;
        let first = pair.qps[0].sq_psn();
        let page = MEMORY - PAGE;
        pair.hosts[0].absent.get_mut().insert(page / PAGE);
        pair.post(0, wr(SendOp::Read, 1, 10 * 1024), 0);
        pair.post(0, wr(SendOp::Read, 2, 240 * 1024), 0x4000);
        pair.post(0, wr(SendOp::Read, 3, 1024), 0x50000);
        pair.post(0, wr(SendOp::Write, 4, 100), page);
        pair.transmit(0);
        let (second, last) = (first.wrapping_add(10), first.wrapping_add(9));
        assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == second), 1);
        while pair.deliver_next() {}
        pair.transmit(1);
        assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == last), 1);
        while pair.deliver_next() {}
        pair.transmit(0);
        assert_eq!(pair.hosts[0].counts[Count::SequenceNakReceived], 1);
        assert_eq!(pair.packets_in_flight().count(), 0, "nothing waits");
        pair.hosts[0].absent.get_mut().clear();
        pair.link.loss = 1.0;
        pair.run(outage);
        pair.link.loss = 0.0;
        pair.run(1_000_000_000);
        let done = pair.statuses(0);
        if outage > 1_000_000_000 {
            assert_eq!(done.first(), Some(&(1, WcStatus::RetryExcErr)));
        } else {
            assert_eq!(done, [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));
        }
    }
}

/// A frame whose buffer causes a page fault is dropped and counted, and the next one uses the
/// receive WQE.
#[test]
fn raw_frames_are_not_deferred() {
    let mut pair = Pair::of(Service::Raw, 2, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    let (qp, host) = (&mut pair.qps[1], &mut pair.hosts[1]);
    host.receives.push_back(RecvBuf {
        wr_id: 7,
        at: 0,
        len: 1000,
    });
    host.absent.get_mut().insert(0);
    qp.handle_frame(&Payload::from_slice(&[5; 60]), host);
    assert_eq!(host.counts[Count::PageFaultDropped], 1);
    assert_eq!(host.counts[Count::NoReceive], 0);
    assert!(host.received.is_empty());
    host.absent.get_mut().clear();
    qp.handle_frame(&Payload::from_slice(&[6; 60]), host);
    assert_eq!(host.received.len(), 1);
    assert_eq!(host.received[0].0.wr_id, 7);
    assert_eq!(host.counts[Count::PageFaultDropped], 1);
}

/// A NAK is delayed because the one before it was spurious: the network reorders packets. The
/// expected packet arrives meanwhile and causes a page fault. It is not requested again, however
/// long the page fault takes.
#[test]
fn no_nak_for_a_deferred_packet() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let first = pair.qps[1].rq_psn();
    let write = |pair: &mut Pair, psn: Psn| {
        let bth = Bth::new(Opcode::rc(Operation::WriteOnly), Qpn::new(0x12), psn);
        pair.inject(1, Headers::new(bth).reth(REMOTE, RKEY, 8), &[7; 8]);
    };
    // The third packet overtakes the first, which the peer sends again after the NAK.
    for n in [2, 0, 0] {
        write(&mut pair, first.wrapping_add(n));
    }
    let naks = |pair: &Pair| pair.hosts[1].counts[Count::SequenceNakSent];
    assert_eq!(naks(&pair), 1);
    assert_eq!(pair.hosts[1].counts[Count::SpuriousNak], 1);
    pair.hosts[1]
        .absent
        .get_mut()
        .insert(REMOTE as usize / PAGE);
    for n in [3, 1] {
        write(&mut pair, first.wrapping_add(n));
    }
    assert_eq!(pair.deferred_packets, 1);
    for _ in 0..10 {
        pair.now += 200_000;
        let (now, host) = (pair.now, &mut pair.hosts[1]);
        pair.qps[1].handle_timeout(now, host);
    }
    assert_eq!(naks(&pair), 1, "the expected packet has arrived");
    // The page fault ends: the next packet ahead shows what was dropped.
    while pair.qps[1].rq_psn() != first.wrapping_add(2) {
        assert!(pair.step());
    }
    write(&mut pair, first.wrapping_add(3));
    assert_eq!(naks(&pair), 2);
}

/// A pause after a full queue ends although the timers do not run, because responses wait.
#[test]
fn pause_ends_without_the_timer() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let now = pair.now;
    pair.qps[0].on_congestion(now);
    pair.post(0, wr(SendOp::Write, 1, 100), 0);
    pair.transmit(0);
    assert_eq!(pair.packets_in_flight().count(), 0);
    let resume = pair.qps[0].poll_resume().expect("the end of the pause");
    pair.now = resume;
    pair.transmit(0);
    assert_eq!(pair.packets_in_flight().count(), 1);
    assert_eq!(pair.qps[0].poll_resume(), None);
}
