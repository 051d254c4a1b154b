// SPDX-License-Identifier: GPL-2.0
//! Receive queue: where receive WQEs come from, and how payload is scattered to their buffers.

use super::{
    KernelQueues,
    QpCtx, //
};
use crate::{
    mr::{
        local_fault,
        MrAccess, //
    },
    queue::{
        for_each_span,
        sges_of,
        RecvList,
        Sge, //
    },
};
use kernel::prelude::*;
use rxe_kapi::mem::ring::UserRing;
use rxe_proto::{
    abi,
    engine::{
        backend::{
            LocalFault,
            TakenRecv, //
        },
        wr::RecvWr,
        ReceiveQueue, //
    },
    table::region::Access,
    wire::packet::Payload, //
};

/// The receive queue of a QP as its consumer fills it.
pub(super) enum Source {
    /// A ring shared with a user process.
    User {
        ring: UserRing,
        max_sge: u8,
        /// Copy of one slot of the ring.
        scratch: KVec<u8>,
    },
    /// Requests posted by a kernel consumer, in [`QpCtx::kernel`].
    Kernel,
    /// Requests of a shared receive queue, in [`QpCtx::srq`].
    Shared,
}

impl Source {
    /// Returns what the engine has to know about it.
    pub(super) fn kind(&self) -> ReceiveQueue {
        match self {
            Self::User { .. } => ReceiveQueue::Unannounced,
            Self::Kernel => ReceiveQueue::Announced,
            Self::Shared => ReceiveQueue::Shared,
        }
    }
}

/// The receive queue and the WQE in use.
pub(super) struct Rq {
    pub(super) source: Source,
    pub(super) current: RecvList,
}

impl Rq {
    /// Takes the next WQE and makes its scatter list the current one.
    pub(super) fn take(&mut self, ctx: &QpCtx) -> TakenRecv {
        let wr_id = match &mut self.source {
            Source::Shared => {
                return match &ctx.srq {
                    Some(srq) => srq.take(&mut self.current),
                    None => TakenRecv::Empty,
                };
            }
            Source::Kernel => {
                let Some(kernel) = &ctx.kernel else {
                    return TakenRecv::Empty;
                };
                match kernel.rq.lock().pop(&mut self.current) {
                    Some(wr_id) => wr_id,
                    None => return TakenRecv::Empty,
                }
            }
            Source::User {
                ring,
                max_sge,
                scratch,
            } => {
                if !ring.take(scratch) {
                    return TakenRecv::Empty;
                }
                match abi::decode_recv(scratch, *max_sge) {
                    Ok(wqe) => {
                        self.current.set(sges_of(wqe.list));
                        return TakenRecv::Wr(wqe.wr);
                    }
                    Err(bad) => return TakenRecv::Invalid { wr_id: bad.wr_id },
                }
            }
        };
        match self.current.length() {
            Some(length) => TakenRecv::Wr(RecvWr { wr_id, length }),
            None => TakenRecv::Invalid { wr_id },
        }
    }
}

impl Rq {
    /// Returns true if a receive request is posted; only for processes.
    pub(super) fn is_pending(&self, ctx: &QpCtx) -> bool {
        match &self.source {
            Source::User { ring, .. } => ring.pending() != 0,
            Source::Kernel => false,
            Source::Shared => ctx.srq.as_ref().is_some_and(|srq| srq.is_pending()),
        }
    }

    /// Discards everything posted to this QP.
    pub(super) fn discard(&mut self, kernel: Option<&KernelQueues>) {
        match &mut self.source {
            Source::Kernel => {
                if let Some(kernel) = kernel {
                    kernel.rq.lock().clear();
                }
            }
            Source::User { ring, .. } => ring.discard(),
            Source::Shared => {}
        }
    }
}

/// Copies `src` to `offset` of a scatter list whose keys are of protection domain `pd`.
///
/// # Errors
///
/// [`LocalFault`]; a part may have been copied.
pub(super) fn scatter(
    mrs: &MrAccess<'_>,
    pd: u64,
    sges: impl Iterator<Item = Sge>,
    offset: u32,
    src: &Payload<'_>,
) -> Result<(), LocalFault> {
    for_each_span(sges, offset, src.len(), |span| {
        let part = src.slice(span.from, span.len);
        mrs.write_in(pd, span.lkey, span.addr, &part, Access::LOCAL_WRITE)
            .map_err(local_fault)
    })
}
