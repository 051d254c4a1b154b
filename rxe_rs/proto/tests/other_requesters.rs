// SPDX-License-Identifier: GPL-2.0
//! A responder and the requester of another driver. The requester goes back N, sends requests of
//! 64 packets, of which the last asks for an acknowledgement, and has one timer. Between the start
//! of a retransmission and the next ACK it ignores NAKs, as rdma_rxe does: a NAK that finds it in
//! that state is answered by the timer only.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::State;
use rxe_proto::ids::{Mtu, Psn, Qpn};
use rxe_proto::sim::{seeds, Link, Pair, REMOTE, RKEY};
use rxe_proto::time::Instant;
use rxe_proto::wire::aeth::NakCode;
use rxe_proto::wire::{Bth, Headers, Opcode, Operation, Packet, Syndrome};
use std::collections::VecDeque;

/// Payload of a packet, in bytes.
const MTU: u32 = 1024;
/// Packets of a message.
const MESSAGE: u32 = 64;
/// Packets that the requester sends without an acknowledgement.
const WINDOW: u32 = 128;
/// Time between two packets of the requester.
const TICK_NS: u64 = 10_000;
/// How long a response is on its way, in ticks.
const DELAY: u64 = 10;
/// Its timer, that of perftest.
const TIMEOUT_NS: u64 = 67_000_000;

/// The requester and the network.
struct Requester {
    pair: Pair,
    /// Probability that a packet is lost, in both directions.
    loss: f64,
    first: Psn,
    /// Packets that have been acknowledged, have been sent, and are to be sent.
    acknowledged: u32,
    sent: u32,
    end: u32,
    /// The greatest value of `sent`.
    newest: u32,
    /// A retransmission has begun, and nothing was acknowledged since by an ACK.
    retrying: bool,
    deadline: Instant,
    /// Responses on their way.
    responses: VecDeque<(Instant, Psn, Syndrome)>,
    timeouts: u32,
}

impl Requester {
    fn new(seed: u64, loss: f64, messages: u32) -> Self {
        let pair = Pair::new(seed, Link::PERFECT, Mtu::Mtu1024, 1 << 17);
        Self {
            loss,
            first: pair.qps[0].sq_psn(),
            acknowledged: 0,
            sent: 0,
            newest: 0,
            end: messages * MESSAGE,
            retrying: false,
            deadline: pair.now.saturating_add(TIMEOUT_NS),
            responses: VecDeque::new(),
            timeouts: 0,
            pair,
        }
    }

    fn loses(&mut self) -> bool {
        self.pair.rng.f64() < self.loss
    }

    /// Sends one packet of a WRITE.
    fn send(&mut self) {
        let (operation, last) = match self.sent % MESSAGE {
            0 => (Operation::WriteFirst, false),
            at if at == MESSAGE - 1 => (Operation::WriteLast, true),
            _ => (Operation::WriteMiddle, false),
        };
        let psn = self.first.wrapping_add(self.sent);
        self.sent += 1;
        self.newest = self.newest.max(self.sent);
        if self.loses() {
            return;
        }
        let mut bth = Bth::new(Opcode::rc(operation), Qpn::new(0x12), psn);
        bth.ack_req = last;
        let mut headers = Headers::new(bth);
        if operation == Operation::WriteFirst {
            headers = headers.reth(REMOTE, RKEY, MTU * MESSAGE);
        }
        self.pair.inject(1, headers, &[0x5a; MTU as usize]);
    }

    /// Takes an acknowledgement of all packets before the `upto`-th.
    fn on_response(&mut self, psn: Psn, syndrome: Syndrome) {
        let is_ack = matches!(syndrome, Syndrome::Ack { .. });
        let upto = psn.delta(self.first) + i32::from(is_ack);
        let Some(upto) = u32::try_from(upto).ok().filter(|upto| *upto <= self.newest) else {
            return;
        };
        if is_ack {
            if upto > self.acknowledged {
                self.acknowledged = upto;
                self.sent = self.sent.max(upto);
                self.retrying = false;
                self.deadline = self.pair.now.saturating_add(TIMEOUT_NS);
            }
            return;
        }
        assert_eq!(syndrome, Syndrome::Nak(NakCode::PsnSequence));
        if upto >= self.acknowledged {
            self.acknowledged = upto;
            self.sent = self.sent.max(upto);
            if !self.retrying {
                self.go_back();
            }
        }
    }

    fn go_back(&mut self) {
        self.retrying = true;
        self.sent = self.acknowledged;
        self.deadline = self.pair.now.saturating_add(TIMEOUT_NS);
    }

    /// Sends a packet, and takes what the responder has sent.
    fn tick(&mut self) {
        self.pair.now = self.pair.now.saturating_add(TICK_NS);
        let now = self.pair.now;
        if self.sent < self.end && self.sent - self.acknowledged < WINDOW {
            self.send();
        }
        let [_, responder] = &mut self.pair.qps;
        if responder.poll_timeout().is_some_and(|at| at <= now) {
            responder.handle_timeout(now, &mut self.pair.hosts[1]);
        }
        self.pair.transmit(1);
        let answers: Vec<_> = self
            .pair
            .packets_in_flight()
            .map(|udp| Packet::parse(udp, udp.len()).expect("a valid packet"))
            .map(|packet| (packet.bth().psn, packet.aeth().expect("an AETH").syndrome()))
            .collect();
        self.pair.drop_in_flight();
        for (psn, syndrome) in answers {
            if !self.loses() {
                let at = now.saturating_add(DELAY * TICK_NS);
                self.responses.push_back((at, psn, syndrome));
            }
        }
        while let Some((at, psn, syndrome)) = self.responses.front().copied() {
            if at > now {
                break;
            }
            self.responses.pop_front();
            self.on_response(psn, syndrome);
        }
        if now >= self.deadline {
            self.timeouts += 1;
            self.go_back();
        }
    }

    /// Sends all messages.
    fn run(&mut self) {
        while self.acknowledged < self.end {
            self.tick();
            assert!(self.timeouts < 1000, "no progress");
        }
        assert_eq!(self.pair.qps[1].state(), State::Rts);
    }
}

/// What is left are retransmissions whose first packet is lost again: the requester ignores
/// everything until that arrives, and it sends that by its timer.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn few_timeouts() {
    const MESSAGES: u32 = 100;
    for (loss, at_most) in [(0.0, 0.0), (0.001, 0.002), (0.01, 0.015), (0.03, 0.12)] {
        let mut timeouts = 0;
        for seed in seeds(8) {
            let mut requester = Requester::new(seed, loss, MESSAGES);
            requester.run();
            timeouts += requester.timeouts;
            let responder = &requester.pair.hosts[1];
            assert_eq!(responder.counts[Count::SpuriousNak], 0, "seed {seed}");
        }
        let messages = MESSAGES * seeds(8).count() as u32;
        let share = f64::from(timeouts) / f64::from(messages);
        println!("loss {loss}: {share:.4} timeouts for each message");
        assert!(share <= at_most, "loss {loss}: {share:.4}");
    }
}
