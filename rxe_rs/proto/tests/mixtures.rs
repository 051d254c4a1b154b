// SPDX-License-Identifier: GPL-2.0
//! Random mixtures of operations, attributes and events in both directions of a connection, over
//! links with random impairments: each request completes with success, as often as it was posted.
#![cfg(feature = "sim")]

use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{FlushKind, LocalOp, SendBody, SendOp, SendWr};
use rxe_proto::engine::State;
use rxe_proto::ids::RKey;
use rxe_proto::sim::random::{one_of, rate, MTUS};
use rxe_proto::sim::{seeds, set_addend, set_flush, set_remote, wr, Link, Pair, RecvBuf};
use rxe_proto::wire::feth::Selectivity;

/// Bytes of memory on each side: the word of atomic operations, then the targets of WRITEs and the
/// source of READs, the payload of requests, and what receives scatter to.
const MEMORY: usize = 1 << 20;
const WORD: u64 = 0;
const REMOTE: u64 = 0x80000;
const PAYLOAD: usize = 0x40000;
const RECEIVED: usize = 0xc0000;
/// The longest message.
const MAX_LEN: u32 = 100_000;
const SECOND: u64 = 1_000_000_000;

const OPERATIONS: [SendOp; 10] = [
    SendOp::Send,
    SendOp::WriteImm,
    SendOp::Write,
    SendOp::Write,
    SendOp::Read,
    SendOp::Read,
    SendOp::FetchAdd,
    SendOp::AtomicWrite,
    SendOp::Flush,
    SendOp::LocalInv,
];

/// One connection, and what each side must have received in the end.
struct Mixture {
    pair: Pair,
    rng: fastrand::Rng,
    /// Length below which most messages are.
    usual_len: u32,
    posted: [u64; 2],
    added: [u64; 2],
    flushed: [usize; 2],
    /// Receives for what the peer has posted, which may come late.
    owed: [Vec<RecvBuf>; 2],
    is_sqd: [bool; 2],
}

impl Mixture {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let link = Link {
            loss: rate(&mut rng, 0.05),
            duplicate: rate(&mut rng, 0.1),
            corrupt: rate(&mut rng, 0.02),
            reorder: rate(&mut rng, 0.1),
            busy: rate(&mut rng, 0.2),
            mark: rate(&mut rng, 0.05),
            packet_ns: one_of(&mut rng, &[0, 1000, 5000]),
            latency_ns: one_of(&mut rng, &[2_000, 5_000, 100_000, 1_000_000]),
            queue: one_of(&mut rng, &[u64::MAX, 200]),
            ..Link::PERFECT
        };
        let mut pair = Pair::new(seed, link, one_of(&mut rng, &MTUS), MEMORY);
        pair.same_host = [rng.bool(), rng.bool()];
        pair.max_by_reference = one_of(&mut rng, &[0, 1 << 16]);
        pair.evict = one_of(&mut rng, &[0.0, 0.05, 0.5]);
        pair.forget = rate(&mut rng, 0.3);
        pair.gso_max_segs = one_of(&mut rng, &[1, 2, 15]);
        for side in 0..2 {
            let depth = one_of(&mut rng, &[1, 2, 4, 16, 128]);
            pair.set_max_dest_rd_atomic(1 - side, depth);
            let attrs = &mut pair.qps[side].attrs;
            attrs.max_rd_atomic = depth;
            attrs.min_rnr_timer = rng.u8(1..18);
            attrs.timeout = one_of(&mut rng, &[12, 14, 14, 16]);
            if rng.u8(0..3) == 0 {
                // No selective repeat.
                attrs.token = 0;
            }
            pair.hosts[side].unacknowledged_limit = one_of(&mut rng, &[0, 4, 16]);
            pair.hosts[side].waits_for_events = rng.bool();
            pair.hosts[side].memory.borrow_mut()[..8].fill(0);
        }
        let usual_len = one_of(&mut rng, &[200, 2000, 20_000, MAX_LEN]);
        Self {
            pair,
            rng,
            usual_len,
            posted: [0; 2],
            added: [0; 2],
            flushed: [0; 2],
            owed: Default::default(),
            is_sqd: [false; 2],
        }
    }

    /// Posts a random request.
    fn post(&mut self, side: usize) {
        let id = self.posted[side];
        self.posted[side] += 1;
        let op = one_of(&mut self.rng, &OPERATIONS);
        let len = match op {
            SendOp::FetchAdd | SendOp::AtomicWrite => 8,
            SendOp::LocalInv => 0,
            _ if self.rng.u8(0..6) == 0 => 0,
            _ => self.rng.u32(0..self.usual_len),
        };
        let mut request = wr(op, id, len);
        request.flags.signaled = self.rng.bool();
        request.flags.fence = self.rng.u8(0..8) == 0;
        set_remote(&mut request, REMOTE);
        self.expect(1 - side, id, op, &mut request);
        self.pair.post(side, request, PAYLOAD);
    }

    /// Completes a request, and notes what `side`, the peer, will have received.
    fn expect(&mut self, side: usize, wr_id: u64, op: SendOp, request: &mut SendWr) {
        match op {
            SendOp::FetchAdd => {
                set_remote(request, WORD);
                set_addend(request, 1);
                self.added[side] += 1;
            }
            SendOp::Flush => {
                let kind = FlushKind {
                    placement: 1,
                    selectivity: Selectivity::Range,
                };
                set_flush(request, kind);
                self.flushed[side] += 1;
            }
            SendOp::LocalInv => request.body = SendBody::Local(LocalOp::Invalidate(RKey(77))),
            SendOp::Send | SendOp::WriteImm => self.owed[side].push(RecvBuf {
                wr_id,
                at: RECEIVED,
                len: MAX_LEN,
            }),
            _ => {}
        }
    }

    fn receive(&mut self, side: usize) {
        let receives = self.owed[side].drain(..);
        self.pair.hosts[side].receives.extend(receives);
    }

    fn run(&mut self) {
        for round in 0..60 {
            for side in 0..2 {
                if self.rng.u8(0..10) == 0 {
                    self.is_sqd[side] ^= true;
                    let state = if self.is_sqd[side] {
                        State::Sqd
                    } else {
                        State::Rts
                    };
                    self.pair.set_state(side, state);
                }
                for _ in 0..self.rng.usize(0..4) {
                    self.post(side);
                }
                if self.rng.u8(0..3) != 0 {
                    self.receive(side);
                }
            }
            for _ in 0..self.rng.usize(0..60) {
                self.pair.step();
            }
            if round % 20 == 19 {
                let pause = self.rng.u64(0..SECOND / 50);
                self.pair.run(pause);
            }
        }
        for side in 0..2 {
            self.receive(side);
            self.pair.set_state(side, State::Rts);
        }
        self.pair.run(100 * SECOND);
    }

    /// Checks that all has been done, once.
    fn check(&self, seed: u64) {
        for side in 0..2 {
            let host = &self.pair.hosts[side];
            let statuses = self.pair.statuses(side);
            let failed = statuses.iter().find(|(_, s)| *s != WcStatus::Success);
            assert_eq!(failed, None, "seed {seed}, side {side}: {:?}", host.counts);
            assert_eq!(self.pair.qps[side].state(), State::Rts, "seed {seed}");
            assert_eq!(host.outstanding(), 0, "seed {seed}: requests are left");
            assert!(host.receives.is_empty(), "seed {seed}: receives are left");
            let word = host.memory.borrow()[..8].try_into().unwrap();
            assert_eq!(u64::from_ne_bytes(word), self.added[side], "seed {seed}");
            assert_eq!(
                host.flushes.borrow().len(),
                self.flushed[side],
                "seed {seed}"
            );
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn every_request_succeeds() {
    for seed in seeds(1000) {
        let mut mixture = Mixture::new(seed);
        mixture.run();
        mixture.check(seed);
    }
}
