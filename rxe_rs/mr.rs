// SPDX-License-Identifier: GPL-2.0
//! Memory regions and windows: keys to memory, checked on every access.
//!
//! They are found through a table, under RCU, and what they grant is used by those alone whom they
//! have let in: whoever deregisters a region or changes it turns everybody away and waits for those
//! few who are inside, so that no access follows. What verbs register sleeps meanwhile
//! ([`Replaceable`]); what queue pairs register, bind and invalidate lies behind a [`Rearmable`] of
//! each, which is for softirq too.

pub(crate) mod demand;
mod keys;
mod layout;
mod persist;
mod segments;
mod ties;
mod verbs;
pub(crate) mod window;

pub(crate) use demand::PageFault;
pub(crate) use keys::Side;
pub(crate) use layout::MrLayout;
pub(crate) use ties::Ties;

use self::layout::MemCursor;
use crate::{
    device::counters::Counters,
    device::DeviceCtx,
    mr::window::{
        Bound,
        WindowCtx, //
    },
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
    sync::{
        InUse,
        RcuTable,
        Rearmable,
        Replaceable, //
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

/// Rows of the table; row 0 stays empty.
const ROWS: core::ops::RangeInclusive<u32> = 1..=0xff_ffff;

/// What a key stands for.
pub(crate) struct MrCtx {
    /// Upper 24 bits of the key.
    row: u32,
    /// Number of the protection domain; what verbs registered says it itself.
    pd: u32,
    pub(crate) kind: Kind,
}

/// The kinds of things that have keys.
pub(crate) enum Kind {
    /// A region that verbs register and change.
    VerbsMr(VerbsMr),
    /// A region for fast registration.
    Frwr(Frwr),
    /// A memory window.
    Window(WindowCtx),
}

/// A region that a verb registered.
pub(crate) struct VerbsMr {
    /// What it grants and the memory behind it, as long as no verb changes that; nothing once the
    /// key is released.
    pub(crate) layout: Replaceable<MrLayout>,
    /// Windows bound to it; [`GONE`] when none can be bound, for good once the key is released.
    windows: Atomic<u32>,
    /// Where it is in the list of what is tied to its queue pair, if it is; guarded by that list.
    place: Atomic<u32>,
}

/// Value of [`VerbsMr::windows`] of a region that is going away.
const GONE: u32 = u32::MAX;

/// A region that queue pairs register and invalidate.
pub(crate) struct Frwr {
    /// A list of pages.
    memory: Memory,
    /// The key it has, or had last.
    key: Atomic<u32>,
    /// What is registered, if anything is.
    valid: Rearmable<MrDesc>,
    /// Deregistered: nothing can be registered any more. Changed when nobody is inside the gate.
    gone: Atomic<bool>,
}

/// A window that is bound, and to what.
pub(crate) struct Binding {
    pub(crate) window: Window,
    pub(crate) region: Bound,
}

/// The regions and windows of a device by the upper 24 bits of their keys.
#[pin_data]
pub(crate) struct Mrs {
    #[pin]
    pub(crate) table: RcuTable<MrCtx>,
}

impl Mrs {
    /// No regions.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- RcuTable::new(),
        })
    }

    /// Gives what `make` makes a key and lets accesses find it.
    pub(crate) fn publish(
        &self,
        pd: u32,
        make: impl FnOnce(u32) -> Result<Kind>,
    ) -> Result<(Arc<MrCtx>, u32)> {
        let room = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let row = self.table.reserve_random(ROWS)?;
        let [variant, ..] = random_u32().to_ne_bytes();
        let key = RKey::from_parts(row, variant).0;
        let publish = || {
            let kind = make(key)?;
            let ctx: Arc<MrCtx> = room.write(MrCtx { row, pd, kind }).into();
            self.table.publish(row, ctx.clone())?;
            Ok((ctx, key))
        };
        publish().inspect_err(|_| {
            self.table.remove(row);
        })
    }
}

/// A region or window that was found by its key, and what was let in to.
struct Found<'g> {
    mr: &'g MrCtx,
    /// What it grants, if a verb registered it.
    layout: Option<InUse<'g, MrLayout>>,
}

impl Found<'_> {
    /// Whether it is as good as looking it up once more. If not, somebody may be waiting for us.
    #[inline]
    fn is_current(&self) -> bool {
        match (&self.mr.kind, &self.layout) {
            (Kind::VerbsMr(_), Some(layout)) => !layout.is_awaited(),
            (Kind::VerbsMr(_), None) => false,
            (Kind::Frwr(fast), _) => !fast.gone.load(Relaxed),
            (Kind::Window(window), _) => !window.is_gone(),
        }
    }
}

/// A QP's accesses to the regions of its device within one RCU read side section.
///
/// Remembers the region used last, and stays inside: packets of a train mostly go to the same one.
/// Whoever waits for us to leave does so for one packet at most, for on every access it is asked
/// whether somebody does.
pub(crate) struct MrAccess<'g> {
    mrs: &'g Mrs,
    counters: &'g Counters,
    guard: &'g rcu::Guard,
    pd: u32,
    qpn: u32,
    last: Cell<Option<Found<'g>>>,
    pub(crate) hint: ExtentHint,
    /// Memory that an access found not to be there.
    page_fault: Cell<Option<PageFault>>,
    /// Memory that cannot be got: an access that misses it is refused.
    denied: Cell<Option<PageFault>>,
    /// Bytes that may still be made persistent now.
    persist_left: Cell<u64>,
}

/// What an engine is told of a refused access of its own.
#[inline]
pub(crate) fn local_fault(error: AccessError) -> LocalFault {
    match error {
        AccessError::NotPresent => LocalFault::NotPresent,
        _ => LocalFault::Refused,
    }
}

/// What an engine is told of a refused access of its peer.
#[inline]
pub(crate) fn remote_fault(error: AccessError) -> RemoteFault {
    match error {
        AccessError::NotPresent => RemoteFault::NotPresent,
        _ => RemoteFault::Refused,
    }
}

impl<'g> MrAccess<'g> {
    /// Accesses to memory of `dev` of queue pair `qpn` in protection domain `pd`; `hint` is what an
    /// earlier one ended with. Bottom halves are off whenever one is made.
    #[inline]
    pub(crate) fn new(
        dev: &'g DeviceCtx,
        guard: &'g rcu::Guard,
        (pd, qpn): (u32, u32),
        hint: usize,
    ) -> Self {
        Self {
            mrs: &dev.mrs,
            counters: &dev.counters,
            guard,
            pd,
            qpn,
            last: Cell::new(None),
            hint: ExtentHint::new(hint),
            page_fault: Cell::new(None),
            denied: Cell::new(None),
            persist_left: Cell::new(persist::AT_ONCE),
        }
    }

    /// The next access that misses `denied` is refused instead of put off.
    pub(crate) fn deny(&self, denied: Option<PageFault>) {
        self.denied.set(denied);
    }

    /// What is left of that.
    pub(crate) fn denied(&self) -> Option<PageFault> {
        self.denied.get()
    }

    /// What an access has missed since this was asked last.
    #[inline]
    pub(crate) fn take_page_fault(&self) -> Option<PageFault> {
        self.page_fault.take()
    }

    /// The region of `key`, valid or not. [`keep`](Self::keep) it when the access is over.
    #[inline]
    fn find(&self, key: u32) -> Result<Found<'g>, AccessError> {
        let row = RKey(key).index();
        if let Some(last) = self.last.take() {
            if last.mr.row == row && last.is_current() {
                return Ok(last);
            }
        }
        let mr = self.mrs.table.borrow(row, self.guard);
        let mr = &**mr.ok_or(AccessError::BadKey)?;
        let layout = match &mr.kind {
            Kind::VerbsMr(fixed) => {
                Some(fixed.layout.enter(self.guard).ok_or(AccessError::BadKey)?)
            }
            Kind::Frwr(_) | Kind::Window(_) => None,
        };
        Ok(Found { mr, layout })
    }

    /// The next access is likely to be to the same region.
    #[inline]
    fn keep(&self, found: Found<'g>) {
        self.last.set(Some(found));
    }

    /// Calls `f` with the place in memory where the access begins that `key` permits to `pd`. It
    /// stays so during the call.
    #[inline]
    fn with_access<R>(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        len: usize,
        rights: Access,
        f: impl FnOnce(MemCursor<'_>) -> Result<R, AccessFailure>,
    ) -> Result<R, AccessError> {
        let found = self.find(key)?;
        let len = u64::try_from(len).map_err(|_| AccessError::OutOfBounds)?;
        let result = match (&found.mr.kind, &found.layout) {
            (_, Some(layout)) => {
                let grant = layout.desc.check(pd, key, addr, len, rights)?;
                let place = layout.place(grant.offset(), len, &self.hint);
                place.map_err(AccessFailure::from).and_then(f)
            }
            (Kind::VerbsMr(_), None) => return Err(AccessError::BadKey),
            (Kind::Frwr(fast), None) => {
                let desc = fast.valid.try_access().ok_or(AccessError::BadKey)?;
                let grant = desc.check(pd, key, addr, len, rights)?;
                f(MemCursor::Whole(&fast.memory, grant.offset(), &self.hint))
            }
            (Kind::Window(window), None) => {
                let bound = window.bound.try_access().ok_or(AccessError::BadKey)?;
                let who = (pd, self.qpn);
                let at = bound.window.check(who, key, addr, len, rights)?;
                let region = bound.region.fixed().ok_or(AccessError::BadKey)?;
                // What the region has lost since the window was bound, the window has lost too.
                let layout = region.layout.enter(self.guard).ok_or(AccessError::BadKey)?;
                let place = layout.place_at(at, len, &self.hint);
                place.map_err(AccessFailure::from).and_then(f)
            }
        };
        self.keep(found);
        match result {
            Ok(result) => Ok(result),
            Err(AccessFailure::OutOfBounds) => Err(AccessError::OutOfBounds),
            Err(AccessFailure::Unreadable) => {
                self.counters.count(Count::UnreadableMemory);
                Err(AccessError::Unreadable)
            }
            Err(AccessFailure::NotPresent) => Err(self.miss(PageFault {
                pd,
                key,
                addr,
                len,
                rights,
            })),
        }
    }

    /// Takes note of memory that is not there.
    #[cold]
    fn miss(&self, page_fault: PageFault) -> AccessError {
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
        let len = dst.len();
        self.with_access(self.pd, key, addr, len, rights, |place| place.read(dst))
    }

    /// Copies `src` to `addr` of the region `key`.
    ///
    /// # Errors
    ///
    /// Why the access is refused; nothing is written then, but for
    /// [`AccessError::NotPresent`], when a part may have been.
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
        self.with_access(pd, key, addr, src.len(), rights, |place| place.write(src))
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
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfBounds)?;
        self.with_access(self.pd, key, addr, len, rights, |_| Ok(()))
    }

    /// Checks an access to all that `key` stands for. Windows grant no such thing.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub(crate) fn check_all(&self, key: u32, rights: Access) -> Result<(), AccessError> {
        let found = self.find(key)?;
        match (&found.mr.kind, &found.layout) {
            (_, Some(layout)) if layout.is_cut() => Err(AccessError::BadKey),
            (_, Some(layout)) => layout.desc.admit(self.pd, key, rights),
            (Kind::VerbsMr(_), None) => Err(AccessError::BadKey),
            (Kind::Frwr(fast), None) => {
                let desc = fast.valid.try_access().ok_or(AccessError::BadKey)?;
                desc.admit(self.pd, key, rights)
            }
            (Kind::Window(_), None) => Err(AccessError::NoRight),
        }
    }

    /// Executes an atomic operation of the peer on the word at `addr` and returns its value
    /// before.
    ///
    /// # Errors
    ///
    /// Why the access is refused, misalignment included.
    pub(crate) fn atomic(&self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let rights = match op {
            AtomicOp::Write { .. } => Access::REMOTE_WRITE,
            AtomicOp::CmpSwp { .. } | AtomicOp::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        };
        self.with_access(self.pd, key, addr, 8, rights, |place| {
            let (memory, at) = place.word()?;
            match op {
                AtomicOp::CmpSwp { compare, swap } => memory.cmpxchg(at, compare, swap),
                AtomicOp::FetchAdd { add } => memory.fetch_add(at, add),
                AtomicOp::Write { value } => memory.store(at, value).map(|()| 0),
            }
        })
    }
}
