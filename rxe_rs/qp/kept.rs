// SPDX-License-Identifier: GPL-2.0
//! Packets ahead of the expected one, kept until that arrives (`proto/engine/repeat.rs`).

use super::{
    stored::{
        Received,
        StoredPacket,
        FLAGS, //
    },
    QpCtx,
    QpInner, //
};
use crate::{
    device::backlog::Backlog,
    mr::MrAccess, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rxe_proto::{
    engine::{
        backend::Handled,
        repeat::{
            KeptPacket,
            MAX_AHEAD, //
        },
    },
    ids::Psn,
    time::Instant, //
};

/// Slots for packets of one direction; the lower bits of its PSN choose that of a packet.
const SLOTS: usize = 64;

const _: () = assert!(MAX_AHEAD < 64, "packets that are kept have different slots");

/// Packets ahead of the expected one: requests of the peer, and responses to requests of this side.
pub(crate) struct KeptPackets {
    /// None before the first packet is kept, then at least twice [`SLOTS`].
    slots: KVec<Option<KBox<StoredPacket>>>,
    /// Bytes charged for them.
    bytes: usize,
}

/// Returns the slot of a packet.
fn slot(psn: Psn, is_response: bool) -> usize {
    let at = usize::try_from(psn.get()).unwrap_or(0) % SLOTS;
    if is_response {
        at.saturating_add(SLOTS)
    } else {
        at
    }
}

impl KeptPackets {
    pub(super) fn new() -> Self {
        Self {
            slots: KVec::new(),
            bytes: 0,
        }
    }

    /// Returns true if there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns true if there are slots; allocates them if not.
    fn has_slots(&mut self) -> bool {
        if self.slots.is_empty() {
            let Ok(mut slots) = KVec::with_capacity(2 * SLOTS, FLAGS) else {
                return false;
            };
            while slots.push_within_capacity(None).is_ok() {}
            self.slots = slots;
        }
        true
    }

    /// Keeps a packet if the limits and memory allow it; returns false if not.
    #[must_use]
    fn keep(&mut self, backlog: &Arc<Backlog>, received: &Received<'_>) -> bool {
        if !self.has_slots() {
            return false;
        }
        StoredPacket::new(backlog, self.bytes, received).is_ok_and(|stored| self.place(stored))
    }

    /// Places a packet into its slot; returns false if there are no slots.
    fn place(&mut self, stored: KBox<StoredPacket>) -> bool {
        let at = slot(stored.psn(), stored.is_response());
        let bytes = stored.charged();
        let Some(place) = self.slots.get_mut(at) else {
            return false;
        };
        // A packet that the engine has forgotten may be there.
        let before = place.replace(stored).map_or(0, |before| before.charged());
        self.bytes = self.bytes.saturating_sub(before).saturating_add(bytes);
        true
    }

    /// Takes the packet that the engine asks for.
    fn take(&mut self, next: KeptPacket) -> Option<KBox<StoredPacket>> {
        let (psn, is_response) = match next {
            KeptPacket::Request(psn) => (psn, false),
            KeptPacket::Response(psn) => (psn, true),
        };
        let place = self.slots.get_mut(slot(psn, is_response))?;
        let stored = place.take_if(|stored| stored.psn() == psn)?;
        self.bytes = self.bytes.saturating_sub(stored.charged());
        Some(stored)
    }

    /// Drops all packets: the connection has ended, or the engine has forgotten them.
    #[cold]
    pub(super) fn clear(&mut self) {
        self.slots = KVec::new();
        self.bytes = 0;
    }
}

impl QpCtx {
    /// Keeps a packet ahead of the expected one if the limits and memory allow it; the peer sends
    /// it again if not.
    #[cold]
    pub(crate) fn keep(&self, inner: &mut QpInner, mrs: &MrAccess<'_>, received: &Received<'_>) {
        if inner.kept.keep(&self.dev.backlog, received) {
            let (engine, mut backend, _) = inner.split(self, mrs);
            engine.on_kept(received.packet, &mut backend);
        }
    }

    /// As [`keep`](Self::keep), for a packet that was deferred.
    #[cold]
    pub(super) fn keep_stored(
        &self,
        inner: &mut QpInner,
        mrs: &MrAccess<'_>,
        stored: KBox<StoredPacket>,
    ) {
        if !inner.kept.has_slots() {
            return;
        }
        if let Some(packet) = stored.packet() {
            let (engine, mut backend, _) = inner.split(self, mrs);
            engine.on_kept(&packet, &mut backend);
        }
        let _ = inner.kept.place(stored);
    }

    /// Passes kept packets to the engine as long as the next one is there.
    #[cold]
    pub(crate) fn replay_kept(&self, inner: &mut QpInner, mrs: &MrAccess<'_>, now: Instant) {
        loop {
            let (engine, mut backend, _) = inner.split(self, mrs);
            let Some(next) = engine.take_kept(&mut backend) else {
                break;
            };
            let Some(stored) = inner.kept.take(next) else {
                continue;
            };
            let (engine, mut backend, _) = inner.split(self, mrs);
            if stored.pass_to(engine, now, &mut backend) == Handled::Deferred {
                inner.paging.note_fault(mrs);
                self.defer_stored(inner, stored);
                break;
            }
        }
        inner.extent = mrs.hint.get();
        if !inner.engine.keeps_packets() && !inner.kept.is_empty() {
            inner.kept.clear();
        }
    }
}
