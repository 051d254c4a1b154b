// SPDX-License-Identifier: GPL-2.0
//! Send queue: where send WQEs come from, the user's ring or a kernel consumer's calls.

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
        /// Copy of one slot of the ring.
        scratch: KVec<u8>,
    },
    /// Requests posted by a kernel consumer, in [`KernelQueues`].
    Kernel,
}

/// The send queue: WQEs that the driver has fetched, and where it fetches new ones.
pub(super) struct Sq {
    pub(super) store: SendStore,
    pub(super) source: Source,
}

impl Sq {
    /// Returns the number of fetched WQEs that have not completed.
    pub(super) fn unfinished(&self) -> u32 {
        self.store.produced().wrapping_sub(self.store.retired())
    }

    /// Fetches newly posted WQEs, as far as they fit.
    pub(super) fn fetch(&mut self, kernel: Option<&KernelQueues>) {
        let Self { store, source } = self;
        match source {
            Source::User {
                ring,
                limits,
                scratch,
            } => {
                while store.free_slots() > 0 && ring.fetch(scratch) {
                    let entry = abi::decode_send(scratch, limits);
                    if !store.push(entry.wqe, entry.data) {
                        return;
                    }
                }
            }
            Source::Kernel => {
                let Some(kernel) = kernel else {
                    return;
                };
                let mut posted = kernel.sq.lock();
                while store.free_slots() > 0 && posted.retired() != posted.produced() {
                    let index = posted.retired();
                    let moved = match posted.wqe_with_data(index) {
                        Some((wqe, data)) => store.push(*wqe, data),
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

    /// Discards what was posted and not fetched.
    pub(super) fn discard(&mut self, kernel: Option<&KernelQueues>) {
        match &mut self.source {
            Source::User { ring, .. } => ring.discard(),
            Source::Kernel => {
                if let Some(kernel) = kernel {
                    let mut posted = kernel.sq.lock();
                    let end = posted.produced();
                    posted.retire(end);
                }
            }
        }
    }

    /// Frees the slots of everything before `index` for the consumer, as it is finished.
    pub(super) fn retire(&mut self, index: u32) {
        self.store.retire(index);
        if let Source::User { ring, .. } = &mut self.source {
            ring.release(index);
        }
    }

    /// Returns a WQE by index, if it has not been retired.
    pub(super) fn wqe(&mut self, index: u32) -> Option<&mut SendWqe> {
        self.store.wqe(index)
    }
}
