// SPDX-License-Identifier: GPL-2.0
//! Where send requests come from: the user's ring or a kernel consumer's calls.

use super::KernelQueues;
use crate::queue::SendStore;
use kernel::prelude::*;
use rxe_kapi::mem::ring::UserRing;
use rxe_proto::{
    abi,
    engine::wr::SendWqe, //
};

/// The send queue as its consumer fills it.
pub(super) enum Source {
    /// A ring shared with a user process.
    User {
        ring: UserRing,
        limits: abi::SendLimits,
        /// One slot of the ring, copied.
        scratch: KVec<u8>,
    },
    /// Requests posted by a kernel consumer, in [`KernelQueues`].
    Kernel,
}

/// The send queue: requests taken over and the place new ones come from.
pub(super) struct Sends {
    pub(super) store: SendStore,
    pub(super) source: Source,
}

impl Sends {
    /// Requests taken over that have not completed.
    pub(super) fn unfinished(&self) -> u32 {
        self.store.produced().wrapping_sub(self.store.retired())
    }

    /// Takes over what was posted since, as far as it fits.
    pub(super) fn pull(&mut self, kernel: Option<&KernelQueues>) {
        let Self { store, source } = self;
        match source {
            Source::User {
                ring,
                limits,
                scratch,
            } => {
                while store.room() > 0 && ring.peek_next(scratch) {
                    let wqe = abi::decode_send(scratch, limits);
                    if !store.push(wqe.slot, wqe.area) {
                        return;
                    }
                }
            }
            Source::Kernel => {
                let Some(kernel) = kernel else {
                    return;
                };
                let mut posted = kernel.sends.lock();
                while store.room() > 0 && posted.retired() != posted.produced() {
                    let index = posted.retired();
                    let moved = match posted.with_area(index) {
                        Some((slot, area)) => store.push(*slot, area),
                        None => false,
                    };
                    if !moved {
                        return;
                    }
                    posted.retire(index.wrapping_add(1));
                }
            }
        }
    }

    /// Drops what was posted and not taken over.
    pub(super) fn discard(&mut self, kernel: Option<&KernelQueues>) {
        match &mut self.source {
            Source::User { ring, .. } => ring.discard(),
            Source::Kernel => {
                if let Some(kernel) = kernel {
                    let mut posted = kernel.sends.lock();
                    let end = posted.produced();
                    posted.retire(end);
                }
            }
        }
    }

    /// Everything before `index` is finished: the consumer may use the slots again.
    pub(super) fn retire(&mut self, index: u32) {
        self.store.retire(index);
        if let Source::User { ring, .. } = &mut self.source {
            ring.release(index);
        }
    }

    /// A slot by index, if it is live.
    pub(super) fn slot(&mut self, index: u32) -> Option<&mut SendWqe> {
        self.store.slot(index)
    }
}
