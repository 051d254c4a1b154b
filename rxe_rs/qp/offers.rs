// SPDX-License-Identifier: GPL-2.0
//! Send requests whose payload the peer, a QP of the same kernel, may copy from their memory
//! (`proto/engine/merge.rs`).
//!
//! A packet by reference names a request by its index. The peer finds the QP that sent it by the
//! number of its own peer, and the scatter/gather list of the request in this table. Each access is
//! checked against the keys of that list as they are then, as if the sender itself gathered the
//! payload. A request is withdrawn before it completes: the lock of its slot, which the peer holds
//! while it copies, lets the sender wait until no copy is in progress.

use super::{
    stored::FLAGS,
    QpCtx, //
};
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
    new_spinlock_bh,
    sync::SpinLockBh, //
};

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
    pub(super) fn sges(&self) -> impl Iterator<Item = Sge> + '_ {
        self.list.iter().take(self.count).copied()
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

/// The requests of a QP that are on offer.
pub(super) struct Offers(SetOnce<Pin<KBox<Table>>>);

/// Which requests may be on offer, protected by the lock of the QP: those from `first` on and
/// before `end`.
#[derive(Clone, Copy, Default)]
pub(super) struct OfferRange {
    first: u32,
    end: u32,
}

impl Offers {
    /// Creates the table without slots: few QPs have a peer in this kernel.
    pub(super) const fn new() -> Self {
        Self(SetOnce::new())
    }

    /// Returns true if `index` has been offered and not withdrawn.
    #[inline]
    pub(super) fn is_newest(range: OfferRange, index: u32) -> bool {
        range.first != range.end && index.wrapping_add(1) == range.end
    }

    /// Offers a request; returns false if no slot or no memory is free. Requests are offered in the
    /// order of their indices.
    ///
    /// # Context
    ///
    /// With the QP locked.
    pub(super) fn offer(&self, range: &mut OfferRange, offer: Offer) -> bool {
        if self.0.as_ref().is_none() {
            let slots = pin_init_array_from_fn(|_| new_spinlock_bh!(None, "offer"));
            if let Ok(table) = KBox::pin_init(pin_init!(Table { slots <- slots }), FLAGS) {
                self.0.populate(table);
            }
        }
        let slot = self.0.as_ref().and_then(|table| table.slot(offer.index));
        let Some(mut slot) = slot.map(|slot| slot.lock()) else {
            return false;
        };
        if slot.is_some() {
            return false;
        }
        let index = offer.index;
        if range.first == range.end {
            range.first = index;
        }
        range.end = index.wrapping_add(1);
        *slot = Some(offer);
        true
    }

    /// Withdraws all requests before `index`: none of them is being copied on return.
    ///
    /// # Context
    ///
    /// With the QP locked.
    #[inline]
    pub(super) fn withdraw(&self, range: &mut OfferRange, index: u32) {
        if range.first != range.end {
            self.withdraw_some(range, index);
        }
    }

    fn withdraw_some(&self, range: &mut OfferRange, index: u32) {
        let Some(table) = self.0.as_ref() else {
            return;
        };
        // There are no more offers than slots, although the requests between them may be many.
        let offered = range.end.wrapping_sub(range.first);
        let count = index.wrapping_sub(range.first).min(offered);
        for i in 0..count.min(SLOTS) {
            let Some(slot) = table.slot(range.first.wrapping_add(i)) else {
                continue;
            };
            let mut slot = slot.lock();
            let gone = |offer: &mut Offer| offer.index.wrapping_sub(range.first) < count;
            let _ = slot.take_if(gone);
        }
        range.first = range.first.wrapping_add(count);
    }

    /// Withdraws all requests.
    ///
    /// # Context
    ///
    /// As of [`withdraw`](Self::withdraw).
    pub(super) fn withdraw_all(&self, range: &mut OfferRange) {
        let end = range.end;
        self.withdraw(range, end);
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
        let slot = self.offers.0.as_ref()?.slot(index)?.lock();
        let offer = slot.as_ref()?;
        if offer.index != index || offer.peer != peer {
            return None;
        }
        let mrs = self.mr_access_from(guard, offer.hint);
        Some(copy(offer, &mrs))
    }
}
