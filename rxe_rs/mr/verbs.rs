// SPDX-License-Identifier: GPL-2.0
//! Registering regions, changing them and taking them out of service.

use super::{
    demand,
    layout::{
        MrLayout,
        MrSegment, //
    },
    Frwr, Kind, MrCtx, VerbsMr, GONE,
};
use crate::{
    device::DeviceCtx,
    limits::MAX_MR_SIZE,
    qp::QpCtx, //
    verbs::pd::PdCtx,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        rcu,
        Arc,
        UniqueArc, //
    },
};
use rxe_kapi::{
    mem::{
        DmaMemory,
        Listed,
        Memory,
        PageList, //
    },
    new_rearmable,
    rdma::{
        advise::{
            Advice,
            Range, //
        },
        detail::Details,
        mr::{
            MemoryRegion,
            MrCreated,
            Pinner,
            Rereg,
            UserMr,
            ACCESS_WRITABLE, //
        },
        segment::{
            Addition,
            RegionState,
            Removal, //
        },
        unsupported, //
    },
    sync::Replaceable, //
};
use rxe_proto::{
    ids::RKey,
    table::region::{
        Access,
        MrDesc,
        State, //
    },
};

/// Whether a user's region may have these rights.
fn consistent(dev: &DeviceCtx, access: u32) -> Result<Access> {
    let access = Access::from_bits(access);
    let access = access.ok_or_else(|| dev.handle.refuse(c"unknown access flags"))?;
    if access.is_consistent() {
        Ok(access)
    } else {
        Err(dev
            .handle
            .refuse(c"remote write or atomic without local write"))
    }
}

/// Whether a region may have these rights over memory that is, or is not, persistent.
pub(super) fn check_pmem_access(
    dev: &DeviceCtx,
    access: Access,
    is_persistent: impl FnOnce() -> bool,
) -> Result {
    if !access.contains(Access::FLUSH_PERSISTENT) || is_persistent() {
        Ok(())
    } else {
        Err(dev
            .handle
            .refuse(c"flushing to persistence, of memory that is not persistent"))
    }
}

/// Whether a user's region may lie there.
fn fits(dev: &DeviceCtx, iova: u64, length: u64) -> Result {
    if length <= MAX_MR_SIZE && iova.checked_add(length).is_some() {
        Ok(())
    } else {
        Err(dev
            .handle
            .refuse(c"region too large, or its addresses wrap"))
    }
}

impl VerbsMr {
    fn new(layout: Arc<MrLayout>) -> Result<Self> {
        Ok(Self {
            layout: Replaceable::new(layout)?,
            windows: Atomic::new(0),
            place: Atomic::new(0),
        })
    }

    /// One more window is bound; false if the region is going away.
    pub(crate) fn hold(&self) -> bool {
        loop {
            let windows = self.windows.load(Relaxed);
            if windows >= GONE - 1 {
                return false;
            }
            let more = windows.wrapping_add(1);
            if self.windows.cmpxchg(windows, more, Full).is_ok() {
                return true;
            }
        }
    }

    /// One window less.
    pub(crate) fn release(&self) {
        self.windows.fetch_sub(1, Full);
    }

    /// No window may be bound from now on.
    pub(super) fn close(&self) -> Result {
        self.windows.cmpxchg(0, GONE, Full).map_err(|_| EBUSY)?;
        Ok(())
    }

    /// Windows may be bound again.
    fn reopen(&self) {
        self.windows.store(0, Release);
    }

    /// The key has been released. Only a verb may ask, which has the region for itself.
    pub(super) fn is_gone(&self) -> bool {
        self.windows.load(Relaxed) == GONE
    }
}

impl MrCtx {
    /// No window may be bound to the region from now on.
    ///
    /// # Errors
    ///
    /// `EBUSY` if one is.
    pub(super) fn close(dev: &DeviceCtx, fixed: &VerbsMr) -> Result {
        let reason = c"a memory window is bound to the region";
        let closed = fixed.close();
        closed.map_err(|error| dev.handle.refuse_with(error, reason))
    }

    /// Takes the map away, and with it the memory, for good.
    pub(super) fn empty(&self, fixed: &VerbsMr) {
        let layout = fixed.layout.take_sync();
        if let Some(ties) = layout.as_ref().and_then(|layout| layout.ties.as_ref()) {
            ties.forget(self, fixed);
        }
    }

    /// The region, if it is of the kind that verbs register.
    pub(crate) fn fixed(&self) -> Option<&VerbsMr> {
        match &self.kind {
            Kind::VerbsMr(fixed) => Some(fixed),
            _ => None,
        }
    }
}

fn register(dev: &DeviceCtx, desc: MrDesc, memory: Memory) -> Result<MrCreated<MrCtx>> {
    check_pmem_access(dev, desc.access, || memory.is_persistent())?;
    let memory = Arc::new(memory, GFP_KERNEL_ACCOUNT)?;
    let room = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
    let make = |key| {
        let layout = MrLayout::new(MrDesc { key, ..desc }, memory);
        Ok(Kind::VerbsMr(VerbsMr::new(room.write(layout).into())?))
    };
    let (ctx, key) = dev.mrs.publish(desc.pd, make)?;
    Ok(MrCreated {
        ctx,
        lkey: key,
        rkey: key,
    })
}

impl MemoryRegion for MrCtx {
    type Device = DeviceCtx;

    const ACCESS: u32 = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::MW_BIND)
        .union(Access::ZERO_BASED)
        .union(Access::HUGETLB)
        .union(Access::ON_DEMAND)
        .union(Access::FLUSH_GLOBAL)
        .union(Access::FLUSH_PERSISTENT)
        .bits();

    fn register(dev: &Arc<DeviceCtx>, pd: &Arc<PdCtx>, user: UserMr) -> Result<MrCreated<Self>> {
        let access = consistent(dev, user.access)?;
        fits(dev, user.iova, user.length)?;
        let desc = MrDesc {
            pd: pd.number(),
            key: 0,
            iova: user.iova,
            length: user.length,
            access,
            state: State::Valid,
        };
        register(dev, desc, user.memory)
    }

    fn register_dma(
        dev: &Arc<DeviceCtx>,
        pd: &Arc<PdCtx>,
        memory: DmaMemory,
        access: u32,
    ) -> Result<MrCreated<Self>> {
        let desc = MrDesc {
            pd: pd.number(),
            key: 0,
            iova: 0,
            length: u64::MAX,
            access: Access::from_bits(access).ok_or(EINVAL)?,
            state: State::Valid,
        };
        register(dev, desc, Memory::Dma(memory))
    }

    fn allocate(dev: &Arc<DeviceCtx>, pd: &Arc<PdCtx>, pages: PageList) -> Result<MrCreated<Self>> {
        let make = |key| {
            Ok(Kind::Frwr(Frwr {
                memory: Memory::Pages(pages),
                key: Atomic::new(key),
                valid: new_rearmable!(None, "Frwr::valid")?,
                gone: Atomic::new(false),
            }))
        };
        let (ctx, key) = dev.mrs.publish(pd.number(), make)?;
        Ok(MrCreated {
            ctx,
            lkey: key,
            rkey: key,
        })
    }

    fn allocate_empty(dev: &Arc<DeviceCtx>, pd: &Arc<PdCtx>) -> Result<MrCreated<Self>> {
        let room = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let make = |key| {
            let layout = MrLayout::empty(MrDesc {
                pd: pd.number(),
                key,
                iova: 0,
                length: 0,
                access: Access::NONE,
                state: State::Valid,
            });
            Ok(Kind::VerbsMr(VerbsMr::new(room.write(layout).into())?))
        };
        let (ctx, key) = dev.mrs.publish(pd.number(), make)?;
        Ok(MrCreated {
            ctx,
            lkey: key,
            rkey: key,
        })
    }

    fn fill(
        &self,
        dev: &Arc<DeviceCtx>,
        memory: Listed,
        iova: u64,
        access: u32,
    ) -> Result<RegionState> {
        self.fill_empty(dev, memory, iova, consistent(dev, access)?)
    }

    fn relocate(
        &self,
        dev: &Arc<DeviceCtx>,
        rkey: u32,
        handle: u64,
        iova: u64,
    ) -> Result<RegionState> {
        self.move_segment(dev, rkey, handle, iova)
    }

    fn prefetch(
        dev: &Arc<DeviceCtx>,
        pd: &Arc<PdCtx>,
        advice: &Advice,
        ranges: impl ExactSizeIterator<Item = Range>,
    ) -> Result {
        demand::prefetch(dev, pd, advice, ranges)
    }

    fn pages(&self) -> Option<&PageList> {
        match &self.kind {
            Kind::Frwr(Frwr {
                memory: Memory::Pages(pages),
                ..
            }) => Some(pages),
            _ => None,
        }
    }

    fn reregister(&self, dev: &Arc<DeviceCtx>, change: Rereg<'_, DeviceCtx>) -> Result {
        let Kind::VerbsMr(fixed) = &self.kind else {
            return Err(unsupported());
        };
        if fixed.is_gone() {
            let reason = c"the keys of the region have been released";
            return Err(dev.handle.refuse_with(ENOENT, reason));
        }
        let old = fixed.layout.get().ok_or(ENOENT)?;
        if !old.has_segments() && !old.is_on_demand() {
            return Err(unsupported());
        }
        let mut desc = old.desc;
        if let Some(pd) = change.pd {
            desc.pd = pd.number();
        }
        if let Some(access) = change.access {
            desc.access = consistent(dev, access)?;
        }
        // What is pinned stays so, and what is got on demand, unless it is named again.
        let differs = desc.access.contains(Access::ON_DEMAND) != old.is_on_demand();
        if change.range.is_none() && differs {
            let reason = c"on-demand paging changes only together with the translation";
            return Err(dev.handle.refuse_with(unsupported(), reason));
        }
        let rights = desc.access.bits();
        let get = |start, length| {
            let memory = change.pinner.memory(start, length, rights)?;
            Ok::<_, Error>(Arc::new(memory, GFP_KERNEL_ACCOUNT)?)
        };
        let new = match change.range {
            // One segment takes the place of all.
            Some(range) => {
                fits(dev, range.iova, range.length)?;
                desc.iova = range.iova;
                desc.length = range.length;
                old.moved(desc, get(range.start, range.length)?)
            }
            // Pages got for reading may be shared with others, who must not see writes.
            None => old.granting(desc, |piece| {
                let (start, length, writable, own) = match &*piece.memory {
                    Memory::User(m) => (m.start(), m.len(), m.is_writable(), m.is_of_current()),
                    Memory::Demand(m) => (m.start(), m.len(), m.is_writable(), m.is_of_current()),
                    _ => return Ok(piece.clone()),
                };
                if writable || rights & ACCESS_WRITABLE == 0 {
                    return Ok(piece.clone());
                }
                if !own {
                    let reason = c"write access to read-only memory of another process";
                    return Err(dev.handle.refuse(reason));
                }
                let memory = get(start, length)?;
                let handle = piece.handle;
                Ok(MrSegment { memory, handle })
            })?,
        };
        check_pmem_access(dev, new.desc.access, || new.is_persistent())?;
        let new = Arc::new(new, GFP_KERNEL_ACCOUNT)?;
        Self::close(dev, fixed)?;
        drop(old);
        let put = fixed.put(new);
        fixed.reopen();
        put
    }

    fn add(
        &self,
        dev: &Arc<DeviceCtx>,
        request: &Addition,
        pinner: &Pinner<'_>,
    ) -> Result<RegionState> {
        self.add_segment(dev, request, pinner)
    }

    fn remove(&self, dev: &Arc<DeviceCtx>, request: &Removal) -> Result<RegionState> {
        self.remove_segments(dev, request)
    }

    fn tie(self: &Arc<Self>, dev: &Arc<DeviceCtx>, qp: &Arc<QpCtx>, rkey: u32) -> Result {
        self.tie_to(dev, qp, rkey)
    }

    fn find(dev: &Arc<DeviceCtx>, lkey: u32) -> Option<Arc<Self>> {
        dev.mrs.table.get(RKey(lkey).index())
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        match &self.kind {
            Kind::VerbsMr(fixed) => {
                // No reference: it would keep memory pinned that is being removed.
                let (access, count) = {
                    let rcu = rcu::read_lock();
                    let layout = fixed.layout.enter(&rcu);
                    layout.map_or((0, 0), |layout| (layout.desc.access.bits(), layout.count()))
                };
                to.bits(c"access", access)?;
                to.number(c"segments", u32::try_from(count).unwrap_or(u32::MAX))
            }
            Kind::Frwr(fast) => to.bits(c"access", fast.access()),
            Kind::Window(_) => Ok(()),
        }
    }

    fn deregister(self: &Arc<Self>, dev: &Arc<DeviceCtx>) -> Result {
        match &self.kind {
            Kind::VerbsMr(fixed) => {
                if fixed.is_gone() {
                    // The row may be another's.
                    return Ok(());
                }
                Self::close(dev, fixed)?;
                dev.mrs.table.remove(self.row);
                // Whoever finds the region still finds it empty.
                self.empty(fixed);
            }
            Kind::Frwr(fast) => {
                dev.mrs.table.remove(self.row);
                fast.retire();
            }
            Kind::Window(_) => return Err(EINVAL),
        }
        Ok(())
    }
}
