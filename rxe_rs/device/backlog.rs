// SPDX-License-Identifier: GPL-2.0
//! The memory that deferred packets of a device's queue pairs may use.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// Bytes of all deferred packets of a device, including what the allocator rounds up.
const MAX_BACKLOG: usize = 16 << 20;

/// A QP may use one `SHARE`th of the free part of that.
const SHARE: usize = 8;

/// Bytes of all deferred packets of the QPs of a device.
pub(crate) struct Backlog(Atomic<usize>);

impl Backlog {
    /// Creates an empty backlog.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Atomic::new(0)), GFP_KERNEL_ACCOUNT)?)
    }

    /// Charges `bytes` to the backlog for a QP that has `own` bytes there already, within its
    /// share.
    pub(crate) fn charge(this: &Arc<Self>, own: usize, bytes: usize) -> Option<BacklogCharge> {
        let free = MAX_BACKLOG.saturating_sub(this.0.load(Relaxed));
        // CPUs may read this concurrently: each may then exceed the limit by a packet.
        if own.saturating_add(bytes) > free / SHARE {
            return None;
        }
        this.0.fetch_add(bytes, Relaxed);
        Some(BacklogCharge {
            backlog: this.clone(),
            bytes,
        })
    }
}

/// Bytes charged to a [`Backlog`].
pub(crate) struct BacklogCharge {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl BacklogCharge {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for BacklogCharge {
    fn drop(&mut self) {
        self.backlog.0.fetch_sub(self.bytes, Relaxed);
    }
}
