// SPDX-License-Identifier: GPL-2.0
//! The engine's memory for the responses of a queue pair, as large as its responder resources need.

use super::Engine;
use kernel::prelude::*;
use rxe_proto::engine::{
    attrs::{
        pending_responses,
        replay_entries, //
    },
    backend::Storage,
    PendingResponse,
    ReplayEntry, //
};

/// The engine's storage for responses.
pub(super) struct Responses {
    pending: KVec<PendingResponse>,
    replay: KVec<ReplayEntry>,
}

impl Responses {
    /// Creates storage for no responder resources. Allocates nothing.
    pub(super) const fn new() -> Self {
        Self {
            pending: KVec::new(),
            replay: KVec::new(),
        }
    }

    /// Allocates storage for `resources` responder resources, if there is only some for `current`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(super) fn larger(resources: u8, current: usize) -> Result<Option<Self>> {
        if replay_entries(resources) <= current {
            return Ok(None);
        }
        Ok(Some(Self {
            pending: KVec::from_elem(
                PendingResponse::EMPTY,
                pending_responses(resources),
                GFP_KERNEL_ACCOUNT,
            )?,
            replay: KVec::from_elem(
                ReplayEntry::EMPTY,
                replay_entries(resources),
                GFP_KERNEL_ACCOUNT,
            )?,
        }))
    }

    /// Returns the number of responder resources that the storage is for.
    pub(super) fn resources(&self) -> usize {
        self.replay.len()
    }

    /// Replaces the storage by `larger` and leaves the old one there.
    pub(super) fn replace(&mut self, larger: &mut Self, engine: &mut Engine) {
        engine.move_storage(self.storage(), larger.storage());
        core::mem::swap(self, larger);
    }

    /// Borrows the storage for the engine.
    #[inline]
    pub(super) fn storage(&mut self) -> Storage<'_> {
        Storage {
            pending: &mut self.pending,
            replay: &mut self.replay,
        }
    }
}
