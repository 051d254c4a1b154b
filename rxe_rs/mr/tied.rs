// SPDX-License-Identifier: GPL-2.0
//! Memory regions tied to a queue pair: the keys that its peer has learnt are revoked with the
//! connection.
//!
//! A queue pair fails in softirq, where memory cannot be unpinned. Its regions are therefore
//! revoked in two steps: first a flag is set that each of their layouts refers to, after which they
//! grant no access; then the memory is released in process context, by the verb that ended the
//! queue pair, or by a work item, for which a verb that ends the queue pair later waits.

use super::{
    MrCtx,
    MrKind,
    MrLayout,
    VerbsMr, //
};
use crate::device::DeviceCtx;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        new_mutex,
        Arc,
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};
use rxe_kapi::{
    alloc::kvec,
    series::unsupported, //
};

/// The regions that are tied to a queue pair until it fails, is reset or is destroyed. If it is
/// used again afterwards, other regions may be tied to it.
#[pin_data]
pub(crate) struct TiedMrs {
    /// Needed by the work item.
    dev: Arc<DeviceCtx>,
    /// The regions grant no access any more.
    revoked: Atomic<bool>,
    /// Those that still have memory. Each knows its index here.
    #[pin]
    regions: Mutex<KVVec<Arc<MrCtx>>>,
    /// Held while their memory is released.
    #[pin]
    releasing: Mutex<()>,
    #[pin]
    work: Work<TiedMrs>,
}

impl_has_work! {
    impl HasWork<Self> for TiedMrs { self.work }
}

impl WorkItem for TiedMrs {
    type Pointer = Arc<TiedMrs>;

    fn run(this: Arc<TiedMrs>) {
        this.release_memory();
    }
}

impl TiedMrs {
    /// Creates an empty list for a queue pair of `dev`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(dev: &Arc<DeviceCtx>) -> Result<Arc<Self>> {
        let init = pin_init!(Self {
            dev: dev.clone(),
            revoked: Atomic::new(false),
            regions <- new_mutex!(KVVec::new(), "TiedMrs::regions"),
            releasing <- new_mutex!((), "TiedMrs::releasing"),
            work <- new_work!("TiedMrs::work"),
        });
        Arc::pin_init(init, GFP_KERNEL_ACCOUNT)
    }

    /// Returns true if the regions have been revoked.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Acquire)
    }

    /// Revokes the regions: they grant no access from now on.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Release);
    }

    /// As [`revoke`](Self::revoke), and queues a work item that releases the memory; does nothing
    /// if the regions have been revoked.
    ///
    /// # Context
    ///
    /// Any context, with the queue pair locked.
    pub(crate) fn revoke_and_release_later(this: &Arc<Self>) {
        if this.is_revoked() {
            return;
        }
        this.revoke();
        // It is not queued yet: only the first call gets here.
        let _ = this.dev.demux.queues.local.enqueue(this.clone());
    }

    /// Releases the memory of all regions, after [`revoke`](Self::revoke). If another task does so
    /// already, waits for that.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    pub(crate) fn release_memory(&self) {
        let _releasing = self.releasing.lock();
        while let Some(region) = self.pop() {
            if let MrKind::VerbsMr(verbs_mr) = &region.kind {
                verbs_mr.release_revoked();
            }
        }
    }

    fn pop(&self) -> Option<Arc<MrCtx>> {
        self.regions.lock().pop()
    }

    fn add(&self, region: &Arc<MrCtx>, verbs_mr: &VerbsMr) -> Result {
        let mut regions = self.regions.lock();
        let at = u32::try_from(regions.len())?;
        kvec::push(&mut regions, region.clone(), GFP_KERNEL_ACCOUNT)?;
        verbs_mr.tied_index.store(at, Relaxed);
        Ok(())
    }

    /// Removes a region that is being deregistered, or whose key has been released.
    pub(super) fn remove(&self, region: &MrCtx, verbs_mr: &VerbsMr) {
        let mut regions = self.regions.lock();
        let at = verbs_mr.tied_index.load(Relaxed);
        let Ok(index) = usize::try_from(at) else {
            return;
        };
        if !regions
            .get(index)
            .is_some_and(|r| core::ptr::eq(&**r, region))
        {
            return;
        }
        if let Some(last) = regions.pop() {
            if let Some(gap) = regions.get_mut(index) {
                if let MrKind::VerbsMr(moved) = &last.kind {
                    moved.tied_index.store(at, Relaxed);
                }
                *gap = last;
            }
        }
    }
}

impl VerbsMr {
    /// Releases the memory of a region that has been revoked, unless a verb has removed it. A verb
    /// that removes it meanwhile waits for this.
    fn release_revoked(&self) {
        if let Some(_releasing) = self.releasing.try_get() {
            drop(self.layout.take_sync());
        }
    }

    /// Replaces the layout, and waits until the old one is no longer used.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOENT` if the queue pair that the region is tied to has failed meanwhile, and
    /// the region has been revoked.
    pub(super) fn replace_layout(&self, layout: Arc<MrLayout>) -> Result {
        let tied_mrs = layout.tied_mrs.clone();
        drop(self.layout.replace_sync(layout)?);
        if tied_mrs.is_some_and(|tied_mrs| tied_mrs.is_revoked()) {
            // The release of the memory may have come before the replacement.
            drop(self.layout.take_sync());
            return Err(ENOENT);
        }
        Ok(())
    }
}

impl MrCtx {
    /// Ties the region to a queue pair of protection domain `pd`, whose list `tied_mrs` returns.
    /// See [`QueuePair::tie`](rxe_kapi::rdma::qp::QueuePair::tie).
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_tie` of `uapi/rxe_rs.h` documents; nothing has changed then.
    pub(crate) fn tie_to(
        self: &Arc<Self>,
        dev: &Arc<DeviceCtx>,
        pd: u64,
        rkey: u32,
        tied_mrs: impl FnOnce() -> Result<Arc<TiedMrs>>,
    ) -> Result {
        let MrKind::VerbsMr(verbs_mr) = &self.kind else {
            return Err(unsupported());
        };
        if verbs_mr.is_released() {
            return Err(ENOENT);
        }
        let old = verbs_mr.layout.get().ok_or(ENOENT)?;
        if old.desc.key != rkey {
            return Err(dev.handle.refuse(c"not the key of the region"));
        }
        if old.desc.pd != pd {
            return Err(dev
                .handle
                .refuse(c"a queue pair of another protection domain"));
        }
        if old.tied_mrs.is_some() {
            let reason = c"the region is tied to a queue pair already";
            return Err(dev.handle.refuse_with(EEXIST, reason));
        }
        let tied_mrs = tied_mrs()?;
        let new = Arc::new(old.with_tied_mrs(tied_mrs.clone())?, GFP_KERNEL_ACCOUNT)?;
        drop(old);
        tied_mrs.add(self, verbs_mr)?;
        verbs_mr
            .replace_layout(new)
            .inspect_err(|_| tied_mrs.remove(self, verbs_mr))
    }
}
