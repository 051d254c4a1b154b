// SPDX-License-Identifier: GPL-2.0
//! Send queue: where send WQEs come from, the user's ring or a kernel consumer's calls.

use super::KernelQueues;
use crate::queue::SendStore;
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};
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

/// Slots of a send queue that has not been used, and the most that it gets: so many requests are in
/// flight at most. Both are powers of two.
const FIRST_SLOTS: u32 = 2;
const MAX_SLOTS: u32 = 1024;

/// The send queue: WQEs that the driver has fetched, and where it fetches new ones.
///
/// There are fewer slots at first than the consumer may post. Those of a process become more with
/// what it has posted when it rings the doorbell; requests that find no slot, or no memory for one,
/// wait in the ring until earlier ones complete. Those of a kernel consumer become more when the QP
/// becomes ready to send.
pub(super) struct Sq {
    pub(super) store: SendStore,
    pub(super) source: Source,
    /// WQEs may have been left where they were posted: no slot was free for them, or the CQ of the
    /// process had no room for their completions.
    left: bool,
}

impl Sq {
    /// Creates a queue with few slots for WQEs with `wqe_data_len` bytes of scatter/gather list or
    /// inline data each.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(source: Source, wqe_data_len: usize) -> Result<Self> {
        Ok(Self {
            store: SendStore::new(FIRST_SLOTS, wqe_data_len)?,
            source,
            left: false,
        })
    }

    /// Returns the slots that the store should have for what a process has posted, if it has fewer.
    pub(super) fn shortage(&self) -> Option<u32> {
        let Source::User { ring, .. } = &self.source else {
            return None;
        };
        let most = ring.capacity().saturating_add(1).min(MAX_SLOTS);
        if self.store.slots() >= most {
            return None;
        }
        let wanted = self.unfinished().saturating_add(ring.pending());
        let slots = wanted.min(most).next_power_of_two();
        (slots > self.store.slots()).then_some(slots)
    }

    /// Returns the slots that the store should have for a kernel consumer that may post `slots`
    /// requests, if it has fewer.
    pub(super) fn shortage_for(&self, slots: u32) -> Option<u32> {
        let slots = slots.min(MAX_SLOTS);
        (slots > self.store.slots()).then_some(slots)
    }

    /// Returns the number of fetched WQEs that have not completed.
    pub(super) fn unfinished(&self) -> u32 {
        self.store.produced().wrapping_sub(self.store.retired())
    }

    /// Returns the number of fetched WQEs that have not completed and are to generate a completion.
    pub(super) fn expected(&self) -> u32 {
        let mut expected = 0u32;
        let mut index = self.store.retired();
        while index != self.store.produced() {
            let wqe = self.store.wqe_with_data(index);
            let signaled = wqe.is_some_and(|(wqe, _)| wqe.wr.flags.signaled);
            expected = expected.saturating_add(u32::from(signaled));
            index = index.wrapping_add(1);
        }
        expected
    }

    /// Returns true if a process has posted WQEs that have not been fetched.
    pub(super) fn is_pending(&self) -> bool {
        match &self.source {
            Source::User { ring, .. } => ring.pending() != 0,
            Source::Kernel => false,
        }
    }

    /// Fetches newly posted WQEs, as far as they fit; those of a process until `room` of them are
    /// to generate a completion. Returns true if there may be more of them.
    pub(super) fn fetch(&mut self, kernel: Option<&KernelQueues>, mut room: u32) -> bool {
        let Self {
            store,
            source,
            left,
        } = self;
        *left = false;
        match source {
            Source::User {
                ring,
                limits,
                scratch,
            } => {
                while room > 0 && store.free_slots() > 0 && ring.fetch(scratch) {
                    let entry = abi::decode_send(scratch, limits);
                    room = room.saturating_sub(u32::from(entry.wqe.wr.flags.signaled));
                    if !store.push(entry.wqe, entry.data) {
                        break;
                    }
                }
            }
            Source::Kernel => {
                let Some(kernel) = kernel else {
                    return false;
                };
                if !kernel.sq_posted.load(Relaxed) {
                    return false;
                }
                let mut posted = kernel.sq.lock();
                while store.free_slots() > 0 && posted.retired() != posted.produced() {
                    let index = posted.retired();
                    let moved = match posted.wqe_with_data(index) {
                        Some((wqe, data)) => store.push(*wqe, data),
                        None => false,
                    };
                    if !moved {
                        break;
                    }
                    posted.retire(index.wrapping_add(1));
                }
                let more = posted.retired() != posted.produced();
                kernel.sq_posted.store(more, Relaxed);
            }
        }
        *left = room == 0 || store.free_slots() == 0;
        *left
    }

    /// Leaves what is posted in the ring: the CQ has no room.
    pub(super) fn leave_posted(&mut self) {
        self.left = true;
    }

    /// Returns true if there may be posted WQEs that have not been fetched.
    #[inline]
    pub(super) fn may_have_more(&self) -> bool {
        self.left
    }

    /// Returns true if a WQE can be fetched.
    #[inline]
    pub(super) fn has_free_slots(&self) -> bool {
        self.store.free_slots() > 0
    }

    /// Discards what was posted and not fetched.
    pub(super) fn discard(&mut self, kernel: Option<&KernelQueues>) {
        self.left = false;
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
