// SPDX-License-Identifier: GPL-2.0
//! A requester and the responder of another driver. The responder keeps nothing that is ahead of
//! what it expects, sends one NAK for each gap and nothing more until the missing packet arrives,
//! and answers a duplicate by an ACK of all that it has executed, as rdma_rxe does.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::ids::{Msn, Mtu, Psn, Qpn};
use rxe_proto::sim::{seeds, wr, Link, Pair};
use rxe_proto::time::Instant;
use rxe_proto::wire::aeth::NakCode;
use rxe_proto::wire::{Aeth, Bth, Headers, Opcode, Packet, Syndrome};
use std::collections::VecDeque;

/// Packets of a message, and their payload in bytes.
const MESSAGE: u32 = 64;
const MTU: u32 = 1024;
/// How long a packet is on its way.
const DELAY_NS: u64 = 10_000;
/// How long it occupies the wire.
const PACKET_NS: u64 = 4_000;
/// Messages that are posted at the same time.
const POSTED: u64 = 16;

/// The responder and the network.
struct Responder {
    pair: Pair,
    loss: f64,
    expected: Psn,
    msn: u32,
    nak_sent: bool,
    /// Requests on their way: when they arrive, their PSN, whether they end a message and whether
    /// they request an acknowledgement.
    requests: VecDeque<(Instant, Psn, bool, bool)>,
    responses: VecDeque<(Instant, Psn, Syndrome, u32)>,
    wire_free: Instant,
}

impl Responder {
    fn new(seed: u64, loss: f64) -> Self {
        let mut pair = Pair::new(seed, Link::PERFECT, Mtu::Mtu1024, 1 << 17);
        pair.gso_max_segs = 1;
        pair.qps[0].attrs.timeout = 14;
        Self {
            loss,
            expected: pair.qps[0].sq_psn(),
            msn: 0,
            nak_sent: false,
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            wire_free: pair.now,
            pair,
        }
    }

    fn loses(&mut self) -> bool {
        self.pair.rng.f64() < self.loss
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        if !self.loses() {
            let at = self.pair.now.saturating_add(DELAY_NS);
            self.responses.push_back((at, psn, syndrome, self.msn));
        }
    }

    fn on_request(&mut self, psn: Psn, ends: bool, ack_req: bool) {
        let ack = Syndrome::Ack { credits: 31 };
        if psn.is_before(self.expected) {
            self.answer(self.expected.prev(), ack);
        } else if psn != self.expected {
            if !self.nak_sent {
                self.nak_sent = true;
                self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequence));
            }
        } else {
            self.nak_sent = false;
            self.msn += u32::from(ends);
            self.expected = psn.next();
            if ack_req {
                self.answer(psn, ack);
            }
        }
    }

    /// Sends what the requester has to send.
    fn transmit(&mut self) {
        self.pair.transmit(0);
        let sent: Vec<_> = self
            .pair
            .packets_in_flight()
            .map(|udp| Packet::parse(udp, udp.len()).expect("a valid packet"))
            .map(|packet| {
                (
                    packet.bth().psn,
                    packet.opcode().ends_message(),
                    packet.bth().ack_req,
                )
            })
            .collect();
        self.pair.drop_in_flight();
        for (psn, ends, ack_req) in sent {
            self.wire_free = self.wire_free.max(self.pair.now).saturating_add(PACKET_NS);
            if !self.loses() {
                let at = self.wire_free.saturating_add(DELAY_NS);
                self.requests.push_back((at, psn, ends, ack_req));
            }
        }
    }

    /// Advances to the next event.
    fn step(&mut self) {
        self.transmit();
        let request = self.requests.front().map(|next| next.0);
        let response = self.responses.front().map(|next| next.0);
        let timer = self.pair.qps[0].poll_timeout();
        let next = [request, response, timer].into_iter().flatten().min();
        self.pair.now = self.pair.now.max(next.expect("an event"));
        let now = self.pair.now;
        if timer.is_some_and(|at| at <= now) {
            self.pair.qps[0].handle_timeout(now, &mut self.pair.hosts[0]);
        }
        while let Some((at, psn, ends, ack_req)) = self.requests.front().copied() {
            if at > now {
                break;
            }
            self.requests.pop_front();
            self.on_request(psn, ends, ack_req);
        }
        while let Some((at, psn, syndrome, msn)) = self.responses.front().copied() {
            if at > now {
                break;
            }
            self.responses.pop_front();
            let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
            let headers = Headers::new(bth).aeth(Aeth::new(syndrome, Msn::new(msn)));
            self.pair.inject(0, headers, &[]);
        }
    }

    /// Has so many messages sent; returns the nanoseconds that takes.
    fn run(&mut self, messages: u64) -> u64 {
        let begin = self.pair.now;
        let mut posted = 0;
        while (self.pair.hosts[0].sent.len() as u64) < messages {
            while posted < messages && posted - (self.pair.hosts[0].sent.len() as u64) < POSTED {
                self.pair
                    .post(0, wr(SendOp::Write, posted, MESSAGE * MTU), 0);
                posted += 1;
            }
            self.step();
        }
        assert!(self.pair.hosts[0]
            .sent
            .iter()
            .all(|wc| wc.status == WcStatus::Success));
        self.pair.now.ns_since(begin)
    }
}

/// Losses are repaired without the acknowledgement timer, nearly always: the responder says nothing
/// if a retransmitted packet is lost again, but a probe of the oldest packet shows what it expects.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn loss_takes_a_few_round_trips() {
    const MESSAGES: u64 = 100;
    let total = |loss| {
        let (mut ns, mut timeouts) = (0, 0);
        for seed in seeds(8) {
            let mut responder = Responder::new(seed, loss);
            ns += responder.run(MESSAGES);
            timeouts += responder.pair.hosts[0].counts[Count::Timeout];
        }
        let messages = MESSAGES * seeds(8).count() as u64;
        (ns as f64, timeouts as f64 / messages as f64)
    };
    let (without, _) = total(0.0);
    for (loss, least, most_timeouts) in
        [(0.001, 0.6, 0.002), (0.01, 0.4, 0.005), (0.03, 0.15, 0.02)]
    {
        let (with, timeouts) = total(loss);
        let share = without / with;
        println!("loss {loss}: {share:.2} of the rate, {timeouts:.4} timeouts for each message");
        assert!(
            share >= least && timeouts <= most_timeouts,
            "loss {loss}: {share:.2}, {timeouts:.4}"
        );
    }
}
