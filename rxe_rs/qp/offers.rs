// SPDX-License-Identifier: GPL-2.0
//! Memory that the peer, a QP of the same kernel, may copy from (`proto/engine/merge.rs`): that of
//! send requests, and regions that it READs.
//!
//! The peer finds the QP that sent a packet by reference by the number of its own peer. A SEND or
//! WRITE names a request by its index, of which the table here has the scatter/gather list. A READ
//! response names a region by its key. Each access is checked against the keys as they are then, as
//! if the sender itself copied the payload.
//!
//! A request is withdrawn before it completes, and all is withdrawn before the consumer has stopped
//! the QP: the lock of the slot or of the regions, which the peer holds while it copies, lets the
//! sender wait until no copy is in progress. When the QP fails by itself, the peer may still copy
//! for READ responses that are on their way, as they come before the NAK that tells of the failure,
//! but not for those that it has stored, for example until a page fault of its own is resolved.

use super::QpCtx;
use crate::{
    mr::MrAccess,
    queue::Sge, //
};
use core::pin::Pin;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        SetOnce, //
    },
};
use pin_init::pin_init_array_from_fn;
use rxe_kapi::{
    alloc::gfp_nowait_account,
    new_spinlock_bh,
    sync::SpinLockBh, //
};
use rxe_proto::engine::offered::Offered as OfferedRequests;

/// Requests of a QP that can be on offer at a time; the lower bits of its index choose the slot of
/// a request.
const SLOTS: u32 = 32;

/// Longest scatter/gather list on offer.
const MAX_SGES: usize = 4;

/// A request on offer.
pub(super) struct Offer {
    index: u32,
    /// Number of the QP that may copy.
    peer: u32,
    list: [Sge; MAX_SGES],
    count: usize,
    /// Where the sender has last used its memory.
    hint: usize,
}

impl Offer {
    /// Creates an offer for the QP numbered `peer`; `None` if the list is too long.
    pub(super) fn new(
        index: u32,
        peer: u32,
        hint: usize,
        sges: impl Iterator<Item = Sge>,
    ) -> Option<Self> {
        let mut offer = Self {
            index,
            peer,
            list: [Sge::default(); MAX_SGES],
            count: 0,
            hint,
        };
        for sge in sges {
            *offer.list.get_mut(offer.count)? = sge;
            offer.count = offer.count.wrapping_add(1);
        }
        Some(offer)
    }

    /// Returns the scatter/gather list.
    pub(super) fn sges(&self) -> &[Sge] {
        self.list.get(..self.count).unwrap_or(&[])
    }
}

#[pin_data]
struct Table {
    #[pin]
    slots: [SpinLockBh<Option<Offer>>; SLOTS as usize],
}

impl Table {
    fn slot(&self, index: u32) -> Option<&SpinLockBh<Option<Offer>>> {
        self.slots.get(usize::try_from(index % SLOTS).ok()?)
    }
}

/// Access of the peer to regions.
struct Regions {
    /// Number of the QP that may copy, if one may.
    peer: Option<u32>,
    /// The QP has failed: its consumer may use the memory again.
    failed: bool,
    /// Where it has last used memory.
    hint: usize,
}

/// What a QP offers.
#[pin_data]
pub(super) struct Offers {
    /// The requests; without slots at first, as few QPs have a peer in this kernel.
    requests: SetOnce<Pin<KBox<Table>>>,
    #[pin]
    regions: SpinLockBh<Regions>,
}

/// What may be on offer, protected by the lock of the QP.
#[derive(Clone, Copy, Default)]
pub(super) struct Offered {
    requests: OfferedRequests,
    regions: bool,
}

impl Offered {
    /// Returns true if request `index` has been offered and not withdrawn.
    #[inline]
    pub(super) fn is_newest(self, index: u32) -> bool {
        self.requests.is_newest(index)
    }
}

impl Offers {
    /// Returns an initializer; nothing is on offer.
    pub(super) fn new() -> impl PinInit<Self> {
        let regions = Regions {
            peer: None,
            failed: false,
            hint: 0,
        };
        pin_init!(Self {
            requests: SetOnce::new(),
            regions <- new_spinlock_bh!(regions, "Offers::regions"),
        })
    }

    /// Returns whether request `index` is on offer already, or cannot be: `sges` is longer than a
    /// list on offer, no slot is free, or it has not been offered before a later one was. `None` if
    /// that depends on its memory.
    ///
    /// # Context
    ///
    /// With the QP locked.
    pub(super) fn is_offered(&self, offered: &Offered, index: u32, sges: u8) -> Option<bool> {
        if usize::from(sges) > MAX_SGES {
            return Some(false);
        }
        let slot = self.requests.as_ref().and_then(|table| table.slot(index))?;
        match &*slot.lock() {
            Some(offer) => Some(offer.index == index),
            None if offered.requests.may_add(index) => None,
            None => Some(false),
        }
    }

    /// Offers a request; returns false if no slot or no memory is free, or if it has not been
    /// offered before a later one was.
    ///
    /// # Context
    ///
    /// With the QP locked.
    pub(super) fn offer(&self, offered: &mut Offered, offer: Offer) -> bool {
        if self.requests.as_ref().is_none() {
            let slots = pin_init_array_from_fn(|_| new_spinlock_bh!(None, "offer"));
            // A process posts the first request that is offered, and is charged.
            let table = pin_init!(Table { slots <- slots });
            if let Ok(table) = KBox::pin_init(table, gfp_nowait_account()) {
                self.requests.populate(table);
            }
        }
        let slot = self
            .requests
            .as_ref()
            .and_then(|table| table.slot(offer.index));
        let Some(mut slot) = slot.map(|slot| slot.lock()) else {
            return false;
        };
        let index = offer.index;
        if slot.is_some() || !offered.requests.may_add(index) {
            return slot.as_ref().is_some_and(|offer| offer.index == index);
        }
        offered.requests.add(index);
        *slot = Some(offer);
        true
    }

    /// Offers the regions to which the QP numbered `peer` has the right to READ.
    ///
    /// # Context
    ///
    /// With the QP locked.
    #[inline]
    pub(super) fn offer_regions(&self, offered: &mut Offered, peer: u32) {
        if !offered.regions {
            offered.regions = true;
            self.regions.lock().peer = Some(peer);
        }
    }

    /// Withdraws all requests before `index`: none of them is being copied on return.
    ///
    /// # Context
    ///
    /// With the QP locked.
    #[inline]
    pub(super) fn withdraw(&self, offered: &mut Offered, index: u32) {
        if !offered.requests.is_empty() {
            self.withdraw_some(offered, index);
        }
    }

    fn withdraw_some(&self, offered: &mut Offered, index: u32) {
        let Some(table) = self.requests.as_ref() else {
            return;
        };
        // There are no more offers than slots, although the requests between them may be many.
        let (first, count) = offered.requests.withdraw(index);
        for i in 0..count.min(SLOTS) {
            let Some(slot) = table.slot(first.wrapping_add(i)) else {
                continue;
            };
            let mut slot = slot.lock();
            let gone = |offer: &mut Offer| offer.index.wrapping_sub(first) < count;
            let _ = slot.take_if(gone);
        }
    }

    /// Withdraws the regions: none of them is being copied from on return.
    ///
    /// # Context
    ///
    /// With the QP locked.
    pub(super) fn withdraw_regions(&self, offered: &mut Offered) {
        if offered.regions {
            offered.regions = false;
            self.regions.lock().peer = None;
        }
    }

    /// Withdraws the regions from packets that the peer has stored: none is being copied from for
    /// one of them on return.
    ///
    /// # Context
    ///
    /// With the QP locked.
    #[cold]
    pub(super) fn note_failure(&self) {
        self.regions.lock().failed = true;
    }

    /// Withdraws all requests, and the regions. The QP can be used again.
    ///
    /// # Context
    ///
    /// With the QP locked.
    pub(super) fn withdraw_all(&self, offered: &mut Offered) {
        let end = offered.requests.end();
        self.withdraw(offered, end);
        self.withdraw_regions(offered);
        self.regions.lock().failed = false;
    }
}

impl QpCtx {
    /// Calls `copy` with the scatter/gather list of request `index`, if that is on offer to the QP
    /// numbered `peer`, and with access to the memory of this QP. The request cannot complete
    /// meanwhile. `None` if it is not on offer.
    ///
    /// # Context
    ///
    /// With the peer locked; `copy` must not lock a QP.
    pub(super) fn with_offer<R>(
        &self,
        guard: &rcu::Guard,
        peer: u32,
        index: u32,
        copy: impl FnOnce(&Offer, &MrAccess<'_>) -> R,
    ) -> Option<R> {
        let slot = self.offers.requests.as_ref()?.slot(index)?.lock();
        let offer = slot.as_ref()?;
        if offer.index != index || offer.peer != peer {
            return None;
        }
        let mrs = self.mr_access_from(guard, offer.hint);
        Some(copy(offer, &mrs))
    }

    /// Calls `copy` with access to the memory of this QP, if its regions are on offer to the QP
    /// numbered `peer`; if the packet has been `stored` there, only unless this QP has failed. The
    /// consumer cannot stop the QP meanwhile. `None` if they are not on offer.
    ///
    /// # Context
    ///
    /// As of [`with_offer`](Self::with_offer).
    pub(super) fn with_regions<R>(
        &self,
        guard: &rcu::Guard,
        peer: u32,
        stored: bool,
        copy: impl FnOnce(&MrAccess<'_>) -> R,
    ) -> Option<R> {
        let mut regions = self.offers.regions.lock();
        if regions.peer != Some(peer) || (stored && regions.failed) {
            return None;
        }
        let mrs = self.mr_access_from(guard, regions.hint);
        let result = copy(&mrs);
        regions.hint = mrs.hint.get();
        Some(result)
    }
}
