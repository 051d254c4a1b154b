// SPDX-License-Identifier: GPL-2.0
//! Memory regions: keys to memory, checked on every access.
//!
//! A region is only ever used under RCU, through the table; deregistration takes it out of the
//! table and waits for a grace period, so that no access follows it.

use crate::{
    device::DeviceCtx,
    pd::PdCtx, //
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc,
        UniqueArc, //
    },
};
use rxe_kapi::{
    mem::{
        DmaMemory,
        ExtentHint,
        Memory,
        OutOfBounds, //
    },
    rand::random_u32,
    rdma::{
        detail::Details,
        mr::{
            MemoryRegion,
            MrCreated,
            UserMr, //
        },
    },
    sync::RcuTable, //
};
use rxe_proto::{
    check::rkey::AccessError,
    engine::ports::AtomicOp,
    ids::RKey,
    table::region::{
        Access,
        MrDesc,
        State, //
    },
    wire::payload::Payload, //
};

/// Rows of the table; row 0 stays empty.
const ROWS: core::ops::RangeInclusive<u32> = 1..=0xff_ffff;

/// Most regions of a device.
pub(crate) const MAX_MR: u32 = 0xff_ffff;

/// Largest region in bytes: more than a process can map.
pub(crate) const MAX_MR_SIZE: u64 = 1 << 47;

/// A memory region.
pub(crate) struct MrCtx {
    desc: MrDesc,
    memory: Memory,
}

/// The regions of a device by the upper 24 bits of their keys.
#[pin_data]
pub(crate) struct Mrs {
    #[pin]
    table: RcuTable<MrCtx>,
}

impl Mrs {
    /// No regions.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- RcuTable::new(),
        })
    }

    /// Gives a region a key and lets accesses find it.
    fn publish(&self, mut desc: MrDesc, memory: Memory) -> Result<MrCreated<MrCtx>> {
        let room = UniqueArc::new_uninit(GFP_KERNEL)?;
        let row = self.table.reserve_random(ROWS)?;
        let [variant, ..] = random_u32().to_ne_bytes();
        let key = RKey::from_parts(row, variant).0;
        desc.key = key;
        let ctx: Arc<MrCtx> = room.write(MrCtx { desc, memory }).into();
        if let Err(e) = self.table.publish(row, ctx.clone()) {
            self.table.remove(row);
            return Err(e);
        }
        Ok(MrCreated {
            ctx,
            lkey: key,
            rkey: key,
        })
    }
}

/// A QP's accesses to the regions of its device within one RCU read side section.
///
/// Remembers the region used last: packets of a train mostly go to the same one. That is as good
/// as looking it up, for deregistration waits until the section has ended, and what the region
/// grants is checked on every access.
pub(crate) struct MrAccess<'g> {
    mrs: &'g Mrs,
    guard: &'g rcu::Guard,
    pd: u32,
    last: Cell<Option<(u32, &'g MrCtx)>>,
    pub(crate) hint: ExtentHint,
}

impl<'g> MrAccess<'g> {
    /// Accesses on behalf of protection domain `pd`; `hint` is what an earlier one ended with.
    #[inline]
    pub(crate) fn new(mrs: &'g Mrs, guard: &'g rcu::Guard, pd: u32, hint: usize) -> Self {
        Self {
            mrs,
            guard,
            pd,
            last: Cell::new(None),
            hint: ExtentHint::new(hint),
        }
    }

    /// The region of `key`, valid or not.
    #[inline]
    fn find(&self, key: u32) -> Result<&'g MrCtx, AccessError> {
        let row = RKey(key).index();
        if let Some((last, mr)) = self.last.get() {
            if last == row {
                return Ok(mr);
            }
        }
        let mr = self.mrs.table.borrow(row, self.guard);
        let mr = &**mr.ok_or(AccessError::BadKey)?;
        self.last.set(Some((row, mr)));
        Ok(mr)
    }

    /// The memory of the region `key` and where in it an access permitted to `pd` starts.
    #[inline]
    fn reach(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        len: usize,
        rights: Access,
    ) -> Result<(&'g Memory, u64), AccessError> {
        let mr = self.find(key)?;
        let len = u64::try_from(len).map_err(|_| AccessError::OutOfBounds)?;
        let grant = mr.desc.check(pd, key, addr, len, rights)?;
        Ok((&mr.memory, grant.offset()))
    }

    /// Copies `dst.len()` bytes from `addr` of the region `key`.
    ///
    /// # Errors
    ///
    /// Why the access is refused; `dst` is untouched then, unless the region is shorter than it
    /// says.
    #[inline]
    pub(crate) fn read(
        &self,
        key: u32,
        addr: u64,
        dst: &mut [u8],
        rights: Access,
    ) -> Result<(), AccessError> {
        if dst.is_empty() {
            return Ok(());
        }
        let (memory, at) = self.reach(self.pd, key, addr, dst.len(), rights)?;
        memory.read(at, dst, &self.hint).map_err(beyond)
    }

    /// Copies `src` to `addr` of the region `key`.
    ///
    /// # Errors
    ///
    /// Why the access is refused; nothing is written then.
    #[inline]
    pub(crate) fn write(
        &self,
        key: u32,
        addr: u64,
        src: &Payload<'_>,
        rights: Access,
    ) -> Result<(), AccessError> {
        self.write_in(self.pd, key, addr, src, rights)
    }

    /// As [`write`](Self::write), on behalf of protection domain `pd`.
    #[inline]
    pub(crate) fn write_in(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        src: &Payload<'_>,
        rights: Access,
    ) -> Result<(), AccessError> {
        if src.is_empty() {
            return Ok(());
        }
        let (memory, mut at) = self.reach(pd, key, addr, src.len(), rights)?;
        for piece in src.pieces() {
            memory.write(at, piece, &self.hint).map_err(beyond)?;
            let len = u64::try_from(piece.len()).map_err(|_| AccessError::OutOfBounds)?;
            at = at.checked_add(len).ok_or(AccessError::OutOfBounds)?;
        }
        Ok(())
    }

    /// Checks an access without doing it.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    #[inline]
    pub(crate) fn check(
        &self,
        key: u32,
        addr: u64,
        len: u32,
        rights: Access,
    ) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        let mr = self.find(key)?;
        let len = u64::from(len);
        mr.desc.check(self.pd, key, addr, len, rights).map(|_| ())
    }

    /// Executes an atomic operation of the peer on the word at `addr` and returns its value
    /// before.
    ///
    /// # Errors
    ///
    /// Why the access is refused, misalignment included.
    pub(crate) fn atomic(&self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let (memory, at) = self.reach(self.pd, key, addr, 8, Access::REMOTE_ATOMIC)?;
        match op {
            AtomicOp::CmpSwp { compare, swap } => memory.cmpxchg(at, compare, swap),
            AtomicOp::FetchAdd { add } => memory.fetch_add(at, add),
        }
        .map_err(beyond)
    }
}

fn beyond(_: OutOfBounds) -> AccessError {
    AccessError::OutOfBounds
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
        .bits();

    fn register(dev: &Arc<DeviceCtx>, pd: &Arc<PdCtx>, user: UserMr) -> Result<MrCreated<Self>> {
        let access = Access::from_bits(user.access).ok_or(EINVAL)?;
        if !access.is_consistent() {
            return Err(dev
                .handle
                .refuse(c"remote write or atomic without local write"));
        }
        if user.length > MAX_MR_SIZE || user.iova.checked_add(user.length).is_none() {
            return Err(dev
                .handle
                .refuse(c"region too large, or its addresses wrap"));
        }
        let desc = MrDesc {
            pd: pd.number(),
            key: 0,
            iova: user.iova,
            length: user.length,
            access,
            state: State::Valid,
        };
        dev.mrs.publish(desc, Memory::User(user.umem))
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
        dev.mrs.publish(desc, Memory::Dma(memory))
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        to.bits(c"access", self.desc.access.bits())
    }

    fn deregister(self: &Arc<Self>, dev: &Arc<DeviceCtx>) {
        drop(dev.mrs.table.remove_sync(RKey(self.desc.key).index()));
    }
}
