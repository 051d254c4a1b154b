// SPDX-License-Identifier: GPL-2.0
//! What is kept of executed READs, ATOMICs and the like, and the duplicates of requests that are
//! answered from it.

use super::Responder;
use crate::engine::ports::{Count, Ports};
use crate::engine::qp::Qp;
use crate::engine::response::{Answer, Job, NO_CREDITS};
use crate::ids::{Msn, Psn, RKey};
use crate::wire::aeth::Syndrome;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;

/// What is remembered of a READ or ATOMIC so that it can be answered again (IBTA vol1 9.7.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resource(Kept);

impl Resource {
    /// What slots hold that were never used.
    pub const EMPTY: Self = Self(Kept::Nothing);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    Nothing,
    Read {
        first: Psn,
        count: u32,
        rkey: RKey,
        addr: u64,
        len: u32,
        msn: Msn,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
    },
    /// ATOMIC WRITE or FLUSH.
    Done {
        psn: Psn,
        msn: Msn,
    },
}

impl Responder {
    pub(super) fn remember(&mut self, slots: &mut [Resource], kept: Kept, limit: u8) {
        let limit = usize::from(limit).min(slots.len()).max(1);
        if self.next_resource >= limit {
            self.next_resource = 0;
        }
        if let Some(slot) = slots.get_mut(self.next_resource) {
            *slot = Resource(kept);
        }
        self.next_resource = self.next_resource.saturating_add(1);
    }

    /// What answers a duplicate request at `psn`: PSN ranges within half the PSN space of the
    /// expected one do not overlap.
    fn recall(&self, slots: &[Resource], psn: Psn) -> Option<Kept> {
        let epsn = self.epsn;
        let recent = |first: Psn| {
            let age = epsn.delta(first);
            (0..1 << 23).contains(&age)
        };
        slots.iter().map(|slot| slot.0).find(|kept| match *kept {
            Kept::Nothing => false,
            Kept::Read { first, count, .. } => {
                let at = psn.delta(first);
                recent(first) && u32::try_from(at).is_ok_and(|at| at < count)
            }
            Kept::Atomic { psn: own, .. } | Kept::Done { psn: own, .. } => {
                own == psn && recent(own)
            }
        })
    }
}

impl Qp {
    /// A request that was executed before (IBTA vol1 9.7.5.1.1 to 9.7.5.1.5): acknowledge again,
    /// answer again, never execute again.
    pub(super) fn duplicate(&mut self, packet: &Packet<'_>, ports: &mut impl Ports) {
        let psn = packet.bth().psn;
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
        let mut in_part = false;
        let job = match (operation, self.resp.recall(ports.resources(), psn)) {
            (
                Operation::ReadRequest,
                Some(Kept::Read {
                    first,
                    rkey,
                    addr,
                    len,
                    msn,
                    ..
                }),
            ) => {
                let skipped = u32::try_from(psn.delta(first))
                    .unwrap_or(0)
                    .saturating_mul(self.attrs.mtu.bytes());
                let rest = len.saturating_sub(skipped);
                let Some(reth) = packet.reth() else {
                    return;
                };
                // It must be a part of the original request.
                let same = reth.rkey() == rkey
                    && reth.va() == addr.wrapping_add(u64::from(skipped))
                    && reth.dma_len() <= rest;
                if !same {
                    ports.count(Count::Unexpected);
                    return;
                }
                in_part = reth.dma_len() < rest;
                let answer = Answer::Read {
                    rkey,
                    addr: reth.va(),
                    len: reth.dma_len(),
                    sent: 0,
                };
                Job {
                    psn,
                    msn,
                    answer,
                    first_time: false,
                }
            }
            (
                Operation::CmpSwap | Operation::FetchAdd,
                Some(Kept::Atomic { original, msn, .. }),
            ) => Job {
                psn,
                msn,
                answer: Answer::Atomic { original },
                first_time: false,
            },
            (Operation::AtomicWrite | Operation::Flush, Some(Kept::Done { msn, .. })) => Job {
                psn,
                msn,
                answer: Answer::Done,
                first_time: false,
            },
            _ => {
                ports.count(Count::Unexpected);
                return;
            }
        };
        // A peer that asks again goes on with all requests that follow (IBTA vol1 9.7.3.1), so
        // what is owed from here on would be sent twice, and the wanted responses would wait behind
        // those that the peer throws away. If this response is still to come, it needs no other.
        let mtu = self.attrs.mtu.bytes();
        if self.resp.jobs.owes(ports.jobs(), psn, mtu) {
            return;
        }
        if in_part && !self.resp.jobs.ends_before(ports.jobs(), psn, mtu) {
            // It asks for a part only, to learn whether the rest is still to come. It is.
            return;
        }
        self.resp.jobs.drop_from(ports.jobs(), psn, mtu);
        // If there is no room the peer asks again.
        self.resp.jobs.push(ports.jobs(), job);
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
