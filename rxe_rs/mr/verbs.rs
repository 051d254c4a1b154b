// SPDX-License-Identifier: GPL-2.0
//! Registration, re-registration and deregistration of memory regions.

use super::{
    layout::{
        MrLayout,
        MrSegment, //
    },
    odp,
    Frwr,
    MrCtx,
    MrKind,
    VerbsMr,
    BIND_BLOCKED, //
};
use crate::{
    device::DeviceCtx,
    limits::MAX_MR_SIZE,
    verbs::pd::PdCtx, //
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
        Memory,
        PageList,
        SgMem, //
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
    },
    series::unsupported,
    sync::{
        Replaceable,
        Users, //
    },
};
use rxe_proto::{
    ids::RKey,
    table::region::{
        Access,
        MrDesc,
        State, //
    },
};

/// Checks the access rights of a user's region.
fn check_access(dev: &DeviceCtx, access: u32) -> Result<Access> {
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

/// Checks the right to flush to persistence against the memory, which is persistent or not.
///
/// # Errors
///
/// `EINVAL` if there is the right, and the memory is not persistent.
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

/// Checks the bounds of a user's region.
fn check_bounds(dev: &DeviceCtx, iova: u64, length: u64) -> Result {
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
            tied_index: Atomic::new(0),
            releasing: Users::new(),
        })
    }

    /// Counts one more bound window; returns false if the region is being deregistered or changed.
    pub(crate) fn get_window(&self) -> bool {
        loop {
            let windows = self.windows.load(Relaxed);
            if windows >= BIND_BLOCKED - 1 {
                return false;
            }
            let more = windows.wrapping_add(1);
            if self.windows.cmpxchg(windows, more, Full).is_ok() {
                return true;
            }
        }
    }

    /// Counts one bound window less.
    pub(crate) fn put_window(&self) {
        self.windows.fetch_sub(1, Full);
    }

    /// Blocks binding of windows; fails if one is bound (IBTA 10.6.7.2.6).
    ///
    /// # Errors
    ///
    /// `EBUSY` if one is bound.
    pub(super) fn block_windows(&self) -> Result {
        self.windows
            .cmpxchg(0, BIND_BLOCKED, Full)
            .map_err(|_| EBUSY)?;
        Ok(())
    }

    /// Allows binding of windows again.
    fn allow_windows(&self) {
        self.windows.store(0, Release);
    }

    /// Returns true if the key has been released. Only for verbs, which have exclusive access to
    /// the region.
    pub(super) fn is_released(&self) -> bool {
        self.windows.load(Relaxed) == BIND_BLOCKED
    }
}

impl MrCtx {
    /// Blocks binding of windows to the region.
    ///
    /// # Errors
    ///
    /// `EBUSY` if one is.
    pub(super) fn block_windows(dev: &DeviceCtx, verbs_mr: &VerbsMr) -> Result {
        let reason = c"a memory window is bound to the region";
        let closed = verbs_mr.block_windows();
        closed.map_err(|error| dev.handle.refuse_with(error, reason))
    }

    /// Removes the layout, and with it the memory, for good.
    pub(super) fn remove_layout(&self, verbs_mr: &VerbsMr) {
        let layout = verbs_mr.layout.take_sync();
        // The failure of a queue pair may have taken it before, and still wait for accesses.
        verbs_mr.releasing.close();
        if let Some(tied_mrs) = layout.as_ref().and_then(|layout| layout.tied_mrs.as_ref()) {
            tied_mrs.remove(self, verbs_mr);
        }
    }

    /// Returns the verbs MR, if it is one.
    pub(crate) fn verbs_mr(&self) -> Option<&VerbsMr> {
        match &self.kind {
            MrKind::VerbsMr(verbs_mr) => Some(verbs_mr),
            _ => None,
        }
    }
}

fn register(dev: &DeviceCtx, desc: MrDesc, memory: Memory) -> Result<MrCreated<MrCtx>> {
    check_pmem_access(dev, desc.access, || memory.is_persistent())?;
    let memory = Arc::new(memory, GFP_KERNEL_ACCOUNT)?;
    let uninit = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
    let make = |key| {
        let layout = MrLayout::new(MrDesc { key, ..desc }, memory);
        Ok(MrKind::VerbsMr(VerbsMr::new(uninit.write(layout).into())?))
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

    fn register(dev: &Arc<DeviceCtx>, pd: &PdCtx, user: UserMr) -> Result<MrCreated<Self>> {
        let access = check_access(dev, user.access)?;
        check_bounds(dev, user.iova, user.length)?;
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
        pd: &PdCtx,
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

    fn allocate(dev: &Arc<DeviceCtx>, pd: &PdCtx, pages: PageList) -> Result<MrCreated<Self>> {
        let make = |key| {
            Ok(MrKind::Frwr(Frwr {
                memory: Memory::Pages(pages),
                key: Atomic::new(key),
                registration: new_rearmable!(None, "Frwr::registration")?,
                deregistered: Atomic::new(false),
            }))
        };
        let (ctx, key) = dev.mrs.publish(pd.number(), make)?;
        Ok(MrCreated {
            ctx,
            lkey: key,
            rkey: key,
        })
    }

    fn allocate_empty(dev: &Arc<DeviceCtx>, pd: &PdCtx) -> Result<MrCreated<Self>> {
        let uninit = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let make = |key| {
            let layout = MrLayout::empty(MrDesc {
                pd: pd.number(),
                key,
                iova: 0,
                length: 0,
                access: Access::NONE,
                state: State::Valid,
            });
            Ok(MrKind::VerbsMr(VerbsMr::new(uninit.write(layout).into())?))
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
        memory: SgMem,
        iova: u64,
        access: u32,
    ) -> Result<RegionState> {
        self.fill_empty(dev, memory, iova, check_access(dev, access)?)
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
        pd: &PdCtx,
        advice: &Advice,
        ranges: impl ExactSizeIterator<Item = Range>,
    ) -> Result {
        odp::prefetch(dev, pd, advice, ranges)
    }

    fn pages(&self) -> Option<&PageList> {
        match &self.kind {
            MrKind::Frwr(Frwr {
                memory: Memory::Pages(pages),
                ..
            }) => Some(pages),
            _ => None,
        }
    }

    fn reregister(&self, dev: &Arc<DeviceCtx>, change: Rereg<'_, DeviceCtx>) -> Result {
        let MrKind::VerbsMr(verbs_mr) = &self.kind else {
            return Err(unsupported());
        };
        if verbs_mr.is_released() {
            let reason = c"the keys of the region have been released";
            return Err(dev.handle.refuse_with(ENOENT, reason));
        }
        let old = verbs_mr.layout.get().ok_or(ENOENT)?;
        if !old.has_segments() && !old.is_odp() {
            return Err(unsupported());
        }
        let mut desc = old.desc;
        if let Some(pd) = change.pd {
            desc.pd = pd.number();
        }
        if let Some(access) = change.access {
            desc.access = check_access(dev, access)?;
        }
        // Pinned memory stays pinned, and ODP memory stays ODP, unless the range is given again.
        let differs = desc.access.contains(Access::ON_DEMAND) != old.is_odp();
        if change.range.is_none() && differs {
            let reason = c"on-demand paging changes only together with the translation";
            return Err(dev.handle.refuse_with(unsupported(), reason));
        }
        let rights = desc.access.bits();
        let get_memory = |start, length| {
            let memory = change.pinner.memory(start, length, rights)?;
            Ok::<_, Error>(Arc::new(memory, GFP_KERNEL_ACCOUNT)?)
        };
        let new = match change.range {
            // One segment replaces all.
            Some(range) => {
                let length = range.length_for(rights)?;
                check_bounds(dev, range.iova, length)?;
                desc.iova = range.iova;
                desc.length = length;
                old.with_memory(desc, get_memory(range.start, length)?)
            }
            // Pages faulted in for reading may be shared with other processes, which must not see
            // writes.
            None => old.with_desc(desc, |segment| {
                let (start, length, writable, own) = match &*segment.memory {
                    Memory::User(m) => (m.start(), m.len(), m.is_writable(), m.is_of_current()),
                    Memory::Odp(m) => (m.start(), m.len(), m.is_writable(), m.is_of_current()),
                    _ => return Ok(segment.clone()),
                };
                if writable || rights & ACCESS_WRITABLE == 0 {
                    return Ok(segment.clone());
                }
                if !own {
                    let reason = c"write access to read-only memory of another process";
                    return Err(dev.handle.refuse(reason));
                }
                let memory = get_memory(start, length)?;
                let handle = segment.handle;
                Ok(MrSegment { memory, handle })
            })?,
        };
        check_pmem_access(dev, new.desc.access, || new.is_persistent())?;
        let new = Arc::new(new, GFP_KERNEL_ACCOUNT)?;
        Self::block_windows(dev, verbs_mr)?;
        drop(old);
        let replaced = verbs_mr.replace_layout(new);
        verbs_mr.allow_windows();
        replaced
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

    fn find(dev: &Arc<DeviceCtx>, lkey: u32) -> Option<Arc<Self>> {
        dev.mrs.table.get(RKey(lkey).index())
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        match &self.kind {
            MrKind::VerbsMr(verbs_mr) => {
                // No reference is taken: it would keep memory pinned that is being removed.
                let (access, count) = {
                    let rcu = rcu::read_lock();
                    let layout = verbs_mr.layout.try_access(&rcu);
                    layout.map_or((0, 0), |layout| (layout.desc.access.bits(), layout.count()))
                };
                to.bits(c"access", access)?;
                to.number(c"segments", u32::try_from(count).unwrap_or(u32::MAX))
            }
            MrKind::Frwr(frwr) => to.bits(c"access", frwr.access()),
            MrKind::Window(_) => Ok(()),
        }
    }

    fn deregister(self: &Arc<Self>, dev: &Arc<DeviceCtx>) -> Result {
        match &self.kind {
            MrKind::VerbsMr(verbs_mr) => {
                if verbs_mr.is_released() {
                    // The index may belong to another object now.
                    return Ok(());
                }
                Self::block_windows(dev, verbs_mr)?;
                dev.mrs.table.remove(self.index);
                // A look-up that still finds the region finds it without a layout.
                self.remove_layout(verbs_mr);
            }
            MrKind::Frwr(frwr) => {
                dev.mrs.table.remove(self.index);
                frwr.end_registration();
            }
            MrKind::Window(_) => return Err(EINVAL),
        }
        Ok(())
    }
}
