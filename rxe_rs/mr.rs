// SPDX-License-Identifier: GPL-2.0
//! Memory regions and windows: the table of keys, and the checks of every access.
//!
//! Regions are looked up by key under RCU. A verb that deregisters or changes one makes further
//! accesses fail and waits for those in progress, so that none follows. Verbs MRs are changed in
//! process context, where waiting sleeps ([`Replaceable`]); FRWR regions and windows, which work
//! requests register, bind and invalidate, have a [`Rearmable`] each, which also works in softirq.

mod keys;
mod layout;
pub(crate) mod odp;
mod persist;
mod segments;
mod tied;
mod verbs;
pub(crate) mod window;

pub(crate) use keys::Invalidation;
pub(crate) use layout::MrLayout;
pub(crate) use odp::PageFault;
pub(crate) use tied::TiedMrs;

use self::layout::MemCursor;
use crate::{
    device::{
        counters::Counters,
        DeviceCtx, //
    },
    mr::window::{
        BoundRegion,
        WindowCtx, //
    },
    queue::ShortList,
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc,
        UniqueArc, //
    },
};
use rxe_kapi::{
    mem::{
        AccessFailure,
        ExtentHint,
        Memory, //
    },
    rand::random_u32,
    rdma::mr::LOCAL_DMA_LKEY,
    sync::{
        InUse,
        NumberTable,
        Rearmable,
        Replaceable,
        Users, //
    },
};
use rxe_proto::{
    check::{
        rkey::AccessError,
        window::Window, //
    },
    engine::backend::{
        AtomicOp,
        Count,
        LocalFault,
        RemoteFault, //
    },
    ids::RKey,
    table::region::{
        Access,
        MrDesc, //
    },
    wire::payload::Payload, //
};

/// Indices of the table; index 0 stays unused.
const INDICES: core::ops::RangeInclusive<u32> = 1..=0xff_ffff;

/// The object that a key refers to.
pub(crate) struct MrCtx {
    /// Upper 24 bits of the key.
    index: u32,
    /// Number of the protection domain; a verbs MR has its own in its layout.
    pd: u64,
    pub(crate) kind: MrKind,
}

/// The kinds of objects that have keys.
pub(crate) enum MrKind {
    /// A region that verbs register and change.
    VerbsMr(VerbsMr),
    /// A region for fast registration work requests (FRWR).
    Frwr(Frwr),
    /// A memory window.
    Window(WindowCtx),
}

/// A region that a verb registered.
pub(crate) struct VerbsMr {
    /// Its attributes and memory, until a verb changes them; empty after the key has been released.
    pub(crate) layout: Replaceable<MrLayout>,
    /// Number of windows bound to it; [`BIND_BLOCKED`] if none can be bound, for good after the key
    /// has been released.
    windows: Atomic<u32>,
    /// Its index in the list of MRs tied to its queue pair, if it is tied; protected by that list's
    /// lock.
    tied_index: Atomic<u32>,
    /// Who releases its memory because that queue pair has failed: deregistration waits for them.
    releasing: Users,
}

/// Value of [`VerbsMr::windows`] of a region that is being deregistered or changed.
const BIND_BLOCKED: u32 = u32::MAX;

/// A region that work requests register and invalidate.
pub(crate) struct Frwr {
    /// The page list.
    memory: Memory,
    /// The current key, or the last one.
    key: Atomic<u32>,
    /// What is registered, if anything.
    registration: Rearmable<MrDesc>,
    /// Deregistered: it can no longer be registered. Changed only within [`Rearmable::update`].
    deregistered: Atomic<bool>,
}

/// A bound window and its region.
pub(crate) struct Binding {
    pub(crate) window: Window,
    pub(crate) region: BoundRegion,
}

/// The regions and windows of a device by the upper 24 bits of their keys.
pub(crate) struct Mrs {
    pub(crate) table: NumberTable<MrCtx>,
}

impl Mrs {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            table: NumberTable::new()?,
        })
    }

    /// Allocates a key for the object that `make` creates, and makes it visible to accesses.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all keys are in use, `ENOMEM`, or what `make` returns.
    pub(crate) fn publish(
        &self,
        pd: u64,
        make: impl FnOnce(u32) -> Result<MrKind>,
    ) -> Result<(Arc<MrCtx>, u32)> {
        let uninit = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let reserved = self.table.reserve(INDICES)?;
        let index = reserved.number();
        let [variant, ..] = random_u32().to_ne_bytes();
        let key = RKey::from_parts(index, variant).0;
        let kind = make(key)?;
        let ctx: Arc<MrCtx> = uninit.write(MrCtx { index, pd, kind }).into();
        reserved.publish(ctx.clone());
        Ok((ctx, key))
    }
}

/// The result of looking up a key, with the access that was granted.
struct MrLookup<'g> {
    mr: &'g MrCtx,
    /// The layout, if it is a verbs MR.
    layout: Option<InUse<'g, MrLayout>>,
}

impl MrLookup<'_> {
    /// Returns true if another look-up would find the same. If not, a writer may be waiting for
    /// this user.
    #[inline]
    fn is_current(&self) -> bool {
        match (&self.mr.kind, &self.layout) {
            (MrKind::VerbsMr(_), Some(layout)) => !layout.is_closing(),
            (MrKind::VerbsMr(_), None) => false,
            (MrKind::Frwr(frwr), _) => !frwr.deregistered.load(Relaxed),
            (MrKind::Window(window), _) => !window.is_deallocated(),
        }
    }
}

/// A QP's accesses to the regions of its device within one RCU read-side critical section.
///
/// Caches the region used last, and stays its user, as the packets of a batch mostly access the
/// same one. A writer that waits for it waits for one packet at most, because every access checks
/// whether one does.
pub(crate) struct MrAccess<'g> {
    mrs: &'g Mrs,
    counters: &'g Counters,
    guard: &'g rcu::Guard,
    pd: u64,
    qpn: u32,
    /// The memory that [`LOCAL_DMA_LKEY`] stands for, if this is a QP of a kernel consumer.
    all_memory: Option<&'g Memory>,
    last: Cell<Option<MrLookup<'g>>>,
    pub(crate) hint: ExtentHint,
    /// The page fault that an access caused.
    page_fault: Cell<Option<PageFault>>,
    /// The page fault that could not be resolved: an access that causes it again is refused.
    denied: Cell<Option<PageFault>>,
    /// Bytes that may still be written back to persistent memory in this context.
    write_back_left: Cell<u64>,
}

/// Why bytes were not copied from the memory of a peer.
pub(crate) enum CopyFault<E> {
    /// The memory of the peer cannot be read.
    Source,
    /// The memory to copy to cannot be accessed.
    Destination(E),
}

impl<E> From<ShortList> for CopyFault<E> {
    fn from(_: ShortList) -> Self {
        Self::Source
    }
}

impl From<CopyFault<AccessError>> for LocalFault {
    fn from(fault: CopyFault<AccessError>) -> Self {
        match fault {
            CopyFault::Source => Self::Gone,
            CopyFault::Destination(e) => local_fault(e),
        }
    }
}

impl From<CopyFault<AccessError>> for RemoteFault {
    fn from(fault: CopyFault<AccessError>) -> Self {
        match fault {
            CopyFault::Source => Self::Gone,
            CopyFault::Destination(e) => remote_fault(e),
        }
    }
}

/// Converts the error of an access to local memory for the engine.
#[inline]
pub(crate) fn local_fault(error: AccessError) -> LocalFault {
    match error {
        AccessError::NotPresent => LocalFault::NotPresent,
        _ => LocalFault::Refused,
    }
}

/// Converts the error of an access of the peer for the engine.
#[inline]
pub(crate) fn remote_fault(error: AccessError) -> RemoteFault {
    match error {
        AccessError::NotPresent => RemoteFault::NotPresent,
        _ => RemoteFault::Refused,
    }
}

impl<'g> MrAccess<'g> {
    /// Creates the accesses of queue pair `qpn` in protection domain `pd` to memory of `dev`;
    /// `all_memory` is that of a kernel consumer, `hint` the hint that an earlier one ended with.
    /// Bottom halves must be disabled during each access.
    #[inline]
    pub(crate) fn new(
        dev: &'g DeviceCtx,
        guard: &'g rcu::Guard,
        (pd, qpn): (u64, u32),
        all_memory: Option<&'g Memory>,
        hint: usize,
    ) -> Self {
        Self {
            mrs: &dev.mrs,
            counters: &dev.counters,
            guard,
            pd,
            qpn,
            all_memory,
            last: Cell::new(None),
            hint: ExtentHint::new(hint),
            page_fault: Cell::new(None),
            denied: Cell::new(None),
            write_back_left: Cell::new(persist::MAX_WRITE_BACK),
        }
    }

    /// Returns the guard of the RCU read-side critical section of the accesses.
    pub(crate) fn guard(&self) -> &'g rcu::Guard {
        self.guard
    }

    /// Makes the next access that causes page fault `denied` fail instead of being deferred.
    pub(crate) fn deny(&self, denied: Option<PageFault>) {
        self.denied.set(denied);
    }

    /// Returns the page fault set by that, if no access has caused it.
    pub(crate) fn denied(&self) -> Option<PageFault> {
        self.denied.get()
    }

    /// Returns the page fault that an access has caused since the last call.
    #[inline]
    pub(crate) fn take_page_fault(&self) -> Option<PageFault> {
        self.page_fault.take()
    }

    /// Looks up `key`, valid or not. Call [`cache`](Self::cache) when the access has ended.
    #[inline]
    fn find(&self, key: u32) -> Result<MrLookup<'g>, AccessError> {
        let index = RKey(key).index();
        if let Some(last) = self.last.take() {
            if last.mr.index == index && last.is_current() {
                return Ok(last);
            }
        }
        let mr = self.mrs.table.borrow(index, self.guard);
        let mr = &**mr.ok_or(AccessError::BadKey)?;
        let layout = match &mr.kind {
            MrKind::VerbsMr(verbs_mr) => Some(
                verbs_mr
                    .layout
                    .try_access(self.guard)
                    .ok_or(AccessError::BadKey)?,
            ),
            MrKind::Frwr(_) | MrKind::Window(_) => None,
        };
        Ok(MrLookup { mr, layout })
    }

    /// Caches the region for the next access.
    #[inline]
    fn cache(&self, found: MrLookup<'g>) {
        self.last.set(Some(found));
    }

    /// Calls `f` with a cursor at the start of the access, if `key` permits it to `pd`. The memory
    /// stays valid during the call.
    #[inline]
    fn with_access<R>(
        &self,
        pd: u64,
        key: u32,
        addr: u64,
        len: usize,
        rights: Access,
        f: impl FnOnce(MemCursor<'_>) -> Result<R, AccessFailure>,
    ) -> Result<R, AccessError> {
        let len = u64::try_from(len).map_err(|_| AccessError::OutOfBounds)?;
        // No region has this key, and peers cannot use it.
        let local = key == LOCAL_DMA_LKEY && !rights.intersects(Access::REMOTE);
        let result = match self.all_memory {
            Some(memory) if local => {
                // A writer may be waiting for the region used last.
                self.last.set(self.last.take().filter(MrLookup::is_current));
                f(MemCursor::Whole(memory, addr, &self.hint))
            }
            _ => self.with_key(pd, key, addr, len, rights, f)?,
        };
        match result {
            Ok(result) => Ok(result),
            Err(AccessFailure::OutOfBounds) => Err(AccessError::OutOfBounds),
            Err(AccessFailure::Unreadable) => {
                self.counters.count(Count::UnreadableMemory);
                Err(AccessError::Unreadable)
            }
            Err(AccessFailure::NotPresent) => Err(self.record_fault(PageFault {
                pd,
                key,
                addr,
                len,
                rights,
            })),
        }
    }

    /// As [`with_access`](Self::with_access), for the key of a region or window. The outer error is
    /// that `key` does not permit the access, the inner one is that of the access itself.
    #[inline]
    fn with_key<R>(
        &self,
        pd: u64,
        key: u32,
        addr: u64,
        len: u64,
        rights: Access,
        f: impl FnOnce(MemCursor<'_>) -> Result<R, AccessFailure>,
    ) -> Result<Result<R, AccessFailure>, AccessError> {
        let found = self.find(key)?;
        let result = match (&found.mr.kind, &found.layout) {
            (_, Some(layout)) => {
                let grant = layout.desc.check(pd, key, addr, len, rights)?;
                let cursor = layout.cursor(grant.offset(), len, &self.hint);
                cursor.map_err(AccessFailure::from).and_then(f)
            }
            (MrKind::VerbsMr(_), None) => return Err(AccessError::BadKey),
            (MrKind::Frwr(frwr), None) => {
                let desc = frwr.registration.try_access().ok_or(AccessError::BadKey)?;
                let grant = desc.check(pd, key, addr, len, rights)?;
                f(MemCursor::Whole(&frwr.memory, grant.offset(), &self.hint))
            }
            (MrKind::Window(window), None) => {
                let binding = window.binding.try_access().ok_or(AccessError::BadKey)?;
                let qp = (pd, self.qpn);
                let at = binding.window.check(qp, key, addr, len, rights)?;
                let region = binding.region.verbs_mr().ok_or(AccessError::BadKey)?;
                // A window also loses what its region has lost since it was bound.
                let layout = region
                    .layout
                    .try_access(self.guard)
                    .ok_or(AccessError::BadKey)?;
                let cursor = layout.cursor_at(at, len, &self.hint);
                cursor.map_err(AccessFailure::from).and_then(f)
            }
        };
        self.cache(found);
        Ok(result)
    }

    /// Records a page fault.
    #[cold]
    fn record_fault(&self, page_fault: PageFault) -> AccessError {
        if self.denied.get() == Some(page_fault) {
            self.denied.set(None);
            return AccessError::OutOfBounds;
        }
        self.page_fault.set(Some(page_fault));
        AccessError::NotPresent
    }

    /// Copies `dst.len()` bytes from `addr` of the region `key`.
    ///
    /// # Errors
    ///
    /// Why the access is refused; `dst` is unchanged then, unless the memory is shorter than the
    /// region.
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
        let len = dst.len();
        self.with_access(self.pd, key, addr, len, rights, |cursor| cursor.read(dst))
    }

    /// Copies `src` to `addr` of the region `key`.
    ///
    /// # Errors
    ///
    /// Why the access is refused; nothing has been written then, except that a part may have been
    /// for [`AccessError::NotPresent`].
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

    /// As [`write`](Self::write), with protection domain `pd`.
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub(crate) fn write_in(
        &self,
        pd: u64,
        key: u32,
        addr: u64,
        src: &Payload<'_>,
        rights: Access,
    ) -> Result<(), AccessError> {
        if src.is_empty() {
            return Ok(());
        }
        self.with_access(pd, key, addr, src.len(), rights, |cursor| cursor.write(src))
    }

    /// Copies `len` bytes from `from`, key and address in the memory of `peer` and the rights that
    /// this takes, to `addr` of the region `key` of protection domain `pd`.
    ///
    /// # Errors
    ///
    /// [`CopyFault`]; for the destination as of [`write`](Self::write).
    pub(crate) fn copy_from(
        &self,
        (pd, key, addr, rights): (u64, u32, u64, Access),
        peer: &MrAccess<'_>,
        (from_key, from, from_rights): (u32, u64, Access),
        len: usize,
    ) -> Result<(), CopyFault<AccessError>> {
        let copied = self.with_access(pd, key, addr, len, rights, |to| {
            let copy = |from: MemCursor<'_>| Ok(to.copy_from(&from, len));
            match peer.with_access(peer.pd, from_key, from, len, from_rights, copy) {
                Ok(Ok(())) => Ok(true),
                Ok(Err(CopyFault::Destination(failure))) => Err(failure),
                Ok(Err(CopyFault::Source)) | Err(_) => Ok(false),
            }
        });
        match copied {
            Ok(true) => Ok(()),
            Ok(false) => Err(CopyFault::Source),
            Err(e) => Err(CopyFault::Destination(e)),
        }
    }

    /// Returns true if the access is permitted and causes no page fault.
    pub(crate) fn is_pinned(&self, key: u32, addr: u64, len: usize, rights: Access) -> bool {
        let pinned = |cursor: MemCursor<'_>| Ok(cursor.is_pinned());
        self.with_access(self.pd, key, addr, len, rights, pinned)
            .unwrap_or(false)
    }

    /// Checks an access without copying.
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
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfBounds)?;
        self.with_access(self.pd, key, addr, len, rights, |_| Ok(()))
    }

    /// Checks an access to the whole region of `key`. Windows do not grant it.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub(crate) fn check_all(&self, key: u32, rights: Access) -> Result<(), AccessError> {
        self.find_all(key, rights).map(|_| ())
    }

    /// Looks up `key`, which must permit access to its whole region. Windows do not grant it.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    fn find_all(&self, key: u32, rights: Access) -> Result<MrLookup<'g>, AccessError> {
        let found = self.find(key)?;
        match (&found.mr.kind, &found.layout) {
            (_, Some(layout)) if layout.is_revoked() => Err(AccessError::BadKey),
            (_, Some(layout)) => layout.desc.check_rights(self.pd, key, rights),
            (MrKind::VerbsMr(_), None) => Err(AccessError::BadKey),
            (MrKind::Frwr(frwr), None) => {
                let desc = frwr.registration.try_access().ok_or(AccessError::BadKey)?;
                desc.check_rights(self.pd, key, rights)
            }
            (MrKind::Window(_), None) => Err(AccessError::NoRight),
        }?;
        Ok(found)
    }

    /// Executes an atomic operation of the peer on the word at `addr` and returns its previous
    /// value (IBTA 9.4.5).
    ///
    /// # Errors
    ///
    /// Why the access is refused, misalignment included.
    pub(crate) fn atomic(&self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let rights = match op {
            AtomicOp::Write { .. } => Access::REMOTE_WRITE,
            AtomicOp::CmpSwp { .. } | AtomicOp::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        };
        self.with_access(self.pd, key, addr, 8, rights, |cursor| {
            let (memory, at) = cursor.word()?;
            match op {
                AtomicOp::CmpSwp { compare, swap } => memory.cmpxchg(at, compare, swap),
                AtomicOp::FetchAdd { add } => memory.fetch_add(at, add),
                AtomicOp::Write { value } => memory.store(at, value).map(|()| 0),
            }
        })
    }
}
