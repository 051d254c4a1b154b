// SPDX-License-Identifier: GPL-2.0
//! Getting memory that is not pinned: because an access missed it, or because its owner said so.

use super::{
    Kind,
    Mrs, //
};
use crate::pager::Permit;
use crate::{
    device::DeviceCtx,
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
        demand::{
            FaultMode,
            SpaceId,
            Use, //
        },
        Demand,
        Memory, //
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

/// An access that found memory not to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFault {
    /// The protection domain that accesses it.
    pub(crate) pd: u32,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rights: Access,
}

impl PageFault {
    fn kind(&self) -> Use {
        let writes = Access::LOCAL_WRITE
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_ATOMIC);
        if self.rights.intersects(writes) {
            Use::Write
        } else {
            Use::Read
        }
    }
}

fn demand_of(memory: &Memory) -> Option<&Demand> {
    match memory {
        Memory::Demand(demand) => Some(demand),
        _ => None,
    }
}

impl Mrs {
    /// The memory that queue pair `qpn` missed, and where in it, if the access is still permitted.
    ///
    /// No reference to it is dropped here: it might be the last one, and dropping that sleeps.
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
            Kind::VerbsMr(fixed) => {
                let layout = fixed.layout.enter(&rcu)?;
                layout.desc.check(pd, key, addr, len, rights).ok()?;
                layout.on_demand(addr, len)
            }
            Kind::Frwr(_) => None,
            Kind::Window(window) => {
                let bound = window.bound.try_access()?;
                let at = bound.window.check((pd, qpn), key, addr, len, rights).ok()?;
                let layout = bound.region.fixed()?.layout.enter(&rcu)?;
                layout.on_demand(at, len)
            }
        }
    }

    /// What is to be done about memory that queue pair `qpn` missed, and up to `ahead` bytes that
    /// follow it. Nothing if the access is not permitted any more: trying it again will tell.
    ///
    /// Context: any that may take bottom half locks. The result is dropped in process context.
    pub(crate) fn fault(&self, qpn: u32, page_fault: PageFault, ahead: u64) -> Option<Fault> {
        // While queue pairs exist the module is not unloaded.
        let module = ModuleRef::get()?;
        let (memory, at) = self.locate(qpn, &page_fault)?;
        Some(Fault {
            page_fault,
            memory,
            at,
            ahead,
            module,
        })
    }
}

/// Memory that a queue pair missed and that is to be got.
pub(crate) struct Fault {
    pub(crate) page_fault: PageFault,
    /// Memory on demand, as [`Mrs::locate`] found it.
    memory: Arc<Memory>,
    at: u64,
    ahead: u64,
    module: ModuleRef,
}

impl Fault {
    /// The address space that the memory is of.
    pub(crate) fn space(&self) -> SpaceId {
        match &*self.memory {
            Memory::Demand(demand) => demand.space(),
            _ => SpaceId::NONE,
        }
    }

    /// Gets the memory. Process context; sleeps as long as it takes, perhaps for ever.
    ///
    /// # Errors
    ///
    /// The access will never succeed.
    pub(crate) fn get(&self) -> Result {
        let Some(demand) = demand_of(&self.memory) else {
            return Ok(());
        };
        let Self {
            page_fault,
            at,
            ahead,
            ..
        } = self;
        demand.fault(*at, page_fault.len, page_fault.kind(), FaultMode::Fault)?;
        let next = at.saturating_add(page_fault.len);
        let ahead = (*ahead).min(demand.len().saturating_sub(next));
        if ahead != 0 {
            // They may not exist, and nobody has asked for them yet.
            let _ = demand.fault(next, ahead, page_fault.kind(), FaultMode::Fault);
        }
        Ok(())
    }

    /// Lets go of the memory, but not of the module. Process context.
    pub(crate) fn finish(self) -> ModuleRef {
        drop(self.memory);
        self.module
    }
}

/// An advice that is carried out.
#[pin_data]
pub(crate) struct Prefetch {
    parts: KVec<(Arc<Memory>, u64, u64)>,
    kind: Use,
    effort: FaultMode,
    /// To work in the background.
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
        let _ = this.carry_out();
    }
}

impl Prefetch {
    fn carry_out(&self) -> Result {
        for (memory, at, len) in self.parts.iter() {
            if let Some(demand) = demand_of(memory) {
                demand.fault(*at, *len, self.kind, self.effort)?;
            }
        }
        Ok(())
    }
}

/// See [`MemoryRegion::prefetch`](rxe_kapi::rdma::mr::MemoryRegion::prefetch).
pub(super) fn prefetch(
    dev: &Arc<DeviceCtx>,
    pd: &Arc<PdCtx>,
    advice: &Advice,
    ranges: impl ExactSizeIterator<Item = Range>,
) -> Result {
    let rights = match advice.kind {
        Use::Read => Access::NONE,
        Use::Write => Access::LOCAL_WRITE,
    };
    let mut parts = KVec::with_capacity(ranges.len(), GFP_KERNEL_ACCOUNT)?;
    for Range { lkey, addr, length } in ranges {
        let mr = dev.mrs.table.get(RKey(lkey).index()).ok_or(EFAULT)?;
        let fixed = match &mr.kind {
            Kind::VerbsMr(fixed) => fixed,
            Kind::Window(_) => return Err(EINVAL),
            Kind::Frwr(_) => return Err(EFAULT),
        };
        let (pd, len) = (pd.number(), u64::from(length));
        let (memory, at) = {
            let rcu = rcu::read_lock();
            let layout = fixed.layout.enter(&rcu).ok_or(EFAULT)?;
            layout.desc.admit(pd, lkey, rights).map_err(|_| EFAULT)?;
            layout.on_demand(addr, len).ok_or(EFAULT)?
        };
        let part = (memory, at, len);
        parts.push_within_capacity(part).map_err(|_| EINVAL)?;
    }
    let permit = match parts.first() {
        // Without one the caller does it himself.
        Some((memory, ..)) if !advice.wait => {
            demand_of(memory).and_then(|demand| dev.demux.pager.permit(demand.space()))
        }
        _ => None,
    };
    let background = permit.is_some();
    let work = KBox::pin_init(
        pin_init!(Prefetch {
            parts,
            kind: advice.kind,
            effort: advice.effort,
            permit,
            work <- new_work!("Prefetch::work"),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    if background {
        dev.demux.queues.prefetch(work);
        return Ok(());
    }
    let done = work.carry_out();
    if advice.wait {
        done
    } else {
        Ok(())
    }
}
