// SPDX-License-Identifier: GPL-2.0
//! What a QP does when memory it needs is not there, or when a FLUSH is too much to do at once.
//!
//! The engine leaves everything as it is: a send request that cannot be gathered stays where it is,
//! so does a response, and a packet whose data cannot be placed is kept, with those that come
//! behind it, for UC and UD peers would not send them again. A work item gets the memory and lets
//! the QP go on. What cannot be got is refused when it is asked for once more.
//!
//! A FLUSH is kept in the same way. The work item feeds it again until it is done, a piece each
//! time: in process context others get the CPU in between, whoever is to pay for it.

use super::{
    QpCtx, //
    QpInner,
};
use crate::mr::{
    MrAccess, //
    PageFault,
};
use core::cell::Cell;
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc,
        ArcBorrow, //
    },
    workqueue::WorkItem,
};
use rxe_kapi::{
    rdma::cq::Origin,
    time::now_ns,
    work::this_cpu, //
};
use rxe_proto::{
    engine::{
        backend::{
            Count,
            Handled, //
        },
        wc::NetKind,
        UdMeta, //
    },
    wire::packet::{
        Packet,
        Payload, //
    },
};

/// Packets kept; what comes on top is lost, as in any queue of a network, and counted.
const MAX_KEPT: usize = 256;

/// Bytes that packets kept for all QPs of a device may take, with what the allocator rounds up.
const MAX_BACKLOG: usize = 16 << 20;

/// A QP may keep the `SHARE`th part of what is free of that.
const SHARE: usize = 8;

/// Peers decide how much is kept, and nobody is charged for it: no reserves are touched, and nobody
/// waits.
const FLAGS: Flags = GFP_NOWAIT;

/// What the packets kept for the QPs of a device take.
pub(crate) struct Backlog(Atomic<usize>);

impl Backlog {
    /// Nothing.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(Atomic::new(0)), GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes room for `bytes` for a QP that has `own` bytes there already, if it may have more.
    fn take(this: &Arc<Self>, own: usize, bytes: usize) -> Option<Room> {
        let free = MAX_BACKLOG.saturating_sub(this.0.load(Relaxed));
        // Several CPUs may look at the same time: what is too much then is a packet each.
        if own.saturating_add(bytes) > free / SHARE {
            return None;
        }
        this.0.fetch_add(bytes, Relaxed);
        Some(Room {
            backlog: this.clone(),
            bytes,
        })
    }
}

/// What the allocator takes for `size` bytes, at most.
fn allocated(size: usize) -> usize {
    size.checked_next_power_of_two().unwrap_or(usize::MAX)
}

/// Room in a [`Backlog`].
struct Room {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.backlog.0.fetch_sub(self.bytes, Relaxed);
    }
}

/// Most bytes got ahead of an access that goes on where the one before it ended.
const MAX_AHEAD: u64 = 1 << 20;

/// A packet that is kept.
struct DeferredPacket {
    /// It responses a request of this side.
    responses: bool,
    /// Headers and payload.
    bytes: KVec<u8>,
    /// Bytes from BTH to ICRC.
    len: usize,
    net: NetKind,
    ip_header: [u8; 40],
    ip_len: usize,
    pkey_index: u16,
    vlan: Option<u16>,
    room: Room,
}

impl DeferredPacket {
    /// Copies a packet, if there is room for it: the QP has `own` bytes of the backlog.
    fn new(
        backlog: &Arc<Backlog>,
        own: usize,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &UdMeta<'_>,
    ) -> Result<Self> {
        let headers = packet.header_bytes();
        let size = headers.len().checked_add(payload.len()).ok_or(ENOMEM)?;
        let all = allocated(size).saturating_add(allocated(core::mem::size_of::<Self>()));
        let room = Backlog::take(backlog, own, all).ok_or(ENOMEM)?;
        let mut bytes = KVec::from_elem(0, size, FLAGS)?;
        let (front, back) = bytes.split_at_mut_checked(headers.len()).ok_or(ENOMEM)?;
        front.copy_from_slice(headers);
        payload.copy_to(back);
        let mut ip_header = [0; 40];
        for (to, from) in ip_header.iter_mut().zip(meta.ip_header) {
            *to = *from;
        }
        Ok(Self {
            responses: packet.opcode().is_response(),
            bytes,
            len: packet.icrc_offset().saturating_add(Packet::ICRC_LEN),
            net: meta.net,
            ip_header,
            ip_len: meta.ip_header.len(),
            pkey_index: meta.pkey_index,
            vlan: meta.vlan,
            room,
        })
    }

    fn meta(&self) -> UdMeta<'_> {
        UdMeta {
            net: self.net,
            ip_header: self.ip_header.get(..self.ip_len).unwrap_or(&[]),
            pkey_index: self.pkey_index,
            vlan: self.vlan,
        }
    }
}

/// State of a QP that waits for memory.
pub(crate) struct Paging {
    /// What an access has missed.
    wanted: Option<PageFault>,
    /// The work item is queued or runs.
    working: bool,
    /// Where the QP sent last when memory was missed.
    cpu: u32,
    /// What came of getting it: what could not be got.
    answer: Option<PageFault>,
    /// What accesses are to be refused for that reason.
    denied: Option<PageFault>,
    /// Packets put off, oldest first. None is empty but while they are fed again.
    kept: KVec<Option<KBox<DeferredPacket>>>,
    /// Those of them that answer requests of this side.
    responses: usize,
    /// Bytes that they take.
    bytes: usize,
    /// Where the next access begins if they follow each other.
    next: u64,
    /// Bytes got ahead last time.
    ahead: u64,
}

impl Paging {
    pub(super) fn new() -> Self {
        Self {
            wanted: None,
            working: false,
            cpu: 0,
            answer: None,
            denied: None,
            kept: KVec::new(),
            responses: 0,
            bytes: 0,
            next: 0,
            ahead: 0,
        }
    }

    /// Packets are kept.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Packets are kept that may be what the QP's timer is about.
    #[inline]
    pub(super) fn defers_responses(&self) -> bool {
        self.responses != 0
    }

    /// Keeps a packet, if there is room and memory; false if it is dropped.
    #[must_use]
    fn keep(
        &mut self,
        backlog: &Arc<Backlog>,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &UdMeta<'_>,
    ) -> bool {
        if self.kept.len() >= MAX_KEPT {
            return false;
        }
        if self.kept.capacity() == 0 {
            let Ok(room) = KVec::with_capacity(MAX_KEPT, FLAGS) else {
                return false;
            };
            self.kept = room;
        }
        let kept = DeferredPacket::new(backlog, self.bytes, packet, payload, meta);
        let Ok(kept) = kept.and_then(|kept| Ok(KBox::new(kept, FLAGS)?)) else {
            return false;
        };
        let responses = usize::from(kept.responses);
        let bytes = kept.room.bytes;
        let fits = self.kept.push_within_capacity(Some(kept)).is_ok();
        if fits {
            self.responses = self.responses.saturating_add(responses);
            self.bytes = self.bytes.saturating_add(bytes);
        }
        fits
    }

    /// Takes note of what the engine's accesses have missed.
    #[inline]
    pub(crate) fn note(&mut self, mrs: &MrAccess<'_>) {
        if let Some(page_fault) = mrs.take_page_fault() {
            self.wanted = Some(page_fault);
        }
    }

    /// Tells the next accesses what could not be got.
    #[inline]
    pub(super) fn warn(&self, mrs: &MrAccess<'_>) {
        if self.denied.is_some() {
            mrs.deny(self.denied);
        }
    }

    /// All that waited has been tried again.
    #[inline]
    pub(super) fn tried(&mut self) {
        self.denied = None;
    }

    /// True if the work item is to be queued.
    #[inline]
    pub(super) fn start(&mut self) -> bool {
        // What is kept and wants no memory is a FLUSH that is not done.
        let start = (self.wanted.is_some() || self.is_deferring()) && !self.working;
        self.working |= start;
        start
    }

    /// The work item could not be queued: somebody else will.
    pub(super) fn postpone(&mut self) {
        self.working = false;
    }

    /// Forgets everything: the connection is over.
    pub(super) fn reset(&mut self) {
        self.kept.clear();
        self.responses = 0;
        self.bytes = 0;
        self.wanted = None;
        self.denied = None;
    }

    /// What to get, and how much behind it.
    fn take(&mut self) -> Option<(PageFault, u64)> {
        let page_fault = self.wanted.take()?;
        // Twice as much each time, as long as accesses follow each other.
        let ahead = if page_fault.addr == self.next {
            let twice = self.ahead.saturating_mul(2);
            twice.max(page_fault.len).min(MAX_AHEAD)
        } else {
            0
        };
        self.ahead = ahead;
        self.next = page_fault
            .addr
            .wrapping_add(page_fault.len)
            .wrapping_add(ahead);
        Some((page_fault, ahead))
    }
}

impl QpInner {
    /// An access has missed memory, and nobody gets it yet.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.paging.wanted.is_some() && !self.paging.working
    }
}

impl WorkItem<1> for QpCtx {
    type Pointer = Arc<QpCtx>;

    fn run(this: Arc<QpCtx>) {
        this.resume();
    }
}

impl QpCtx {
    /// Keeps a packet for later, or counts that it is dropped.
    #[cold]
    pub(crate) fn defer(
        &self,
        inner: &mut QpInner,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &UdMeta<'_>,
    ) {
        let backlog = &self.dev.backlog;
        if !inner.paging.keep(backlog, packet, payload, meta) {
            let tally = self.tally(inner);
            tally.each(|counters| counters.count(Count::MemoryNotThere));
        }
    }

    /// Has somebody get what the QP waits for; the caller saw [`Paging::start`] agree.
    #[cold]
    pub(super) fn page(self: ArcBorrow<'_, Self>) {
        let wanted = {
            let mut inner = self.inner.lock();
            if inner.dead {
                return;
            }
            inner.paging.cpu = this_cpu();
            inner.paging.take()
        };
        let fault = wanted.and_then(|(page_fault, ahead)| {
            let mrs = &self.dev.mrs;
            mrs.fault(self.qpn, page_fault, ahead)
        });
        let demux = &self.dev.demux;
        match fault {
            Some(fault) => {
                let item = self.page_in.clone();
                demux.pager.submit(&demux.queues, item, fault);
            }
            None => self.resume_on(this_cpu()),
        }
    }

    /// The memory has been got, or cannot be. Process context.
    pub(crate) fn paged(self: &Arc<Self>, denied: Option<PageFault>) {
        let cpu = {
            let mut inner = self.inner.lock();
            inner.paging.answer = denied;
            inner.paging.cpu
        };
        self.as_arc_borrow().resume_on(cpu);
    }

    /// Lets the QP go on soon, in process context of `cpu`: packets sent from another one could
    /// overtake those sent last.
    fn resume_on(self: ArcBorrow<'_, Self>, cpu: u32) {
        let this: Arc<Self> = self.into();
        let _ = self.dev.demux.queues.local.enqueue_on::<_, 1>(cpu, this);
    }

    /// Lets the QP go on. Process context.
    fn resume(self: &Arc<Self>) {
        {
            let rcu = rcu::read_lock();
            let mut inner = self.inner.lock();
            if inner.dead {
                return;
            }
            inner.paging.working = false;
            // All that waits is tried again now. What was missed while the memory was being got, the
            // same memory perhaps, would be got once more otherwise, whether it is missed or not.
            inner.paging.wanted = None;
            inner.paging.denied = inner.paging.answer.take();
            self.replay(&rcu, &mut inner);
            self.release(&rcu, inner, Origin::Event);
        }
        self.as_arc_borrow().drive(Origin::Event);
    }

    /// Feeds the packets that were put off, up to the first that must wait again.
    fn replay(&self, rcu: &rcu::Guard, inner: &mut QpInner) {
        let mut kept = core::mem::take(&mut inner.paging.kept);
        let now = now_ns();
        let mrs = self.memory(rcu, inner);
        inner.paging.warn(&mrs);
        let mut done: usize = 0;
        for slot in kept.iter_mut() {
            let Some(item) = slot.take() else {
                break;
            };
            if let Ok(packet) = Packet::parse(&item.bytes, item.len) {
                let body = Payload::from_slice(&item.bytes);
                let payload = body.slice(packet.payload_offset(), packet.payload_len());
                let (engine, mut backend, _) = inner.split(self, &mrs);
                let meta = item.meta();
                let handled = engine.handle_packet(now, &packet, &payload, &meta, &mut backend);
                if handled == Handled::Deferred {
                    inner.paging.note(&mrs);
                    *slot = Some(item);
                    break;
                }
            }
            inner.paging.bytes = inner.paging.bytes.saturating_sub(item.room.bytes);
            let responses = usize::from(item.responses);
            inner.paging.responses = inner.paging.responses.saturating_sub(responses);
            done = done.wrapping_add(1);
        }
        inner.paging.denied = mrs.denied();
        inner.extent = mrs.hint.get();
        let left = kept.len().saturating_sub(done);
        if left == 0 {
            return;
        }
        if done != 0 {
            let slots = Cell::from_mut(&mut kept[..]).as_slice_of_cells();
            for (to, from) in slots.iter().zip(slots.iter().skip(done)) {
                to.set(from.take());
            }
            kept.truncate(left);
        }
        inner.paging.kept = kept;
    }
}
