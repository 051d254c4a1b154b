// SPDX-License-Identifier: GPL-2.0
//! Responder resources of executed READs, ATOMICs and the like, and the duplicate requests that
//! are answered from them.

use super::Responder;
use crate::engine::backend::{Backend, Count};
use crate::engine::qp::Qp;
use crate::engine::requester::packets;
use crate::engine::response::{PendingResponse, ResponseBody};
use crate::ids::{Msn, Psn, RKey};
use crate::time::Instant;
use crate::wire::aeth::Syndrome;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;

/// An executed READ or ATOMIC, stored to answer duplicates (IBTA 9.7.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayEntry(Replayed);

impl ReplayEntry {
    /// The value of unused entries.
    pub const EMPTY: Self = Self(Replayed::Nothing);
}

/// PSNs are those of [`Responder::extended_psn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Replayed {
    Nothing,
    Read {
        first: u64,
        count: u32,
        rkey: RKey,
        addr: u64,
        len: u32,
        msn: Msn,
    },
    Atomic {
        psn: u64,
        rkey: RKey,
        addr: u64,
        original: u64,
        msn: Msn,
    },
    /// ATOMIC WRITE or FLUSH.
    Done {
        psn: u64,
        rkey: RKey,
        addr: u64,
        msn: Msn,
    },
}

impl Responder {
    /// Copies the entries of `from`, of which `limit` are in use, to `to`, the oldest first: it is
    /// the first to be replaced.
    pub(in crate::engine) fn move_replay(
        &mut self,
        from: &[ReplayEntry],
        to: &mut [ReplayEntry],
        limit: u8,
    ) {
        let limit = usize::from(limit).min(from.len());
        let used = from.get(..limit).unwrap_or(&[]);
        let (newer, older) = used
            .split_at_checked(self.next_replay)
            .unwrap_or((&[], used));
        for (to, from) in to.iter_mut().zip(older.iter().chain(newer)) {
            *to = *from;
        }
        self.next_replay = limit;
    }

    pub(super) fn store_replay(&mut self, slots: &mut [ReplayEntry], entry: Replayed, limit: u8) {
        let limit = usize::from(limit).min(slots.len()).max(1);
        if self.next_replay >= limit {
            self.next_replay = 0;
        }
        if let Some(slot) = slots.get_mut(self.next_replay) {
            *slot = ReplayEntry(entry);
        }
        self.next_replay = self.next_replay.saturating_add(1);
    }

    /// The replay entry that contains `psn`, which is before the expected PSN, and the offset of
    /// `psn` in it.
    fn find_replay(&self, slots: &[ReplayEntry], psn: Psn) -> Option<(Replayed, u32)> {
        let age = u32::try_from(self.epsn.delta(psn)).ok()?;
        let wide = self.extended_psn.wrapping_sub(age.into());
        slots.iter().find_map(|slot| {
            let (first, count) = match slot.0 {
                Replayed::Nothing => return None,
                Replayed::Read { first, count, .. } => (first, count),
                Replayed::Atomic { psn, .. } | Replayed::Done { psn, .. } => (psn, 1),
            };
            let at = u32::try_from(wide.wrapping_sub(first)).ok()?;
            (at < count).then_some((slot.0, at))
        })
    }
}

impl Qp {
    /// Handles a duplicate request (IBTA 9.7.5.1, IBTA 9.4.4): acknowledges or answers it again,
    /// but never executes it again.
    ///
    /// The duplicate must have the key and address of the original: an attacker who does not know
    /// them can neither obtain a response nor disturb the queue of pending responses.
    pub(super) fn handle_duplicate(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        backend: &mut impl Backend,
    ) {
        let psn = packet.bth().psn;
        // The peer keeps what follows this response, and does not request it again.
        let mark = self.request_mark(packet.bth());
        let missing = mark.is_some() && packet.bth().ack_req;
        self.note_duplicate(now, psn, backend);
        let operation = packet.opcode().operation();
        if !takes_resource(operation) {
            if self.gso.on_duplicate(now, psn) {
                backend.count(Count::GsoFallback);
            }
            // One ACK of the newest SEND or WRITE acknowledges all before it.
            let wanted = packet.bth().ack_req || packet.opcode().ends_message();
            if !wanted {
                return;
            }
            self.resp.delayed_ack.release();
            if self.resp.ack.is_none() {
                let (newest, _) = self.resp.acknowledgeable;
                self.resp.ack = Some((newest, Syndrome::ACK));
            }
            return;
        }
        let mut partial = false;
        let response = match (
            operation,
            self.resp.find_replay(backend.storage().replay, psn),
        ) {
            (
                Operation::ReadRequest,
                Some((
                    Replayed::Read {
                        rkey,
                        addr,
                        len,
                        msn,
                        ..
                    },
                    at,
                )),
            ) => {
                let skipped = at.saturating_mul(self.attrs.mtu.bytes());
                let rest = len.saturating_sub(skipped);
                let Some(reth) = packet.reth() else {
                    return;
                };
                // It must be a part of the original request.
                let same = reth.rkey() == rkey
                    && reth.va() == addr.wrapping_add(u64::from(skipped))
                    && reth.dma_len() <= rest;
                if !same {
                    backend.count(Count::DuplicateMismatch);
                    return;
                }
                let count = packets(reth.dma_len(), self.attrs.mtu.bytes());
                self.resp.merging.on_loss();
                let falls_back = match missing {
                    true => self.gso.on_missing_responses(now, psn, count),
                    false => self.gso.on_duplicate_request(now, psn),
                };
                if falls_back {
                    backend.count(Count::GsoFallback);
                }
                partial = reth.dma_len() < rest;
                let body = ResponseBody::Read {
                    rkey,
                    addr: reth.va(),
                    len: reth.dma_len(),
                    sent: 0,
                };
                PendingResponse {
                    psn,
                    msn,
                    body,
                    first_time: false,
                }
            }
            (
                Operation::CmpSwap | Operation::FetchAdd,
                Some((
                    Replayed::Atomic {
                        rkey,
                        addr,
                        original,
                        msn,
                        ..
                    },
                    _,
                )),
            ) if packet
                .atomic_eth()
                .is_some_and(|eth| eth.rkey() == rkey && eth.va() == addr) =>
            {
                PendingResponse {
                    psn,
                    msn,
                    body: ResponseBody::Atomic { original },
                    first_time: false,
                }
            }
            (
                Operation::AtomicWrite | Operation::Flush,
                Some((
                    Replayed::Done {
                        rkey, addr, msn, ..
                    },
                    _,
                )),
            ) if packet.reth().is_some_and(|reth| {
                // rdma_rxe repeats these requests with the address 0.
                reth.rkey() == rkey && (reth.va() == addr || reth.va() == 0)
            }) =>
            {
                PendingResponse {
                    psn,
                    msn,
                    body: ResponseBody::Done,
                    first_time: false,
                }
            }
            _ => {
                backend.count(Count::DuplicateMismatch);
                return;
            }
        };
        self.resp.kept.learn_token(mark);
        // A peer that retransmits a request also retransmits all later ones (IBTA 9.7.3), but one
        // that probes does not. So the responses that are pending stay, in the order of their PSNs,
        // and duplicates of their requests need no other.
        let mtu = self.attrs.mtu.bytes();
        let resources = self.attrs.max_dest_rd_atomic;
        let slots = backend.storage().pending;
        let queue = &mut self.resp.pending;
        if queue.is_pending(slots, psn, mtu) {
            return;
        }
        // If one packet of many is requested, the remaining responses are still pending.
        let is_probe = partial && !missing && !queue.ends_before(slots, psn, mtu);
        if is_probe || (!missing && queue.repeat(slots, response, mtu)) {
            return;
        }
        // If there is no room, the peer retransmits the request.
        queue.insert(slots, response, resources, mtu);
    }
}

/// True for requests that take a responder resource (IBTA A19).
pub(super) fn takes_resource(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest
            | Operation::CmpSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush
    )
}
