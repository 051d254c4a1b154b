// SPDX-License-Identifier: GPL-2.0
//! Memory regions: keys to memory, checked on every access.
//!
//! A region is only ever used under RCU, through the table; deregistration takes it out of the
//! table and waits for a grace period, so that no access follows it.

use crate::{
    device::DeviceCtx,
    pd::PdCtx, //
};
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
        Memory,
        OutOfBounds, //
    },
    rand::random_u32,
    rdma::mr::{
        MemoryRegion,
        MrCreated,
        UserMr, //
    },
    sync::RcuTable, //
};
use rxe_proto::{
    check::rkey::{
        AccessError,
        Grant, //
    },
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

    /// Runs `f` on the memory of the region `key`, from where `check` grants access.
    #[inline]
    fn access<R>(
        &self,
        guard: &rcu::Guard,
        key: u32,
        check: impl FnOnce(&MrDesc) -> Result<Grant, AccessError>,
        f: impl FnOnce(&Memory, u64) -> Result<R, OutOfBounds>,
    ) -> Result<R, AccessError> {
        self.table
            .with(RKey(key).index(), guard, |mr| {
                let grant = check(&mr.desc)?;
                f(&mr.memory, mr.position(&grant)).map_err(|_| AccessError::OutOfBounds)
            })
            .unwrap_or(Err(AccessError::BadKey))
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
        guard: &rcu::Guard,
        pd: u32,
        key: u32,
        addr: u64,
        dst: &mut [u8],
        rights: Access,
    ) -> Result<(), AccessError> {
        if dst.is_empty() {
            return Ok(());
        }
        let len = u64::try_from(dst.len()).map_err(|_| AccessError::OutOfBounds)?;
        self.access(
            guard,
            key,
            |mr| mr.check(pd, key, addr, len, rights),
            |memory, at| memory.read(at, dst),
        )
    }

    /// Copies `src` to `addr` of the region `key`.
    ///
    /// # Errors
    ///
    /// Why the access is refused; nothing is written then.
    #[inline]
    pub(crate) fn write(
        &self,
        guard: &rcu::Guard,
        pd: u32,
        key: u32,
        addr: u64,
        src: &Payload<'_>,
        rights: Access,
    ) -> Result<(), AccessError> {
        if src.is_empty() {
            return Ok(());
        }
        let len = u64::try_from(src.len()).map_err(|_| AccessError::OutOfBounds)?;
        self.access(
            guard,
            key,
            |mr| mr.check(pd, key, addr, len, rights),
            |memory, at| {
                let mut at = at;
                for piece in src.pieces() {
                    memory.write(at, piece)?;
                    let len = u64::try_from(piece.len()).map_err(|_| OutOfBounds)?;
                    at = at.checked_add(len).ok_or(OutOfBounds)?;
                }
                Ok(())
            },
        )
    }

    /// Checks an access without doing it.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    #[inline]
    pub(crate) fn check(
        &self,
        guard: &rcu::Guard,
        pd: u32,
        key: u32,
        addr: u64,
        len: u64,
        rights: Access,
    ) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        self.access(
            guard,
            key,
            |mr| mr.check(pd, key, addr, len, rights),
            |_, _| Ok(()),
        )
    }

    /// Executes an atomic operation of the peer on the word at `addr` and returns its value
    /// before.
    ///
    /// # Errors
    ///
    /// Why the access is refused, misalignment included.
    pub(crate) fn atomic(
        &self,
        guard: &rcu::Guard,
        pd: u32,
        key: u32,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        self.access(
            guard,
            key,
            |mr| mr.check(pd, key, addr, 8, Access::REMOTE_ATOMIC),
            |memory, at| match op {
                AtomicOp::CmpSwp { compare, swap } => memory.cmpxchg(at, compare, swap),
                AtomicOp::FetchAdd { add } => memory.fetch_add(at, add),
            },
        )
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

impl MrCtx {
    /// Where a granted access starts in the memory.
    #[inline]
    fn position(&self, grant: &Grant) -> u64 {
        // The region of all kernel memory starts at address 0.
        grant.offset()
    }
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

    fn deregister(self: &Arc<Self>, dev: &Arc<DeviceCtx>) {
        drop(dev.mrs.table.remove_sync(RKey(self.desc.key).index()));
    }
}
