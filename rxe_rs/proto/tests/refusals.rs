// SPDX-License-Identifier: GPL-2.0
//! One request that cannot succeed amid a random mixture of others, over links with random
//! impairments (IBTA 9.9.2): it completes with the status of its fault, all before it with success,
//! and all behind it is flushed.
//!
//! What the requester finds itself has its status even if packets are lost, as the peer lives until
//! then. What the peer refuses has the status of its NAK as well, however the network delays and
//! duplicates packets, with two exceptions: a packet to the requester was lost, or responses can
//! overtake others and a side keeps no packets, so that the requester drops them. The peer is then
//! in ERR and neither repeats the NAK nor answers a repeated request, and the oldest request
//! without a response, the refused one or one before it, exhausts its retries (RETRY_EXC_ERR). The
//! peer has executed all before the refused one, but the requester cannot know that.
#![cfg(feature = "sim")]

use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{FlushKind, LocalOp, SendBody, SendOp, SendWr};
use rxe_proto::engine::State;
use rxe_proto::ids::RKey;
use rxe_proto::sim::random::{one_of, rate, MTUS};
use rxe_proto::sim::{seeds, set_addend, set_flush, set_remote, set_rkey, wr, Link, Pair, RecvBuf};
use rxe_proto::wire::feth::Selectivity;
use std::ops::Range;

/// Bytes of memory on each side: the word of ATOMICs, then a range for each buffer and target,
/// which are as many as there are requests.
const MEMORY: usize = 3 << 20;
const WORD: usize = 0;
const FIRST_RANGE: usize = 64;
/// The longest message.
const MAX_LEN: u32 = 16_000;
/// A key of no region.
const BAD_KEY: RKey = RKey(5);
/// The key of local operations, of which the simulator keeps no state.
const OTHER_KEY: RKey = RKey(77);
/// The requests before the refused one are fewer.
const MAX_BEFORE: u64 = 24;
const ROUNDS: usize = 24;
const SECOND: u64 = 1_000_000_000;

const OPERATIONS: [SendOp; 15] = [
    SendOp::Send,
    SendOp::SendImm,
    SendOp::Write,
    SendOp::Write,
    SendOp::WriteImm,
    SendOp::Read,
    SendOp::Read,
    SendOp::Read,
    SendOp::FetchAdd,
    SendOp::CmpSwp,
    SendOp::AtomicWrite,
    SendOp::Flush,
    SendOp::LocalInv,
    SendOp::BindMw,
    SendOp::RegMr,
];

/// Why a request cannot succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// It is invalid.
    Request,
    /// Its own buffer cannot be accessed.
    Buffer,
    /// The peer has no region with its key.
    Key,
    /// The receive request of the peer is too short for it.
    ShortReceive,
    /// The buffer of that receive request cannot be accessed.
    BadReceive,
}

impl Fault {
    const ALL: [Self; 7] = [
        Self::Request,
        Self::Buffer,
        Self::Key,
        Self::Key,
        Self::Key,
        Self::ShortReceive,
        Self::BadReceive,
    ];

    /// The operations that can have it.
    fn operations(self) -> &'static [SendOp] {
        match self {
            Self::Request => &OPERATIONS,
            Self::Buffer => &[
                SendOp::Send,
                SendOp::SendImm,
                SendOp::Write,
                SendOp::WriteImm,
                SendOp::Read,
                SendOp::FetchAdd,
                SendOp::CmpSwp,
                SendOp::AtomicWrite,
            ],
            Self::Key => &[
                SendOp::Write,
                SendOp::WriteImm,
                SendOp::Read,
                SendOp::FetchAdd,
                SendOp::CmpSwp,
                SendOp::AtomicWrite,
                SendOp::Flush,
            ],
            Self::ShortReceive | Self::BadReceive => &[SendOp::Send, SendOp::SendImm],
        }
    }

    /// The status of the request.
    fn status(self) -> WcStatus {
        match self {
            Self::Request => WcStatus::LocQpOpErr,
            Self::Buffer => WcStatus::LocProtErr,
            Self::Key => WcStatus::RemAccessErr,
            Self::ShortReceive => WcStatus::RemInvReqErr,
            Self::BadReceive => WcStatus::RemOpErr,
        }
    }

    /// The status of the oldest receive request of the peer that does not succeed.
    fn status_of_receive(self) -> WcStatus {
        match self {
            Self::ShortReceive => WcStatus::LocLenErr,
            Self::BadReceive => WcStatus::LocProtErr,
            Self::Request | Self::Buffer | Self::Key => WcStatus::WrFlushErr,
        }
    }

    /// The peer finds it and enters ERR.
    fn is_of_peer(self) -> bool {
        !matches!(self, Self::Request | Self::Buffer)
    }
}

/// The request that cannot succeed.
#[derive(Debug)]
struct Refused {
    side: usize,
    id: u64,
    fault: Fault,
    op: SendOp,
}

/// What a request leaves in the memory of a side.
struct Effect {
    by: usize,
    id: u64,
    on: usize,
    at: usize,
    data: Vec<u8>,
}

/// One connection, and what its sides have posted.
struct Mixture {
    seed: u64,
    pair: Pair,
    rng: fastrand::Rng,
    /// Length below which messages are.
    usual_len: u32,
    refused: Refused,
    effects: Vec<Effect>,
    /// Address of the next range of each side that is not in use.
    free: [usize; 2],
    posted: [u64; 2],
    signaled: [Vec<u64>; 2],
    /// The requests of each side that take a receive request of the peer.
    messages: [Vec<u64>; 2],
    flushes: [Vec<u64>; 2],
    /// The ATOMICs of each side, and the word of the peer after each.
    words: [Vec<(u64, u64)>; 2],
    /// Receives for what the peer has posted, which may come late.
    owed: [Vec<RecvBuf>; 2],
    is_sqd: [bool; 2],
}

impl Mixture {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0xfa11);
        let link = Link {
            loss: rate(&mut rng, 0.05),
            duplicate: rate(&mut rng, 0.2),
            reorder: one_of(&mut rng, &[0.0, 0.05, 0.2]),
            busy: rate(&mut rng, 0.2),
            mark: rate(&mut rng, 0.05),
            packet_ns: one_of(&mut rng, &[0, 1000, 5000]),
            latency_ns: one_of(&mut rng, &[2_000, 5_000, 100_000, 1_000_000]),
            ..Link::PERFECT
        };
        let mut pair = Pair::new(seed, link, one_of(&mut rng, &MTUS), MEMORY);
        pair.same_host = [rng.bool(), rng.bool()];
        pair.max_by_reference = one_of(&mut rng, &[0, 1 << 16]);
        pair.evict = one_of(&mut rng, &[0.0, 0.0, 0.5]);
        pair.forget = rate(&mut rng, 0.3);
        pair.gso_max_segs = match pair.link.reorder > 0.0 {
            // While a side suspects that a device damages batches, it has no responses kept.
            true => 1,
            false => one_of(&mut rng, &[1, 2, 15]),
        };
        for side in 0..2 {
            let resources = one_of(&mut rng, &[1, 2, 3, 4, 16, 128]);
            pair.set_max_dest_rd_atomic(1 - side, resources);
            let attrs = &mut pair.qps[side].attrs;
            attrs.max_rd_atomic = rng.u8(1..=resources);
            attrs.min_rnr_timer = rng.u8(1..18);
            attrs.timeout = one_of(&mut rng, &[12, 14, 16]);
            attrs.remote_flush = 3;
            if rng.u8(0..4) == 0 {
                // No selective repeat: the side keeps no packets.
                attrs.token = 0;
            }
            let host = &mut pair.hosts[side];
            host.unacknowledged_limit = one_of(&mut rng, &[0, 4, 16]);
            host.waits_for_events = rng.bool();
            host.flush_step = one_of(&mut rng, &[usize::MAX, 3000]);
            host.memory.get_mut().fill(0);
        }
        let fault = one_of(&mut rng, &Fault::ALL);
        let refused = Refused {
            side: rng.usize(0..2),
            id: rng.u64(1..MAX_BEFORE),
            fault,
            op: one_of(&mut rng, fault.operations()),
        };
        let usual_len = one_of(&mut rng, &[200, 2000, MAX_LEN]);
        Self {
            seed,
            pair,
            rng,
            usual_len,
            refused,
            effects: Vec::new(),
            free: [FIRST_RANGE; 2],
            posted: [0; 2],
            signaled: Default::default(),
            messages: Default::default(),
            flushes: Default::default(),
            words: Default::default(),
            owed: Default::default(),
            is_sqd: [false; 2],
        }
    }

    /// A range of the memory of a side that nothing else uses; a gap of at least 8 bytes follows.
    fn range(&mut self, side: usize, len: u32) -> Range<usize> {
        let at = self.free[side];
        let end = at + len as usize;
        self.free[side] = (end + 15) & !7;
        assert!(self.free[side] <= MEMORY);
        at..end
    }

    /// Such a range with random data, none of whose bytes is 0.
    fn data(&mut self, side: usize, len: u32) -> (usize, Vec<u8>) {
        let range = self.range(side, len);
        let data: Vec<u8> = range.clone().map(|_| self.rng.u8(1..)).collect();
        self.pair.hosts[side].memory.get_mut()[range.clone()].copy_from_slice(&data);
        (range.start, data)
    }

    /// Posts the next request of a side: the one that cannot succeed, or a random one.
    fn post(&mut self, side: usize) {
        let refused = &self.refused;
        match side == refused.side && self.posted[side] == refused.id {
            true => self.post_op(side, refused.op, Some(refused.fault)),
            false => {
                let op = one_of(&mut self.rng, &OPERATIONS);
                self.post_op(side, op, None);
            }
        }
    }

    fn post_op(&mut self, side: usize, op: SendOp, fault: Option<Fault>) {
        let id = self.posted[side];
        self.posted[side] += 1;
        let len = match op {
            SendOp::FetchAdd | SendOp::AtomicWrite | SendOp::CmpSwp => 8,
            SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr => 0,
            _ if fault.is_none() && self.rng.u8(0..6) == 0 => 0,
            _ => self.rng.u32(1..self.usual_len),
        };
        let mut request = wr(op, id, len);
        request.flags.signaled = self.rng.bool();
        request.flags.fence = self.rng.u8(0..8) == 0;
        request.flags.solicited = self.rng.bool();
        if request.flags.signaled {
            self.signaled[side].push(id);
        }
        let buffer = self.plan(side, op, &mut request);
        let peer = 1 - side;
        match fault {
            None => {}
            Some(Fault::Request) => {
                return self.pair.post_invalid(side, request, WcStatus::LocQpOpErr);
            }
            Some(Fault::Buffer) => self.pair.hosts[side].bad_local.push(id as u32),
            Some(Fault::Key) => set_rkey(&mut request, BAD_KEY),
            Some(Fault::ShortReceive) => self.owed[peer].last_mut().unwrap().len = len - 1,
            Some(Fault::BadReceive) => self.owed[peer].last_mut().unwrap().at = MEMORY,
        }
        self.pair.post(side, request, buffer);
    }

    /// Completes a request and notes what it does; returns where its buffer is.
    fn plan(&mut self, side: usize, op: SendOp, request: &mut SendWr) -> usize {
        let (peer, id, len) = (1 - side, request.wr_id, request.length);
        match op {
            SendOp::Send | SendOp::SendImm => {
                let (buffer, data) = self.data(side, len);
                let longer = self.rng.u32(0..3);
                let to = self.range(peer, len + longer).start;
                self.expect_message(side, id, to, len + longer);
                self.expect(side, id, peer, to, data);
                buffer
            }
            SendOp::Write | SendOp::WriteImm | SendOp::AtomicWrite => {
                let (buffer, data) = self.data(side, len);
                let to = self.range(peer, len).start;
                set_remote(request, to as u64);
                self.expect(side, id, peer, to, data);
                if op == SendOp::WriteImm {
                    self.expect_message(side, id, 0, 0);
                }
                buffer
            }
            SendOp::Read => {
                let (from, data) = self.data(peer, len);
                let buffer = self.range(side, len).start;
                set_remote(request, from as u64);
                self.expect(side, id, side, buffer, data);
                buffer
            }
            SendOp::FetchAdd | SendOp::CmpSwp => {
                let buffer = self.range(side, len).start;
                let old = self.words[side].last().map_or(0, |(_, word)| *word);
                set_remote(request, WORD as u64);
                let new = match &mut request.body {
                    SendBody::CmpSwp { compare, swap, .. } => {
                        (*compare, *swap) = (old, old + 1000);
                        *swap
                    }
                    _ => {
                        set_addend(request, 1);
                        old + 1
                    }
                };
                self.words[side].push((id, new));
                self.expect(side, id, side, buffer, old.to_ne_bytes().to_vec());
                buffer
            }
            SendOp::Flush => {
                let to = self.range(peer, len).start;
                set_remote(request, to as u64);
                let kind = FlushKind {
                    placement: self.rng.u8(1..=3),
                    selectivity: Selectivity::Range,
                };
                set_flush(request, kind);
                self.flushes[side].push(id);
                0
            }
            _ => {
                match &mut request.body {
                    SendBody::Local(LocalOp::Invalidate(key)) => *key = OTHER_KEY,
                    SendBody::Local(LocalOp::Bind(bind)) => bind.key = OTHER_KEY,
                    SendBody::Local(LocalOp::Register(register)) => register.key = OTHER_KEY,
                    body => panic!("{body:?} is not local"),
                }
                0
            }
        }
    }

    fn expect(&mut self, by: usize, id: u64, on: usize, at: usize, data: Vec<u8>) {
        self.effects.push(Effect {
            by,
            id,
            on,
            at,
            data,
        });
    }

    fn expect_message(&mut self, by: usize, wr_id: u64, at: usize, len: u32) {
        self.messages[by].push(wr_id);
        self.owed[1 - by].push(RecvBuf { wr_id, at, len });
    }

    fn receive(&mut self, side: usize) {
        let receives = self.owed[side].drain(..);
        self.pair.hosts[side].receives.extend(receives);
    }

    /// True if both sides keep packets that overtake others.
    fn keep(&self) -> bool {
        self.pair.qps.iter().all(|qp| qp.attrs.token != 0)
    }

    /// Loses a READ of each side until it is sent with a mark: the response to that shows the side
    /// that the peer keeps packets.
    fn negotiate(&mut self) {
        if !self.keep() {
            return;
        }
        let link = core::mem::replace(&mut self.pair.link, Link::PERFECT);
        for side in 0..2 {
            let marked = self.pair.with_reserved_bits[side];
            self.post_op(side, SendOp::Read, None);
            self.pair.transmit(side);
            while self.pair.with_reserved_bits[side] == marked {
                self.pair.drop_in_flight();
                assert!(self.pair.step(), "{}", self.context());
                self.pair.transmit(side);
            }
            while self.pair.hosts[side].outstanding() > 0 {
                assert!(self.pair.step(), "{}", self.context());
            }
        }
        self.pair.link = link;
    }

    fn run(&mut self) {
        self.negotiate();
        for _ in 0..ROUNDS {
            for side in 0..2 {
                if self.rng.u8(0..10) == 0 {
                    self.is_sqd[side] ^= true;
                    let state = match self.is_sqd[side] {
                        true => State::Sqd,
                        false => State::Rts,
                    };
                    self.pair.set_state(side, state);
                }
                self.pair.hosts[side].full ^= self.rng.u8(0..10) == 0;
                if self.rng.u8(0..15) == 0 {
                    self.pair.qps[side].path_changed();
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
        }
        while self.posted[self.refused.side] <= self.refused.id {
            self.post(self.refused.side);
        }
        for side in 0..2 {
            self.receive(side);
            self.pair.hosts[side].full = false;
            self.pair.set_state(side, State::Rts);
        }
        self.pair.run(100 * SECOND);
    }

    fn check(&self) {
        let Refused {
            side, id, fault, ..
        } = self.refused;
        let failed = self.check_completions(side);
        let expected = (id, fault.status());
        let inexact = fault.is_of_peer() && self.may_miss_responses();
        match failed {
            Some((earlier, WcStatus::RetryExcErr)) if inexact => {
                assert!(earlier <= id, "{}: {earlier} failed", self.context());
            }
            _ => assert_eq!(failed, Some(expected), "{}", self.context()),
        }
        let failed_at_peer = self.check_completions(1 - side).map(|(_, status)| status);
        match fault.is_of_peer() {
            true => {
                let state = self.pair.qps[1 - side].state();
                assert_eq!(state, State::Err, "{}", self.context());
                let flushed = failed_at_peer.is_none_or(|status| status == WcStatus::WrFlushErr);
                assert!(flushed, "{}: {failed_at_peer:?}", self.context());
            }
            // The peer learns of the failure if it still waits for something.
            false => {
                let retries = failed_at_peer.is_none_or(|status| status == WcStatus::RetryExcErr);
                assert!(retries, "{}: {failed_at_peer:?}", self.context());
            }
        }
        self.check_receives();
        self.check_memory();
    }

    /// Responses to the refused request and those before it may not have been handled.
    fn may_miss_responses(&self) -> bool {
        self.pair.lost[self.refused.side] > 0 || self.pair.link.reorder > 0.0 && !self.keep()
    }

    /// Checks the send completions of a side: each request is complete, in order; those before the
    /// oldest that failed have succeeded, those behind it are flushed. Returns the oldest.
    fn check_completions(&self, side: usize) -> Option<(u64, WcStatus)> {
        let context = self.context();
        let statuses = self.pair.statuses(side);
        let good = statuses.iter().take_while(|wc| wc.1 == WcStatus::Success);
        let (good, bad) = statuses.split_at(good.count());
        let failed = bad.first().copied();
        let first_bad = failed.map_or(self.posted[side], |(id, _)| id);
        let signaled = self.signaled[side].iter().copied();
        let expected = signaled.take_while(|id| *id < first_bad);
        assert!(ids(good).eq(expected), "{context}, side {side}: {good:?}");
        let expected = first_bad..self.posted[side];
        assert!(ids(bad).eq(expected), "{context}, side {side}: {bad:?}");
        let mut behind = bad.iter().skip(1);
        let flushed = behind.all(|wc| wc.1 == WcStatus::WrFlushErr);
        assert!(flushed, "{context}, side {side}: {bad:?}");
        let state = match failed {
            Some(_) => State::Err,
            None => self.pair.qps[side].state(),
        };
        assert_eq!(self.pair.qps[side].state(), state, "{context}, side {side}");
        let left = self.pair.hosts[side].outstanding();
        assert_eq!(left, 0, "{context}, side {side}");
        failed
    }

    /// Number of requests of a side that have succeeded: those before the oldest that failed.
    fn succeeded(&self, side: usize) -> u64 {
        let statuses = self.pair.statuses(side);
        let failed = statuses.iter().find(|wc| wc.1 != WcStatus::Success);
        failed.map_or(self.posted[side], |wc| wc.0)
    }

    /// Number of requests of a side that the peer has executed at least, and at most.
    fn executed(&self, side: usize) -> (u64, u64) {
        let Refused { id, fault, op, .. } = self.refused;
        if side != self.refused.side {
            return (self.succeeded(side), self.posted[side]);
        }
        let takes_data = matches!(op, SendOp::Read | SendOp::FetchAdd | SendOp::CmpSwp);
        match fault == Fault::Buffer && takes_data {
            // It is found when the response arrives.
            true => (id, self.posted[side]),
            false => (id, id),
        }
    }

    /// Checks the receive completions: those of executed requests have succeeded; if the side is
    /// in ERR, the others are flushed, but that of a refused SEND has the status of its fault.
    fn check_receives(&self) {
        for side in 0..2 {
            let context = format!("{}, receives of side {side}", self.context());
            let host = &self.pair.hosts[side];
            let messages = &self.messages[1 - side];
            let received = host.received.iter().map(|(wc, _)| (wc.wr_id, wc.status));
            let received: Vec<_> = received.collect();
            let good = received.iter().take_while(|wc| wc.1 == WcStatus::Success);
            let (good, bad) = received.split_at(good.count());
            let (min, max) = self.executed(1 - side);
            let count_before = |end| messages.iter().filter(|id| **id < end).count();
            let permitted = count_before(min)..=count_before(max);
            assert!(permitted.contains(&good.len()), "{context}: {received:?}");
            let completed = messages.iter().copied().take(received.len());
            assert!(ids(&received).eq(completed), "{context}: {received:?}");
            if self.pair.qps[side].state() == State::Err {
                assert_eq!(received.len(), messages.len(), "{context}");
                assert!(host.receives.is_empty(), "{context}");
            }
            for (id, status) in bad {
                let of_refused = (1 - side, *id) == (self.refused.side, self.refused.id);
                let expected = match of_refused {
                    true => self.refused.fault.status_of_receive(),
                    false => WcStatus::WrFlushErr,
                };
                assert_eq!(*status, expected, "{context}: {received:?}");
            }
        }
    }

    /// Checks that requests have had their effects, and that those which the peer cannot have
    /// executed have had none.
    fn check_memory(&self) {
        for effect in &self.effects {
            let Effect { by, id, on, at, .. } = *effect;
            let memory = self.pair.hosts[on].memory.borrow();
            let found = &memory[at..at + effect.data.len()];
            let (min, max) = self.executed(by);
            // Data arrives behind the execution.
            let min = if by == on { self.succeeded(by) } else { min };
            // What fits into a receive that is too short may be there.
            let partial = self.refused.fault == Fault::ShortReceive;
            let partial = partial && (by, id) == (self.refused.side, self.refused.id);
            let context = || format!("{}, effect of {id} of side {by}", self.context());
            if id < min {
                assert!(found == effect.data, "{}", context());
            } else if id >= max && !partial {
                assert!(found.iter().all(|byte| *byte == 0), "{}", context());
            }
        }
        for side in 0..2 {
            let (min, max) = self.executed(side);
            let peer = &self.pair.hosts[1 - side];
            let flushes = &self.flushes[side];
            let count_before = |end| flushes.iter().filter(|id| **id < end).count();
            let flushed = peer.flushes.borrow().len();
            let permitted = count_before(min)..=count_before(max);
            assert!(
                permitted.contains(&flushed),
                "{}, FLUSHes of {side}",
                self.context()
            );
            let word = peer.memory.borrow()[WORD..WORD + 8].try_into().unwrap();
            let words = self.words[side].iter();
            let word_before = |end| {
                let mut executed = words.clone().rev().filter(|(id, _)| *id < end);
                executed.next().map_or(0, |(_, word)| *word)
            };
            let permitted = word_before(min)..=word_before(max);
            let word = u64::from_ne_bytes(word);
            assert!(permitted.contains(&word), "{}, {word}", self.context());
        }
    }

    /// What a failed assertion reports.
    fn context(&self) -> String {
        let Pair {
            link,
            hosts,
            qps,
            lost,
            ..
        } = &self.pair;
        let tokens = [qps[0].attrs.token, qps[1].attrs.token];
        let counts = [&hosts[0].counts, &hosts[1].counts];
        format!(
            "seed {}, {:?}, {link:?}, tokens {tokens:?}, lost {lost:?}, {counts:?}",
            self.seed, self.refused
        )
    }
}

/// The identifiers of completions.
fn ids(completions: &[(u64, WcStatus)]) -> impl Iterator<Item = u64> + '_ {
    completions.iter().map(|(id, _)| *id)
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn one_of_many_requests_is_refused() {
    for seed in seeds(1000) {
        let mut mixture = Mixture::new(seed);
        mixture.run();
        mixture.check();
    }
}
