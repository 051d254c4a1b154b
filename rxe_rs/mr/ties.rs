// SPDX-License-Identifier: GPL-2.0
//! Regions that end with a queue pair: what a peer was told ends with the connection.
//!
//! A queue pair that fails does so in softirq, where memory cannot be unpinned. So its regions end in
//! two steps: from the first one on, a flag that each of their maps leads to, they grant nothing any
//! more; the memory goes in process context, by the verb that ended the queue pair or a work item.

use super::{
    Kind,
    MrCtx, //
    MrLayout,
    VerbsMr,
};
use crate::{
    device::DeviceCtx,
    qp::QpCtx, //
};
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
    mem::append,
    rdma::unsupported, //
};

/// The regions that are tied to a queue pair until it fails, is reset or is destroyed. If it is used
/// once more after that, others may be tied to it.
#[pin_data]
pub(crate) struct Ties {
    /// Kept for the work item.
    dev: Arc<DeviceCtx>,
    /// The regions grant nothing any more.
    cut: Atomic<bool>,
    /// Those that have memory yet. Each knows its place here.
    #[pin]
    regions: Mutex<KVVec<Arc<MrCtx>>>,
    #[pin]
    work: Work<Ties>,
}

impl_has_work! {
    impl HasWork<Self> for Ties { self.work }
}

impl WorkItem for Ties {
    type Pointer = Arc<Ties>;

    fn run(this: Arc<Ties>) {
        this.release();
    }
}

impl Ties {
    /// Ties of a queue pair of `dev` to no region.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(dev: &Arc<DeviceCtx>) -> Result<Arc<Self>> {
        let made = pin_init!(Self {
            dev: dev.clone(),
            cut: Atomic::new(false),
            regions <- new_mutex!(KVVec::new(), "Ties::regions"),
            work <- new_work!("Ties::work"),
        });
        Arc::pin_init(made, GFP_KERNEL_ACCOUNT)
    }

    /// Whether the regions grant nothing any more. Any context.
    #[inline]
    pub(crate) fn are_cut(&self) -> bool {
        self.cut.load(Acquire)
    }

    /// From now on the regions grant nothing. Any context.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Release);
    }

    /// As [`cut`](Self::cut), and a work item sees to the memory. Any context.
    pub(crate) fn cut_and_release_later(self: Arc<Self>) {
        self.cut();
        // It is not queued yet: this is done once.
        let dev = self.dev.clone();
        let _ = dev.demux.queues.local.enqueue(self);
    }

    /// Gives up the memory of all regions, after [`cut`](Self::cut). Process context, sleeps.
    pub(crate) fn release(&self) {
        while let Some(region) = self.next() {
            if let Kind::VerbsMr(fixed) = &region.kind {
                drop(fixed.layout.take_sync());
            }
        }
    }

    fn next(&self) -> Option<Arc<MrCtx>> {
        self.regions.lock().pop()
    }

    fn add(&self, region: &Arc<MrCtx>, fixed: &VerbsMr) -> Result {
        let mut regions = self.regions.lock();
        let place = u32::try_from(regions.len())?;
        append(&mut regions, region.clone(), GFP_KERNEL_ACCOUNT)?;
        fixed.place.store(place, Relaxed);
        Ok(())
    }

    /// The region is being deregistered, or its key has been released.
    pub(super) fn forget(&self, region: &MrCtx, fixed: &VerbsMr) {
        let mut regions = self.regions.lock();
        let place = fixed.place.load(Relaxed);
        let Ok(index) = usize::try_from(place) else {
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
                if let Kind::VerbsMr(moved) = &last.kind {
                    moved.place.store(place, Relaxed);
                }
                *gap = last;
            }
        }
    }
}

impl VerbsMr {
    /// Puts `map` in the place of the old one, and waits until nobody uses that.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOENT` if the queue pair that the region is tied to has ended meanwhile, and the
    /// region with it.
    pub(super) fn put(&self, layout: Arc<MrLayout>) -> Result {
        let ties = layout.ties.clone();
        drop(self.layout.replace_sync(layout)?);
        if ties.is_some_and(|ties| ties.are_cut()) {
            // The other one may have been here before.
            drop(self.layout.take_sync());
            return Err(ENOENT);
        }
        Ok(())
    }
}

impl MrCtx {
    /// See [`MemoryRegion::tie`](rxe_kapi::rdma::mr::MemoryRegion::tie).
    pub(super) fn tie_to(
        self: &Arc<Self>,
        dev: &Arc<DeviceCtx>,
        qp: &Arc<QpCtx>,
        rkey: u32,
    ) -> Result {
        let Kind::VerbsMr(fixed) = &self.kind else {
            return Err(unsupported());
        };
        if fixed.is_gone() {
            return Err(ENOENT);
        }
        let old = fixed.layout.get().ok_or(ENOENT)?;
        if old.desc.key != rkey {
            return Err(dev.handle.refuse(c"not the key of the region"));
        }
        if old.desc.pd != qp.pd {
            return Err(dev
                .handle
                .refuse(c"a queue pair of another protection domain"));
        }
        if old.ties.is_some() {
            let reason = c"the region is tied to a queue pair already";
            return Err(dev.handle.refuse_with(EEXIST, reason));
        }
        let ties = qp.ties()?;
        let new = Arc::new(old.tied(ties.clone())?, GFP_KERNEL_ACCOUNT)?;
        drop(old);
        ties.add(self, fixed)?;
        fixed.put(new).inspect_err(|_| ties.forget(self, fixed))
    }
}
