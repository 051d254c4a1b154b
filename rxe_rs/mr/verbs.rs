// SPDX-License-Identifier: GPL-2.0
//! Registering regions, changing them and taking them out of service.

use super::{
    Fast,
    Fixed,
    Kind,
    MrCtx,
    GONE,
    MAX_MR_SIZE, //
};
use crate::{
    device::DeviceCtx,
    pd::PdCtx, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
};
use rxe_kapi::{
    mem::{
        DmaMemory,
        Memory,
        PageList,
        Umem, //
    },
    rdma::{
        detail::Details,
        mr::{
            MemoryRegion,
            MrCreated,
            Rereg,
            UserMr, //
        },
        unsupported, //
    },
    sync::Gate,
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
    let access = Access::from_bits(access).ok_or(EINVAL)?;
    if access.is_consistent() {
        Ok(access)
    } else {
        Err(dev
            .handle
            .refuse(c"remote write or atomic without local write"))
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

impl Fixed {
    fn new(desc: MrDesc, memory: Arc<Memory>) -> Self {
        Self {
            desc,
            memory,
            windows: Atomic::new(0),
        }
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
    fn close(&self) -> Result {
        self.windows.cmpxchg(0, GONE, Full).map_err(|_| EBUSY)?;
        Ok(())
    }
}

impl MrCtx {
    /// The region, if it is of the kind that verbs register.
    pub(crate) fn fixed(&self) -> Option<&Fixed> {
        match &self.kind {
            Kind::Fixed(fixed) => Some(fixed),
            _ => None,
        }
    }
}

fn register(dev: &DeviceCtx, desc: MrDesc, memory: Memory) -> Result<MrCreated<MrCtx>> {
    let memory = Arc::new(memory, GFP_KERNEL)?;
    let make = |key| Kind::Fixed(Fixed::new(MrDesc { key, ..desc }, memory));
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
        .union(Access::FLUSH_GLOBAL)
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
        register(dev, desc, Memory::User(user.umem))
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
            Kind::Fast(Fast {
                memory: Memory::Pages(pages),
                key: Atomic::new(key),
                valid: Gate::new(None),
            })
        };
        let (ctx, key) = dev.mrs.publish(pd.number(), make)?;
        Ok(MrCreated {
            ctx,
            lkey: key,
            rkey: key,
        })
    }

    fn pages(&self) -> Option<&PageList> {
        match &self.kind {
            Kind::Fast(Fast {
                memory: Memory::Pages(pages),
                ..
            }) => Some(pages),
            _ => None,
        }
    }

    fn pinned(&self) -> Option<&Umem> {
        match &*self.fixed()?.memory {
            Memory::User(umem) => Some(umem),
            _ => None,
        }
    }

    fn access(&self) -> u32 {
        self.fixed().map_or(0, |fixed| fixed.desc.access.bits())
    }

    fn reregister(
        self: &Arc<Self>,
        dev: &Arc<DeviceCtx>,
        change: Rereg<'_, DeviceCtx>,
    ) -> Result<Arc<Self>> {
        let Kind::Fixed(old) = &self.kind else {
            return Err(unsupported());
        };
        let mut desc = old.desc;
        if let Some(pd) = change.pd {
            desc.pd = pd.number();
        }
        if let Some(access) = change.access {
            desc.access = consistent(dev, access)?;
        }
        let memory = match change.pages {
            Some(new) => {
                if let Some((length, iova)) = new.range {
                    fits(dev, iova, length)?;
                    desc.length = length;
                    desc.iova = iova;
                }
                Arc::new(Memory::User(new.umem), GFP_KERNEL)?
            }
            None => old.memory.clone(),
        };
        let new = Arc::new(
            Self {
                row: self.row,
                pd: desc.pd,
                kind: Kind::Fixed(Fixed::new(desc, memory)),
            },
            GFP_KERNEL,
        )?;
        old.close()?;
        if let Err(e) = dev.mrs.table.replace_sync(self.row, new.clone()) {
            old.windows.store(0, Relaxed);
            return Err(e);
        }
        Ok(new)
    }

    fn find(dev: &Arc<DeviceCtx>, lkey: u32) -> Option<Arc<Self>> {
        dev.mrs.table.get(RKey(lkey).index())
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        match &self.kind {
            Kind::Fixed(fixed) => to.bits(c"access", fixed.desc.access.bits()),
            Kind::Fast(fast) => to.bits(c"access", fast.access()),
            Kind::Window(_) => Ok(()),
        }
    }

    fn deregister(self: &Arc<Self>, dev: &Arc<DeviceCtx>) -> Result {
        if let Kind::Fixed(fixed) = &self.kind {
            fixed.close()?;
        }
        drop(dev.mrs.table.remove_sync(self.row));
        Ok(())
    }
}
