// SPDX-License-Identifier: GPL-2.0
//! On-demand paging: page faults of accesses, and prefetch (`ADVISE_MR`).

use super::{
    MrKind,
    Mrs, //
};
use crate::{
    device::DeviceCtx,
    pager::Permit,
    verbs::pd::PdCtx, //
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};
use rxe_kapi::{
    mem::{
        odp::{
            AccessKind,
            FaultMode,
            MmId, //
        },
        Memory,
        OdpMem, //
    },
    rdma::advise::{
        Advice,
        Range, //
    },
    sync::context::disable_bh,
    work::ModuleRef, //
};
use rxe_proto::{
    ids::RKey,
    table::region::Access, //
};

/// An access to pages that are not present.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFault {
    /// The protection domain of the access.
    pub(crate) pd: u64,
    /// The L_Key or R_Key of the region or window.
    pub(crate) key: u32,
    /// Address of the first byte in the region, and number of bytes.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rights: Access,
}

impl PageFault {
    fn kind(&self) -> AccessKind {
        let writes = Access::LOCAL_WRITE
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_ATOMIC);
        if self.rights.intersects(writes) {
            AccessKind::Write
        } else {
            AccessKind::Read
        }
    }
}

fn odp_of(memory: &Memory) -> Option<&OdpMem> {
    match memory {
        Memory::Odp(odp) => Some(odp),
        _ => None,
    }
}

impl Mrs {
    /// Returns the memory of a page fault of queue pair `qpn` and the offset in it, if the access
    /// is still permitted.
    ///
    /// No reference to it is dropped here: that could be the last one, and dropping it sleeps.
    fn locate(&self, qpn: u32, page_fault: &PageFault) -> Option<(Arc<Memory>, u64)> {
        let PageFault {
            pd,
            key,
            addr,
            len,
            rights,
        } = *page_fault;
        let _bh = disable_bh();
        let rcu = rcu::read_lock();
        let mr = self.table.borrow(RKey(key).index(), &rcu)?;
        match &mr.kind {
            MrKind::VerbsMr(verbs_mr) => {
                let layout = verbs_mr.layout.try_access(&rcu)?;
                layout.desc.check(pd, key, addr, len, rights).ok()?;
                layout.odp_range(addr, len)
            }
            MrKind::Frwr(_) => None,
            MrKind::Window(window) => {
                let binding = window.binding.try_access()?;
                let at = binding
                    .window
                    .check((pd, qpn), key, addr, len, rights)
                    .ok()?;
                let layout = binding.region.verbs_mr()?.layout.try_access(&rcu)?;
                layout.odp_range(at, len)
            }
        }
    }

    /// Returns the request to resolve a page fault of queue pair `qpn`, with up to `ahead` bytes of
    /// readahead; `None` if the access is no longer permitted, which trying it again will report.
    ///
    /// # Context
    ///
    /// Any context that may take locks with bottom halves disabled. The result must be dropped in
    /// process context.
    pub(crate) fn fault(
        &self,
        qpn: u32,
        page_fault: PageFault,
        ahead: u64,
    ) -> Option<FaultRequest> {
        // The module is not unloaded while queue pairs exist.
        let module = ModuleRef::get()?;
        let (memory, at) = self.locate(qpn, &page_fault)?;
        Some(FaultRequest {
            page_fault,
            memory,
            at,
            ahead,
            module,
        })
    }
}

/// A page fault of a queue pair that is to be resolved.
pub(crate) struct FaultRequest {
    pub(crate) page_fault: PageFault,
    /// ODP memory, as [`Mrs::locate`] found it.
    memory: Arc<Memory>,
    /// Offset of the access in the memory, and bytes to fault in behind it.
    at: u64,
    ahead: u64,
    module: ModuleRef,
}

impl FaultRequest {
    /// Returns the address space of the memory.
    pub(crate) fn space(&self) -> MmId {
        match &*self.memory {
            Memory::Odp(odp) => odp.space(),
            _ => MmId::NONE,
        }
    }

    /// Faults the pages in.
    ///
    /// # Context
    ///
    /// Process context; sleeps, possibly forever.
    ///
    /// # Errors
    ///
    /// The access will never succeed.
    pub(crate) fn resolve(&self) -> Result {
        let Some(odp) = odp_of(&self.memory) else {
            return Ok(());
        };
        let Self {
            page_fault,
            at,
            ahead,
            ..
        } = self;
        odp.fault(*at, page_fault.len, page_fault.kind(), FaultMode::Fault)?;
        let next = at.saturating_add(page_fault.len);
        let ahead = (*ahead).min(odp.len().saturating_sub(next));
        if ahead != 0 {
            // The pages may not exist, and no access has needed them yet.
            let _ = odp.fault(next, ahead, page_fault.kind(), FaultMode::Ahead);
        }
        Ok(())
    }

    /// Releases the memory but not the module.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn finish(self) -> ModuleRef {
        drop(self.memory);
        self.module
    }
}

/// A prefetch that is carried out.
#[pin_data]
pub(crate) struct Prefetch {
    /// Memory, offset in it, bytes.
    parts: KVec<(Arc<Memory>, u64, u64)>,
    kind: AccessKind,
    mode: FaultMode,
    /// Set if it runs in the background.
    permit: Option<Permit>,
    #[pin]
    work: Work<Prefetch>,
}

impl_has_work! {
    impl HasWork<Self> for Prefetch { self.work }
}

impl WorkItem for Prefetch {
    type Pointer = Pin<KBox<Prefetch>>;

    fn run(this: Pin<KBox<Prefetch>>) {
        let _ = this.prefetch();
    }
}

impl Prefetch {
    fn prefetch(&self) -> Result {
        for (memory, at, len) in self.parts.iter() {
            if let Some(odp) = odp_of(memory) {
                odp.fault(*at, *len, self.kind, self.mode)?;
            }
        }
        Ok(())
    }
}

/// See [`MemoryRegion::prefetch`](rxe_kapi::rdma::mr::MemoryRegion::prefetch).
///
/// # Errors
///
/// As there.
pub(super) fn prefetch(
    dev: &Arc<DeviceCtx>,
    pd: &PdCtx,
    advice: &Advice,
    ranges: impl ExactSizeIterator<Item = Range>,
) -> Result {
    let rights = match advice.kind {
        AccessKind::Read => Access::NONE,
        AccessKind::Write => Access::LOCAL_WRITE,
    };
    let mut parts = KVec::with_capacity(ranges.len(), GFP_KERNEL_ACCOUNT)?;
    for Range { lkey, addr, length } in ranges {
        let mr = dev.mrs.table.get(RKey(lkey).index()).ok_or(EFAULT)?;
        let verbs_mr = match &mr.kind {
            MrKind::VerbsMr(verbs_mr) => verbs_mr,
            MrKind::Window(_) => return Err(EINVAL),
            MrKind::Frwr(_) => return Err(EFAULT),
        };
        let (pd, len) = (pd.number(), u64::from(length));
        let (memory, at) = {
            let rcu = rcu::read_lock();
            let layout = verbs_mr.layout.try_access(&rcu).ok_or(EFAULT)?;
            layout
                .desc
                .check_rights(pd, lkey, rights)
                .map_err(|_| EFAULT)?;
            layout.odp_range(addr, len).ok_or(EFAULT)?
        };
        let part = (memory, at, len);
        parts.push_within_capacity(part).map_err(|_| EINVAL)?;
    }
    let permit = match parts.first() {
        // Without a permit, the caller faults the pages in itself.
        Some((memory, ..)) if !advice.wait => {
            odp_of(memory).and_then(|odp| dev.demux.pager.permit(odp.space()))
        }
        _ => None,
    };
    let background = permit.is_some();
    let work = KBox::pin_init(
        pin_init!(Prefetch {
            parts,
            kind: advice.kind,
            mode: advice.mode,
            permit,
            work <- new_work!("Prefetch::work"),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    if background {
        dev.demux.queues.prefetch(work);
        return Ok(());
    }
    let result = work.prefetch();
    if advice.wait {
        result
    } else {
        Ok(())
    }
}
