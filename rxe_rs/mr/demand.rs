// SPDX-License-Identifier: GPL-2.0
//! Getting memory that is not pinned: because an access missed it, or because its owner said so.

use super::{
    Kind,
    Mrs, //
};
use crate::{
    device::DeviceCtx,
    pd::PdCtx, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        rcu,
        Arc, //
    },
    workqueue::{
        self,
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};
use rxe_kapi::{
    mem::{
        demand::{
            Effort,
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
};
use rxe_proto::{
    ids::RKey,
    table::region::Access, //
};

/// Advices of a device that are carried out in the background; who gives more does it himself.
const MAX_BACKGROUND: u32 = 64;

/// An access that found memory not to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The protection domain that accesses it.
    pub(crate) pd: u32,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rights: Access,
}

impl Missing {
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
    fn locate(&self, qpn: u32, missing: &Missing) -> Option<(Arc<Memory>, u64)> {
        let Missing {
            pd,
            key,
            addr,
            len,
            rights,
        } = *missing;
        let mr = self.table.get(RKey(key).index())?;
        match &mr.kind {
            Kind::Fixed(fixed) => {
                let rcu = rcu::read_lock();
                let map = fixed.map.enter(&rcu)?;
                map.desc.check(pd, key, addr, len, rights).ok()?;
                map.on_demand(addr, len)
            }
            Kind::Fast(_) => None,
            Kind::Window(window) => {
                let _bh = disable_bh();
                let rcu = rcu::read_lock();
                let bound = window.bound.enter()?;
                let at = bound.window.check((pd, qpn), key, addr, len, rights).ok()?;
                let map = bound.region.fixed()?.map.enter(&rcu)?;
                map.on_demand(at, len)
            }
        }
    }

    /// Gets what queue pair `qpn` missed, and up to `ahead` bytes that follow. Process context.
    ///
    /// # Errors
    ///
    /// The access will never succeed.
    pub(crate) fn page_in(&self, qpn: u32, missing: &Missing, ahead: u64) -> Result {
        // If it is not permitted any more, trying again will tell.
        let Some((memory, at)) = self.locate(qpn, missing) else {
            return Ok(());
        };
        let Some(demand) = demand_of(&memory) else {
            return Ok(());
        };
        demand.fault(at, missing.len, missing.kind(), Effort::Fault)?;
        let next = at.saturating_add(missing.len);
        let ahead = ahead.min(demand.len().saturating_sub(next));
        if ahead != 0 {
            // They may not exist, and nobody has asked for them yet.
            let _ = demand.fault(next, ahead, missing.kind(), Effort::Fault);
        }
        Ok(())
    }
}

/// An advice that is carried out.
#[pin_data]
struct Prefetch {
    dev: Arc<DeviceCtx>,
    parts: KVec<(Arc<Memory>, u64, u64)>,
    kind: Use,
    effort: Effort,
    #[pin]
    work: Work<Prefetch>,
}

impl_has_work! {
    impl HasWork<Self> for Prefetch { self.work }
}

impl WorkItem for Prefetch {
    type Pointer = Arc<Prefetch>;

    fn run(this: Arc<Prefetch>) {
        let _ = this.carry_out();
        this.dev.mrs.prefetching.fetch_sub(1, Full);
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
    let mut parts = KVec::with_capacity(ranges.len(), GFP_KERNEL)?;
    for Range { lkey, addr, length } in ranges {
        let mr = dev.mrs.table.get(RKey(lkey).index()).ok_or(EFAULT)?;
        let fixed = match &mr.kind {
            Kind::Fixed(fixed) => fixed,
            Kind::Window(_) => return Err(EINVAL),
            Kind::Fast(_) => return Err(EFAULT),
        };
        let (pd, len) = (pd.number(), u64::from(length));
        let (memory, at) = {
            let rcu = rcu::read_lock();
            let map = fixed.map.enter(&rcu).ok_or(EFAULT)?;
            map.desc.admit(pd, lkey, rights).map_err(|_| EFAULT)?;
            map.on_demand(addr, len).ok_or(EFAULT)?
        };
        let part = (memory, at, len);
        parts.push_within_capacity(part).map_err(|_| EINVAL)?;
    }
    let work = Arc::pin_init(
        pin_init!(Prefetch {
            dev: dev.clone(),
            parts,
            kind: advice.kind,
            effort: advice.effort,
            work <- new_work!("Prefetch::work"),
        }),
        GFP_KERNEL,
    )?;
    if advice.wait {
        return work.carry_out();
    }
    if dev.mrs.prefetching.load(Relaxed) >= MAX_BACKGROUND {
        let _ = work.carry_out();
        return Ok(());
    }
    dev.mrs.prefetching.fetch_add(1, Full);
    let _ = workqueue::system_unbound().enqueue(work);
    Ok(())
}
