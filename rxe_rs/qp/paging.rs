// SPDX-License-Identifier: GPL-2.0
//! Page faults of a QP's accesses, and FLUSHes that are done in steps.
//!
//! The engine keeps its state: a send WQE that cannot be gathered stays at the head of its queue,
//! and so does a response. A packet whose payload cannot be placed is deferred together with those
//! that follow it, as UC and UD peers would not retransmit them. A work item faults the pages in
//! and resumes the QP. An access to pages that cannot be faulted in is refused when it is tried
//! again.
//!
//! A message that finds no room in the CQ of a process is deferred as well, and tried again at a
//! time.
//!
//! A FLUSH is deferred in the same way. The work item passes it to the engine again until it is
//! complete, one step at a time: it runs in process context, so other tasks get the CPU in
//! between.

use super::{
    stored::{
        Received,
        StoredPacket,
        FLAGS, //
    },
    QpCtx,
    QpInner, //
};
use crate::{
    clock,
    device::backlog::Backlog,
    mr::{
        MrAccess,
        PageFault, //
    },
    pager::PageIn,
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc,
        ArcBorrow, //
    },
    workqueue::WorkItem,
};
use rxe_kapi::{
    rdma::cq::Origin,
    work::this_cpu, //
};
use rxe_proto::{
    engine::backend::{
        Count,
        Handled, //
    },
    time::Instant, //
};

/// Deferred packets per QP; further ones are dropped, as by any queue of a network, and counted.
const MAX_DEFERRED: usize = 256;

/// Most bytes faulted in ahead of an access that continues where the previous one ended.
const MAX_READAHEAD: u64 = 1 << 20;

/// Most bytes that are copied for deferred packets with the QP locked, which keeps bottom halves
/// disabled: as many as a transmission round sends. The work item is queued again for the rest.
const MAX_REPLAYED: usize = 512 << 10;

/// Page faults and deferred packets of a QP.
pub(crate) struct Paging {
    /// The page fault to handle next.
    fault: Option<PageFault>,
    /// What handles page faults.
    page_in: Arc<PageIn>,
    /// It is in use. When it has ended, the QP is resumed.
    faulting: bool,
    /// The work item that resumes the QP is queued, or about to be.
    work_queued: bool,
    /// The CPU that the QP last transmitted from when the page fault occurred.
    cpu: u32,
    /// The page fault that the work item could not resolve.
    unresolved: Option<PageFault>,
    /// The page fault for which accesses are refused.
    denied: Option<PageFault>,
    /// Deferred packets, oldest first. Entries are `None` only while they are passed to the engine
    /// again.
    deferred: KVec<Option<KBox<StoredPacket>>>,
    /// The first of them waits for room in the CQ, until then at least.
    pub(super) room_at: Option<Instant>,
    /// They wait for nothing but the work item, which has passed on [`MAX_REPLAYED`] bytes.
    more: bool,
    /// How many of them are responses to requests of this side.
    responses: u16,
    /// Bytes charged for them.
    bytes: usize,
    /// Address of the next access if accesses are sequential.
    next_addr: u64,
    /// Bytes faulted in ahead last time.
    readahead: u64,
}

impl Paging {
    /// Creates the state of a QP whose page faults `page_in` handles.
    pub(super) fn new(page_in: Arc<PageIn>) -> Self {
        Self {
            fault: None,
            page_in,
            faulting: false,
            work_queued: false,
            cpu: 0,
            unresolved: None,
            denied: None,
            deferred: KVec::new(),
            room_at: None,
            more: false,
            responses: 0,
            bytes: 0,
            next_addr: 0,
            readahead: 0,
        }
    }

    /// Returns true if packets are deferred.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns true if there is neither a page fault nor a deferred packet.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.fault.is_none()
            && self.denied.is_none()
            && self.unresolved.is_none()
            && !self.is_deferring()
    }

    /// Returns true if responses are deferred, one of which may be what the QP's timer waits for.
    #[inline]
    pub(super) fn defers_responses(&self) -> bool {
        self.responses != 0
    }

    /// Returns true if another packet can be deferred; allocates the slots if there are none.
    fn has_slots(&mut self) -> bool {
        if self.deferred.capacity() == 0 {
            let Ok(slots) = KVec::with_capacity(MAX_DEFERRED, FLAGS) else {
                return false;
            };
            self.deferred = slots;
        }
        self.deferred.len() < MAX_DEFERRED
    }

    /// Defers a packet if the limits and memory allow it; returns false if it is to be dropped.
    #[must_use]
    fn defer(&mut self, backlog: &Arc<Backlog>, received: &Received<'_>) -> bool {
        if !self.has_slots() {
            return false;
        }
        let Ok(deferred) = StoredPacket::new(backlog, self.bytes, received) else {
            return false;
        };
        self.defer_stored(deferred)
    }

    /// Defers a packet that has been stored already; as [`defer`](Self::defer).
    #[must_use]
    fn defer_stored(&mut self, deferred: KBox<StoredPacket>) -> bool {
        if !self.has_slots() {
            return false;
        }
        let responses = u16::from(deferred.is_response());
        let bytes = deferred.charged();
        let fits = self.deferred.push_within_capacity(Some(deferred)).is_ok();
        if fits {
            self.responses = self.responses.saturating_add(responses);
            self.bytes = self.bytes.saturating_add(bytes);
        }
        fits
    }

    /// Records the page fault of the engine's accesses.
    #[inline]
    pub(crate) fn note_fault(&mut self, mrs: &MrAccess<'_>) {
        if let Some(page_fault) = mrs.take_page_fault() {
            self.fault = Some(page_fault);
        }
    }

    /// Makes accesses to pages that could not be faulted in fail.
    #[inline]
    pub(super) fn apply_denied(&self, mrs: &MrAccess<'_>) {
        if self.denied.is_some() {
            mrs.deny(self.denied);
        }
    }

    /// Forgets the refused page fault, after everything that waited has been tried again.
    #[inline]
    pub(super) fn clear_denied(&mut self) {
        self.denied = None;
    }

    /// Returns when the caller may call [`start_work`](Self::start_work), if what waits does so for
    /// room in the CQ.
    #[inline]
    pub(super) fn waits_for_room(&self, now: Instant) -> Option<Instant> {
        let can_fault = self.fault.is_some() && !self.faulting;
        self.room_at.filter(|at| now < *at && !can_fault)
    }

    /// Returns true if the caller must call [`start_page_in`](QpCtx::start_page_in).
    #[inline]
    pub(super) fn start_work(&mut self) -> bool {
        let waits = if self.faulting {
            // The page fault may last for ever, and be that of another operation.
            self.room_at.is_some() || self.more
        } else {
            // Without a page fault, the first deferred packet is a FLUSH that is not complete, or
            // has waited for room.
            self.fault.is_some() || self.is_deferring()
        };
        let start = waits && !self.work_queued;
        self.work_queued |= start;
        start
    }

    /// The caller could not queue the work item; another context will.
    pub(super) fn postpone_work(&mut self) {
        self.work_queued = false;
    }

    /// Drops all deferred packets: the QP receives nothing any more.
    pub(super) fn drop_deferred(&mut self) {
        self.deferred = KVec::new();
        self.room_at = None;
        self.more = false;
        self.responses = 0;
        self.bytes = 0;
    }

    /// Drops all deferred packets and page faults: the connection has ended.
    pub(super) fn reset(&mut self) {
        self.drop_deferred();
        self.fault = None;
        self.unresolved = None;
        self.denied = None;
    }

    /// Returns what handles page faults.
    pub(super) fn page_in(&self) -> Arc<PageIn> {
        self.page_in.clone()
    }

    /// Lets `other` handle page faults from now on, if what did so is still in use, and leaves that
    /// there.
    fn exchange(&mut self, other: &mut Arc<PageIn>) {
        if self.faulting {
            core::mem::swap(&mut self.page_in, other);
            self.faulting = false;
        }
    }

    /// Records that `page_in` has handled a page fault, which it could not resolve if `denied` is
    /// set. Returns the CPU to resume on; `None` if the QP has been reset since.
    fn end_fault(&mut self, page_in: &Arc<PageIn>, denied: Option<PageFault>) -> Option<u32> {
        if !Arc::ptr_eq(&self.page_in, page_in) {
            return None;
        }
        self.faulting = false;
        self.work_queued = true;
        self.unresolved = denied;
        Some(self.cpu)
    }

    /// Takes the page fault that is to be handled now, if there is one and none is being handled.
    fn begin_fault(&mut self) -> Option<(PageFault, u64)> {
        if self.faulting {
            return None;
        }
        self.cpu = this_cpu();
        let fault = self.take_fault()?;
        self.faulting = true;
        self.work_queued = false;
        Some(fault)
    }

    /// Takes the page fault, with the number of bytes to fault in behind it.
    fn take_fault(&mut self) -> Option<(PageFault, u64)> {
        let page_fault = self.fault.take()?;
        // Doubles each time as long as accesses are sequential.
        let readahead = if page_fault.addr == self.next_addr {
            let twice = self.readahead.saturating_mul(2);
            twice.max(page_fault.len).min(MAX_READAHEAD)
        } else {
            0
        };
        self.readahead = readahead;
        self.next_addr = page_fault
            .addr
            .wrapping_add(page_fault.len)
            .wrapping_add(readahead);
        Some((page_fault, readahead))
    }
}

impl WorkItem<1> for QpCtx {
    type Pointer = Arc<QpCtx>;

    fn run(this: Arc<QpCtx>) {
        this.resume();
    }
}

impl QpCtx {
    /// Defers a packet, or counts that it is dropped.
    #[cold]
    pub(crate) fn defer(&self, inner: &mut QpInner, received: &Received<'_>) {
        let backlog = &self.dev.backlog;
        if !inner.paging.defer(backlog, received) {
            let counter_set = self.counter_set(inner);
            counter_set.each(|counters| counters.count(Count::PageFaultDropped));
        }
    }

    /// As [`defer`](Self::defer), for a packet that has been stored already.
    #[cold]
    pub(super) fn defer_stored(&self, inner: &mut QpInner, stored: KBox<StoredPacket>) {
        if !inner.paging.defer_stored(stored) {
            let counter_set = self.counter_set(inner);
            counter_set.each(|counters| counters.count(Count::PageFaultDropped));
        }
    }

    /// Starts handling of the page fault, or resumes the QP; [`Paging::start_work`] has returned
    /// true for the caller.
    #[cold]
    pub(super) fn start_page_in(self: ArcBorrow<'_, Self>) {
        let (fault, page_in) = {
            let mut inner = self.inner.lock();
            if inner.destroyed {
                return;
            }
            let fault = inner.paging.begin_fault();
            (fault, inner.paging.page_in())
        };
        let Some((page_fault, readahead)) = fault else {
            return self.resume_on(this_cpu());
        };
        let demux = &self.dev.demux;
        match self.dev.mrs.fault(self.qpn, page_fault, readahead) {
            Some(fault) => demux.pager.submit(&demux.queues, page_in, fault),
            None => self.end_page_in(&page_in, None),
        }
    }

    /// `page_in` has handled the page fault; `denied` is set if it could not be resolved.
    ///
    /// # Context
    ///
    /// Process context.
    pub(crate) fn page_in_done(self: &Arc<Self>, page_in: &Arc<PageIn>, denied: Option<PageFault>) {
        self.as_arc_borrow().end_page_in(page_in, denied);
    }

    fn end_page_in(self: ArcBorrow<'_, Self>, page_in: &Arc<PageIn>, denied: Option<PageFault>) {
        let cpu = self.inner.lock().paging.end_fault(page_in, denied);
        if let Some(cpu) = cpu {
            self.resume_on(cpu);
        }
    }

    /// Lets the next connection of a QP that has been reset not wait for a page fault of the
    /// earlier one, which may never end. Without memory it waits.
    ///
    /// # Context
    ///
    /// Process context; may sleep. The QP stays in RESET, where no page fault occurs.
    pub(super) fn abandon_page_fault(&self) {
        let old = {
            let inner = self.inner.lock();
            inner.paging.faulting.then(|| inner.paging.page_in())
        };
        if let Some(mut page_in) = old.and_then(|old| old.another().ok()) {
            self.inner.lock().paging.exchange(&mut page_in);
            self.dev.demux.pager.end(&page_in);
        }
    }

    /// Queues the work item that resumes the QP in process context on `cpu`: packets sent from
    /// another CPU could overtake those sent last.
    fn resume_on(self: ArcBorrow<'_, Self>, cpu: u32) {
        let this: Arc<Self> = self.into();
        let _ = self.dev.demux.queues.local.enqueue_on::<_, 1>(cpu, this);
    }

    /// Resumes the QP.
    ///
    /// # Context
    ///
    /// Process context.
    fn resume(self: &Arc<Self>) {
        {
            let rcu = rcu::read_lock();
            let mut inner = self.inner.lock();
            if inner.destroyed {
                return;
            }
            inner.paging.work_queued = false;
            // Everything that waits is tried again now. A page fault recorded in the meantime,
            // perhaps for the same pages, would otherwise be handled once more, whether it still
            // occurs or not.
            inner.paging.fault = None;
            inner.paging.room_at = None;
            inner.paging.more = false;
            inner.paging.denied = inner.paging.unresolved.take();
            self.replay_deferred(&rcu, &mut inner);
            self.unlock_and_notify(&rcu, inner, Origin::Event);
        }
        self.as_arc_borrow().transmit(clock::now(), Origin::Event);
    }

    /// Passes the deferred packets to the engine, up to the first that must be deferred again, or
    /// [`MAX_REPLAYED`].
    fn replay_deferred(&self, rcu: &rcu::Guard, inner: &mut QpInner) {
        let mut deferred = core::mem::take(&mut inner.paging.deferred);
        let now = clock::now();
        let mrs = self.mr_access(rcu, inner);
        inner.paging.apply_denied(&mrs);
        let mut done: usize = 0;
        let mut bytes = 0usize;
        for slot in deferred.iter_mut() {
            if bytes >= MAX_REPLAYED {
                inner.paging.more = true;
                break;
            }
            let Some(item) = slot.take() else {
                break;
            };
            bytes = bytes.saturating_add(item.len());
            let (engine, mut backend, _) = inner.split(self, &mrs);
            let handled = item.pass_to(engine, now, &mut backend);
            if handled == Handled::Deferred {
                inner.paging.note_fault(&mrs);
                *slot = Some(item);
                break;
            }
            inner.paging.bytes = inner.paging.bytes.saturating_sub(item.charged());
            let responses = u16::from(item.is_response());
            inner.paging.responses = inner.paging.responses.saturating_sub(responses);
            if handled == Handled::Ahead {
                self.keep_stored(inner, &mrs, item);
            }
            done = done.wrapping_add(1);
        }
        inner.paging.denied = mrs.denied();
        inner.extent = mrs.hint.get();
        let left = deferred.len().saturating_sub(done);
        if left == 0 {
            if !inner.kept.is_empty() {
                self.replay_kept(inner, &mrs, now);
            }
            return;
        }
        if done != 0 {
            let slots = Cell::from_mut(&mut deferred[..]).as_slice_of_cells();
            for (to, from) in slots.iter().zip(slots.iter().skip(done)) {
                to.set(from.take());
            }
            deferred.truncate(left);
        }
        inner.paging.deferred = deferred;
    }
}
