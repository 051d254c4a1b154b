// SPDX-License-Identifier: GPL-2.0
//! Shared receive queues: one queue of receive WQEs for many QPs.
//!
//! The queue's lock is taken within that of a QP, and no lock is taken within it. A WQE leaves the
//! queue whole: its scatter list is copied into the QP that takes it, so that other QPs, the
//! process and a resize no longer affect it.

use crate::{
    device::{
        DeviceCtx,
        RxeDevice, //
    },
    limits::{
        MAX_SGE,
        MAX_SRQ,
        MAX_SRQ_WR, //
    },
    queue::{
        map_info,
        sges_of,
        RecvList,
        RecvStore,
        Sge,
        SGE_BYTES, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rxe_kapi::{
    mem::ring::UserRing,
    new_spinlock_irq,
    rdma::{
        event::SrqEvents,
        srq::{
            SharedReceiveQueue,
            SrqChange,
            SrqInit,
            SrqReport, //
        },
        udata::{
            Mapping,
            UserCall, //
        },
        wr::RecvChain, //
    },
    sync::SpinLockIrq, //
};
use rxe_proto::{
    abi::{
        self,
        layout::RECV_WQE_LEN, //
    },
    engine::{
        backend::TakenRecv,
        wr::RecvWr, //
    },
};

/// A shared receive queue.
#[pin_data]
pub(crate) struct SrqCtx {
    /// Number of the protection domain that the keys of scatter lists belong to, whatever the QP's
    /// is (IBTA 10.2.3).
    pub(crate) pd: u64,
    /// Number of the queue, unique on the device and not 0.
    number: u32,
    max_sge: u8,
    events: Arc<SrqEvents>,
    /// Allows the process to mmap the user's ring. Locked while attributes change.
    #[pin]
    mmap_entry: Mutex<Option<Mapping>>,
    #[pin]
    queue: SpinLockIrq<SrqQueue>,
}

/// The state that the lock protects.
struct SrqQueue {
    store: Store,
    /// Raise the limit event once when fewer WQEs are left; 0 if not armed.
    limit: u32,
}

/// Storage of the WQEs.
enum Store {
    /// In a ring shared with a user process.
    User {
        ring: UserRing,
        /// Copy of one slot of the ring.
        scratch: KVec<u8>,
    },
    /// In kernel memory.
    Kernel(RecvStore),
}

impl Store {
    /// Returns the number of posted WQEs.
    fn len(&self) -> u32 {
        match self {
            Store::User { ring, .. } => ring.pending(),
            Store::Kernel(store) => store.len(),
        }
    }

    /// Returns the number of WQEs that fit.
    fn capacity(&self) -> u32 {
        match self {
            Store::User { ring, .. } => ring.capacity(),
            Store::Kernel(store) => store.capacity(),
        }
    }

    /// Takes the oldest WQE; its scatter list is copied to `to`.
    fn take(&mut self, max_sge: u8, to: &mut RecvList) -> TakenRecv {
        match self {
            Store::User { ring, scratch } => {
                if !ring.take(scratch) {
                    return TakenRecv::Empty;
                }
                match abi::decode_recv(scratch, max_sge) {
                    Ok(wqe) => {
                        to.set(sges_of(wqe.list));
                        TakenRecv::Wr(wqe.wr)
                    }
                    Err(bad) => TakenRecv::Invalid { wr_id: bad.wr_id },
                }
            }
            Store::Kernel(store) => match store.pop(to) {
                Some(wr_id) => match to.length() {
                    Some(length) => TakenRecv::Wr(RecvWr { wr_id, length }),
                    None => TakenRecv::Invalid { wr_id },
                },
                None => TakenRecv::Empty,
            },
        }
    }
}

impl SrqCtx {
    /// Returns the most entries that the scatter list of a WQE has.
    pub(crate) fn max_sge(&self) -> usize {
        usize::from(self.max_sge)
    }

    /// Takes the oldest WQE for a QP; its scatter list is copied to `to` (IBTA 10.2.9).
    ///
    /// The limit event is raised if fewer WQEs than the limit are left, and also if the queue is
    /// empty: a limit armed too late would otherwise never raise it.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn take(&self, to: &mut RecvList) -> TakenRecv {
        let (taken, below_limit) = {
            let mut guard = self.queue.lock();
            let queue = &mut *guard;
            let taken = queue.store.take(self.max_sge, to);
            let below_limit = queue.limit != 0 && queue.store.len() < queue.limit;
            if below_limit {
                queue.limit = 0;
            }
            (taken, below_limit)
        };
        if below_limit {
            self.events.limit_reached();
        }
        taken
    }

    /// Returns true if a WQE is posted.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn is_pending(&self) -> bool {
        self.queue.lock().store.len() != 0
    }

    /// Returns the slots for `max_wr` WQEs, of which one always stays empty.
    fn slots(dev: &DeviceCtx, max_wr: u32) -> Result<u32> {
        if max_wr == 0 || max_wr > MAX_SRQ_WR {
            return Err(dev
                .handle
                .refuse(c"no receive requests, or more than the device's limit"));
        }
        Ok(max_wr.wrapping_add(1).next_power_of_two())
    }

    /// Creates a user ring of `slots`, its mmap entry and the response that describes it.
    fn user_ring(
        slots: u32,
        max_sge: u8,
        user: &UserCall<'_>,
    ) -> Result<(UserRing, Mapping, [u8; 16])> {
        let element = element_len(max_sge).next_power_of_two();
        let ring = UserRing::new(slots, element)?;
        let mmap_entry = user.map(ring.buffer())?;
        let info = map_info(&mmap_entry)?;
        Ok((ring, mmap_entry, info))
    }

    /// Moves the WQEs of a user queue to a ring of `slots`. The process must not post meanwhile:
    /// what it posts to the old ring during the call is lost.
    fn resize_user(
        &self,
        dev: &DeviceCtx,
        slots: u32,
        user: &UserCall<'_>,
        entry: &mut Option<Mapping>,
    ) -> Result {
        // `struct rxe_modify_srq_cmd`: the address to which the process wants the new mmap offset
        // written.
        let mut address = [0u8; 8];
        user.request(&mut address)?;
        let (mut ring, mmap_entry, info) = Self::user_ring(slots, self.max_sge, user)?;
        let waiting = match &self.queue.lock().store {
            Store::User { ring, .. } => ring.snapshot(),
            Store::Kernel(_) => return Err(EINVAL),
        };
        if !ring.fill_from(&waiting) {
            return Err(dev
                .handle
                .refuse(c"more receive requests wait than would fit"));
        }
        // Nothing may fail after the process has got its response.
        user.write_to(u64::from_ne_bytes(address), &info)?;
        let old = {
            let mut queue = self.queue.lock();
            let Store::User { ring: current, .. } = &mut queue.store else {
                return Err(EINVAL);
            };
            // QPs went on taking WQEs while they were copied.
            ring.skip(current.taken_since(&waiting));
            core::mem::replace(current, ring)
        };
        drop((old, entry.replace(mmap_entry), waiting));
        Ok(())
    }

    /// Replaces the queue of a kernel consumer by one of `slots` slots, with what is posted.
    fn resize_kernel(&self, dev: &DeviceCtx, slots: u32) -> Result {
        let mut larger = RecvStore::new(slots, usize::from(self.max_sge))?;
        let old = {
            let mut queue = self.queue.lock();
            let Store::Kernel(current) = &mut queue.store else {
                return Err(EINVAL);
            };
            if current.len() > larger.capacity() {
                drop(queue);
                return Err(dev
                    .handle
                    .refuse(c"more receive requests wait than would fit"));
            }
            current.move_to(&mut larger)?;
            core::mem::replace(current, larger)
        };
        drop(old);
        Ok(())
    }
}

/// Returns the bytes of a WQE in a user's ring.
fn element_len(max_sge: u8) -> usize {
    RECV_WQE_LEN + usize::from(max_sge) * SGE_BYTES
}

impl SharedReceiveQueue for SrqCtx {
    type Device = DeviceCtx;

    fn create(dev: &Arc<DeviceCtx>, init: SrqInit<'_, RxeDevice>) -> Result<Arc<Self>> {
        let slots = Self::slots(dev, init.max_wr)?;
        if usize::try_from(init.max_sge)? > MAX_SGE {
            return Err(dev.handle.refuse(c"more SGEs than the device's limit"));
        }
        let max_sge = u8::try_from(init.max_sge)?.max(1);
        let number = dev.srqs.alloc(1..=MAX_SRQ)?;
        let make = || {
            let (store, mmap_entry) = match &init.user {
                Some(user) => {
                    let (ring, mmap_entry, info) = Self::user_ring(slots, max_sge, user)?;
                    // `struct rxe_create_srq_resp`.
                    let mut response = [0u8; 24];
                    let fields = [&info[..], &number.to_ne_bytes()[..]];
                    for (to, from) in response.iter_mut().zip(fields.into_iter().flatten()) {
                        *to = *from;
                    }
                    user.respond(&response)?;
                    let scratch = KVec::from_elem(0, element_len(max_sge), GFP_KERNEL_ACCOUNT)?;
                    (Store::User { ring, scratch }, Some(mmap_entry))
                }
                None => {
                    let store = RecvStore::new(slots, usize::from(max_sge))?;
                    (Store::Kernel(store), None)
                }
            };
            let queue = SrqQueue { store, limit: 0 };
            Arc::pin_init(
                pin_init!(Self {
                    pd: init.pd.number(),
                    number,
                    max_sge,
                    events: init.events.clone(),
                    mmap_entry <- new_mutex!(mmap_entry, "SrqCtx::mmap_entry"),
                    queue <- new_spinlock_irq!(queue, "SrqCtx::queue"),
                }),
                GFP_KERNEL_ACCOUNT,
            )
        };
        make().inspect_err(|_| {
            dev.srqs.free(number);
        })
    }

    /// Resizes the queue or arms its limit (IBTA 11.2).
    fn modify(
        &self,
        dev: &Arc<DeviceCtx>,
        change: SrqChange,
        user: Option<&UserCall<'_>>,
    ) -> Result {
        let slots = match change.max_wr {
            Some(max_wr) => Some(Self::slots(dev, max_wr)?),
            None => None,
        };
        let mut mmap_entry = self.mmap_entry.lock();
        {
            let queue = self.queue.lock();
            let capacity = slots.map_or(queue.store.capacity(), |slots| slots.wrapping_sub(1));
            if change.limit.unwrap_or(queue.limit) > capacity {
                drop(queue);
                return Err(dev.handle.refuse(c"limit above the size of the queue"));
            }
        }
        match (slots, user) {
            (Some(slots), Some(user)) => self.resize_user(dev, slots, user, &mut mmap_entry)?,
            (Some(slots), None) => self.resize_kernel(dev, slots)?,
            (None, _) => {}
        }
        if let Some(limit) = change.limit {
            self.queue.lock().limit = limit;
        }
        Ok(())
    }

    fn query(&self) -> SrqReport {
        let queue = self.queue.lock();
        SrqReport {
            max_wr: queue.store.capacity(),
            max_sge: u32::from(self.max_sge),
            limit: queue.limit,
        }
    }

    fn destroy(self: &Arc<Self>, dev: &Arc<DeviceCtx>) {
        drop(self.mmap_entry.lock().take());
        dev.srqs.free(self.number);
    }

    fn post_recv(&self, chain: &mut RecvChain<'_>) -> Result {
        let mut queue = self.queue.lock();
        let Store::Kernel(store) = &mut queue.store else {
            return Err(EINVAL);
        };
        while let Some(wr) = chain.current() {
            let sges = wr.sges().map(|s| Sge {
                addr: s.addr,
                length: s.length,
                lkey: s.lkey,
            });
            store.push(wr.wr_id(), sges)?;
            chain.advance();
        }
        Ok(())
    }
}
