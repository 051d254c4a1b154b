// SPDX-License-Identifier: GPL-2.0
//! Delayed acknowledgements: they save packets on the way where each message has a reply, and never
//! become what a peer waits for.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::{State, ToSend};
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{run_together, seeds, wr, Link, Pair, RecvBuf};
use rxe_proto::time::Instant;
use rxe_proto::wire::{Bth, Headers, Opcode, Operation};

const MICROSECOND: u64 = 1_000;
/// How long the consumer of each side takes to reply.
const THINKS: u64 = 8 * MICROSECOND;
/// Maximum delay of an ACK.
const MAX_DELAY: u64 = 400 * MICROSECOND;
/// Messages after which ACKs are delayed.
const MIN_REPLIES: u64 = 16;
const LINK: Link = Link {
    latency_ns: 2 * MICROSECOND,
    packet_ns: 300,
    ..Link::PERFECT
};

/// A connection, and how many messages each side has sent.
struct Chat {
    pair: Pair,
    sent: [u64; 2],
}

impl Chat {
    fn new(seed: u64, link: Link) -> Self {
        Self {
            pair: Pair::new(seed, link, Mtu::Mtu1024, 1 << 16),
            sent: [0; 2],
        }
    }

    fn send(&mut self, side: usize, op: SendOp, len: u32) {
        let id = self.sent[side];
        self.sent[side] += 1;
        self.pair.hosts[1 - side].receives.push_back(RecvBuf {
            wr_id: id,
            at: 4096,
            len: 4096,
        });
        self.pair.post(side, wr(op, id, len), 0);
    }

    /// Lets `ns` nanoseconds pass.
    fn wait(&mut self, ns: u64) {
        let until = self.pair.now + ns;
        run_together(core::slice::from_mut(&mut self.pair), until, |_, _| {});
    }

    /// Runs until `done`, which must happen within a second; returns how long that took.
    fn until(&mut self, what: &str, done: impl Fn(&Pair) -> bool) -> u64 {
        let begin = self.pair.now;
        while !done(&self.pair) {
            assert!(self.pair.step(), "{what}: nothing happens any more");
            assert!(self.pair.now - begin < 1_000_000_000, "{what}");
        }
        self.pair.now - begin
    }

    /// A message that is awaited.
    fn deliver(&mut self, side: usize, op: SendOp, len: u32) {
        self.send(side, op, len);
        let sent = self.sent[side];
        let arrived = move |pair: &Pair| pair.hosts[1 - side].received.len() as u64 >= sent;
        self.until("a message", arrived);
    }

    /// A message of side 0 and a reply of side 1, each of them awaited.
    fn exchange(&mut self, op: SendOp, len: u32) {
        for side in [0, 1] {
            self.deliver(side, op, len);
            self.wait(THINKS);
        }
    }

    fn exchanges(&mut self, count: u64) {
        for _ in 0..count {
            self.exchange(SendOp::Send, 64);
        }
    }

    /// True if the last message of a side has been received and is not acknowledged.
    fn is_unacknowledged(&self, side: usize) -> bool {
        let all = self.pair.hosts[1 - side].received.len() as u64 == self.sent[side];
        all && self.pair.hosts[side].outstanding() == 1
    }

    /// All messages have arrived and completed.
    fn check(&self, what: &str) {
        for side in [0, 1] {
            let received = self.pair.hosts[1 - side].received.len() as u64;
            assert_eq!(received, self.sent[side], "{what}");
            assert_eq!(self.pair.hosts[side].outstanding(), 0, "{what}");
            assert_eq!(self.pair.qps[side].state(), State::Rts, "{what}");
        }
    }
}

/// When each message has a reply, its ACK arrives together with the reply; the ACKs of some
/// messages are not delayed from time to time.
#[test]
fn replies_carry_the_acknowledgement() {
    let mut chat = Chat::new(1, LINK);
    let mut delayed = Vec::new();
    for _ in 0..600 {
        chat.deliver(0, SendOp::Send, 64);
        chat.wait(THINKS);
        delayed.push(chat.is_unacknowledged(0));
        chat.deliver(1, SendOp::Send, 64);
        // One batch of packets.
        chat.wait(LINK.packet_ns);
        assert!(!chat.is_unacknowledged(0));
        chat.wait(THINKS);
    }
    let first = delayed.iter().position(|delayed| *delayed).unwrap() as u64;
    assert!((MIN_REPLIES..MIN_REPLIES + 2).contains(&first), "{first}");
    let count = delayed.iter().filter(|delayed| **delayed).count();
    assert!((540..570).contains(&count), "{count}");
    chat.wait(2 * MAX_DELAY);
    chat.check("chat");
    for side in [0, 1] {
        assert_eq!(chat.pair.hosts[side].counts[Count::DuplicateRequest], 0);
    }
}

/// SENDs and WRITEs of several packets; and a device that cannot send a batch.
#[test]
fn other_messages() {
    let with_data = [SendOp::SendImm, SendOp::WriteImm].map(|op| (op, 4000, 15));
    for (op, len, segs) in with_data.into_iter().chain([(SendOp::Send, 64, 1)]) {
        let mut chat = Chat::new(2, LINK);
        chat.pair.gso_max_segs = segs;
        for _ in 0..100 {
            chat.exchange(op, len);
        }
        chat.wait(2 * MAX_DELAY);
        chat.check("messages");
    }
}

/// Without a reply the ACK is sent after the maximum delay, and the next ones are not delayed.
#[test]
fn no_reply() {
    let mut chat = Chat::new(3, LINK);
    chat.exchanges(3 * MIN_REPLIES);
    chat.send(0, SendOp::Send, 64);
    let took = chat.until("an ACK", |pair| pair.hosts[0].outstanding() == 0);
    assert!((MAX_DELAY..MAX_DELAY + THINKS).contains(&took), "{took}");
    for _ in 0..3 {
        chat.wait(THINKS);
        chat.send(0, SendOp::Send, 64);
        let took = chat.until("an ACK", |pair| pair.hosts[0].outstanding() == 0);
        assert!(took < THINKS, "{took}");
    }
    assert_eq!(chat.pair.hosts[1].counts[Count::DuplicateRequest], 0);
    chat.check("no reply");
}

/// A second message before the reply: both are acknowledged at once.
#[test]
fn second_message() {
    let mut chat = Chat::new(4, LINK);
    chat.exchanges(3 * MIN_REPLIES);
    chat.send(0, SendOp::Send, 64);
    chat.wait(THINKS);
    assert!(chat.is_unacknowledged(0));
    chat.send(0, SendOp::Send, 64);
    chat.wait(THINKS);
    chat.check("second message");
}

/// What releases an ACK: the owner of the QP, another state, a duplicate of the message.
#[test]
fn released() {
    let waiting = || {
        let mut chat = Chat::new(5, LINK);
        chat.exchanges(2 * MIN_REPLIES);
        chat.send(0, SendOp::Send, 64);
        chat.wait(THINKS);
        assert!(chat.is_unacknowledged(0));
        assert_eq!(
            chat.pair.qps[1].to_send(&chat.pair.hosts[1]),
            ToSend::Nothing
        );
        chat
    };
    let mut chat = waiting();
    chat.pair.qps[1].release_ack();
    assert_eq!(chat.pair.qps[1].to_send(&chat.pair.hosts[1]), ToSend::Ack);
    chat.wait(THINKS);
    chat.check("released");

    let mut chat = waiting();
    chat.pair.qps[1].set_state(State::Sqd, &mut chat.pair.hosts[1]);
    chat.wait(THINKS);
    assert_eq!(chat.pair.hosts[0].outstanding(), 0);

    let mut chat = waiting();
    let psn = chat.pair.qps[1].rq_psn().prev();
    let mut bth = Bth::new(
        Opcode::rc(Operation::SendOnly),
        chat.pair.qps[1].attrs.qpn,
        psn,
    );
    bth.ack_req = true;
    chat.pair.inject(1, Headers::new(bth), &[0; 64]);
    chat.wait(THINKS);
    chat.check("duplicate");
}

/// A QP whose peer may retransmit soon delays nothing.
#[test]
fn short_timeout() {
    let mut chat = Chat::new(6, LINK);
    for qp in &mut chat.pair.qps {
        qp.attrs.timeout = 9;
    }
    chat.exchanges(3 * MIN_REPLIES);
    chat.send(0, SendOp::Send, 64);
    chat.wait(THINKS);
    chat.check("short timeout");
}

/// Nothing is delayed for processes that sleep until they are notified.
#[test]
fn sleeping_processes() {
    let mut chat = Chat::new(7, LINK);
    chat.pair.hosts[1].waits_for_events = true;
    chat.exchanges(3 * MIN_REPLIES);
    chat.send(0, SendOp::Send, 64);
    chat.wait(THINKS);
    chat.check("sleeping");
}

/// Streams of both sides, each of which waits for its own completion before the next message: no
/// ACK waits for the other side's.
#[test]
fn two_streams() {
    for (seed, thinks) in seeds(8).zip([0, 1, 2, 5, 10, 20, 50, 150].into_iter().cycle()) {
        let mut chat = Chat::new(seed, LINK);
        let begin = chat.pair.now;
        let mut next = [begin; 2];
        while chat.sent[0] < 400 || chat.sent[1] < 400 {
            for side in [0, 1] {
                if chat.pair.hosts[side].outstanding() == 0 && chat.pair.now >= next[side] {
                    chat.send(side, SendOp::Write, 64);
                    let pause = chat.pair.rng.u64(0..=2 * thinks) * MICROSECOND;
                    next[side] = chat.pair.now + pause;
                }
            }
            chat.wait(500);
        }
        let took = (chat.pair.now - begin) / 400;
        let alone = 2 * (LINK.latency_ns + LINK.packet_ns) + thinks * MICROSECOND;
        assert!(
            took < 3 * alone + 5 * MICROSECOND,
            "{thinks}: {took} {alone}"
        );
    }
}

/// A stream that has taken the place of a conversation, while the other side sends now and then, on
/// its own account: the ACKs of the stream do not wait for that for long.
#[test]
fn stream_beside_other_messages() {
    let mut chat = Chat::new(8, LINK);
    chat.exchanges(2 * MIN_REPLIES);
    let begin = chat.pair.now;
    let mut beats: Instant = begin;
    let streamed = chat.sent[0];
    while chat.pair.now - begin < 100_000 * MICROSECOND {
        if chat.pair.hosts[0].outstanding() == 0 {
            chat.send(0, SendOp::Send, 64);
        }
        if chat.pair.now >= beats {
            chat.send(1, SendOp::Send, 64);
            beats = chat.pair.now + 150 * MICROSECOND;
        }
        chat.wait(500);
    }
    // 5 us per message, but for 256 of them at most.
    let sent = chat.sent[0] - streamed;
    assert!(sent > (100_000 - 256 * 160) / 6, "{sent}");
}

/// Conversations on a path that loses, duplicates and reorders packets.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn lossy_path() {
    let rough = Link {
        loss: 0.02,
        duplicate: 0.02,
        corrupt: 0.01,
        reorder: 0.02,
        busy: 0.02,
        ..LINK
    };
    for seed in seeds(40) {
        let mut chat = Chat::new(seed, rough);
        for _ in 0..120 {
            chat.exchange(SendOp::Send, 64);
        }
        chat.wait(1_000_000_000);
        chat.check(&format!("seed {seed}"));
    }
}
