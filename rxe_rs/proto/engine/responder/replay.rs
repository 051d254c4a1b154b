// SPDX-License-Identifier: GPL-2.0
//! What is kept of executed READs, ATOMICs and the like, and the duplicates of requests that are
//! answered from it.

use super::Responder;
use crate::engine::backend::{Backend, Count};
use crate::engine::qp::Qp;
use crate::engine::response::{PendingResponse, ResponseBody, NO_CREDITS};
use crate::ids::{Msn, Psn, RKey};
use crate::wire::aeth::Syndrome;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;

/// What is remembered of a READ or ATOMIC so that it can be answered again (IBTA vol1 9.7.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayEntry(Replayed);

impl ReplayEntry {
    /// What slots hold that were never used.
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

    /// What answers a duplicate request at `psn`, which lies before the expected one, and how many
    /// PSNs into it that is.
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
    /// A request that was executed before (IBTA vol1 9.7.5.1.1 to 9.7.5.1.5): acknowledge again,
    /// answer again, never execute again.
    ///
    /// What is answered again names the same key and address as the original: whoever does not know
    /// them can neither fetch an answer nor move the queue of those that are owed.
    pub(super) fn handle_duplicate(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        backend: &mut impl Backend,
    ) {
        let psn = packet.bth().psn;
        self.note_duplicate(now, psn, backend);
        let operation = packet.opcode().operation();
        if !takes_resource(operation) {
            // One acknowledgement of the newest request says it all.
            let wanted = packet.bth().ack_req || packet.opcode().ends_message();
            if wanted && self.resp.ack.is_none() {
                let newest = Psn::new(self.resp.epsn.get().wrapping_sub(1));
                self.resp.ack = Some((
                    newest,
                    Syndrome::Ack {
                        credits: NO_CREDITS,
                    },
                ));
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
                    backend.count(Count::ForeignDuplicate);
                    return;
                }
                if self.gso.on_duplicate_request(now, psn) {
                    backend.count(Count::SegmentationFallback);
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
            ) if packet
                .reth()
                .is_some_and(|reth| reth.rkey() == rkey && reth.va() == addr) =>
            {
                PendingResponse {
                    psn,
                    msn,
                    body: ResponseBody::Done,
                    first_time: false,
                }
            }
            _ => {
                backend.count(Count::ForeignDuplicate);
                return;
            }
        };
        // A peer that asks again goes on with all requests that follow (IBTA vol1 9.7.3.1), so
        // what is owed from here on would be sent twice, and the wanted responses would wait behind
        // those that the peer throws away. If this response is still to come, it needs no other.
        let mtu = self.attrs.mtu.bytes();
        if self
            .resp
            .pending
            .is_pending(backend.storage().pending, psn, mtu)
        {
            return;
        }
        if partial
            && !self
                .resp
                .pending
                .ends_before(backend.storage().pending, psn, mtu)
        {
            // It asks for a part only, to learn whether the rest is still to come. It is.
            return;
        }
        self.resp
            .pending
            .drop_from(backend.storage().pending, psn, mtu);
        // If there is no room the peer asks again.
        self.resp.pending.push(backend.storage().pending, response);
    }
}

/// True for requests that are answered by data and remembered until the peer has it.
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
