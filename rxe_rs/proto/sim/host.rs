// SPDX-License-Identifier: GPL-2.0
//! The backend of one engine in the simulator: memory, queues, completions, one region.

use super::{PAGE, RKEY};
use crate::engine::attrs::{pending_responses, replay_entries};
use crate::engine::backend::{
    AtomicOp, Backend, Completions, Count, Flushed, LocalFault, RecvQueue, RemoteFault,
    RemoteMemory, RemoteRight, SendQueue, Storage, TakenRecv,
};
use crate::engine::offered::Offered;
use crate::engine::wc::Wc;
use crate::engine::wr::{FlushKind, LocalOp, LocalOpFault, RecvWr, SendWqe};
use crate::engine::{PendingResponse, Qp, ReplayEntry};
use crate::ids::{PKey, RKey};
use crate::wire::feth::Selectivity;
use crate::wire::packet::Payload;
use crate::wire::payload::Source;
use crate::wire::Feth;
use core::fmt::{Debug, Formatter};
use core::ops::Index;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::vec::Vec;

/// A receive buffer posted by the test: a range of the memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuf {
    pub wr_id: u64,
    pub at: usize,
    pub len: u32,
}

/// What an engine has counted: `counts[Count::Timeout]`.
#[derive(Clone, Copy)]
pub struct Counts([u64; Count::COUNT]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Count::COUNT])
    }
}

impl Index<Count> for Counts {
    type Output = u64;

    fn index(&self, what: Count) -> &u64 {
        &self.0[what.index()]
    }
}

/// Those that are not zero, with their names.
impl Debug for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        let counted = Count::ALL.into_iter().filter(|what| self[*what] != 0);
        f.debug_map()
            .entries(counted.map(|what| (what, self[what])))
            .finish()
    }
}

/// Requests that may be on offer at a time.
const OFFERS: usize = 32;

/// The backend of one engine.
#[derive(Default)]
pub struct Host {
    pub memory: RefCell<Vec<u8>>,
    pub(super) wqes: Vec<SendWqe>,
    /// The consumer sleeps until it is notified.
    pub waits_for_events: bool,
    /// What the queue pair is told by [`SendQueue::unacknowledged_limit`].
    pub unacknowledged_limit: u32,
    /// Offset in `memory` of the payload of each request, by index.
    pub(super) buffers: Vec<usize>,
    retired: u32,
    /// Requests whose payload the peer may copy: their range, and those in each slot.
    offered: Offered,
    slots: [Option<u32>; OFFERS],
    /// Whether the peer may copy from the region.
    pub(super) region_offered: bool,
    /// Nothing is offered.
    pub offers_nothing: bool,
    /// The payload in the memory of the peer to which the packet that is being handled refers; none
    /// if that is not on offer.
    pub(super) of_peer: Option<Vec<u8>>,
    pub receives: VecDeque<RecvBuf>,
    current: Option<RecvBuf>,
    pub sent: Vec<Wc>,
    pub received: Vec<(Wc, RecvBuf)>,
    /// Number of completions when the queue pair first entered ERR.
    pub completions_before_error: Option<usize>,
    pub counts: Counts,
    /// Number of remote accesses to refuse (0: none).
    pub no_access: bool,
    /// Lowest address that the peer may access.
    pub grant_from: usize,
    /// The key of the region is invalidated.
    pub invalid: Cell<bool>,
    /// Executed local operations, with the number of send completions before each.
    pub local_ops: RefCell<Vec<(LocalOp, usize)>>,
    /// Executed FLUSHes: address, length and kind.
    pub flushes: RefCell<Vec<(u64, u32, FlushKind)>>,
    /// Persistent content of the memory; as long as the memory, or empty if not used.
    pub persistent: RefCell<Vec<u8>>,
    /// Bytes that one FLUSH call makes persistent.
    pub flush_step: usize,
    /// Number of calls that made memory persistent.
    pub flush_calls: Cell<usize>,
    /// A FLUSH is in progress.
    flushing: Cell<bool>,
    /// Keys whose local operations are refused.
    pub bad_keys: Vec<RKey>,
    /// Send requests whose local buffers fail the access check.
    pub bad_local: Vec<u32>,
    /// Its CQ has no room: messages wait.
    pub full: bool,
    /// Pages of [`PAGE`] bytes that are not present.
    pub absent: RefCell<BTreeSet<usize>>,
    /// Those of them with a pending page fault.
    pub faulted: RefCell<BTreeSet<usize>>,
    responses: Vec<PendingResponse>,
    replay: Vec<ReplayEntry>,
}

impl Host {
    /// Gives `qp` this many responder resources, and just the memory that they need.
    pub fn set_max_dest_rd_atomic(&mut self, qp: &mut Qp, resources: u8) {
        let mut responses = vec![PendingResponse::EMPTY; pending_responses(resources)];
        let mut replay = vec![ReplayEntry::EMPTY; replay_entries(resources)];
        let from = Storage {
            pending: &mut self.responses,
            replay: &mut self.replay,
        };
        let to = Storage {
            pending: &mut responses,
            replay: &mut replay,
        };
        qp.move_storage(from, to);
        (self.responses, self.replay) = (responses, replay);
        qp.attrs.max_dest_rd_atomic = resources;
    }

    /// Send requests not retired.
    pub fn outstanding(&self) -> usize {
        self.wqes.len() - self.retired as usize
    }

    /// Withdraws the requests before `index`, as the driver does.
    fn withdraw(&mut self, index: u32) {
        let (first, count) = self.offered.withdraw(index);
        for i in first..first + count {
            let slot = &mut self.slots[i as usize % OFFERS];
            if slot.is_some_and(|at| (first..first + count).contains(&at)) {
                *slot = None;
            }
        }
        let left = self.slots.iter().flatten().min();
        assert!(
            left.is_none_or(|left| *left >= index),
            "a finished request is on offer"
        );
    }

    /// Withdraws all that is on offer.
    pub(super) fn withdraw_all(&mut self) {
        (self.offered, self.slots) = Default::default();
        self.region_offered = false;
    }

    /// The `len` bytes at `source`, if the peer may copy them.
    pub(super) fn offered_payload(&self, source: Source, len: usize) -> Option<Vec<u8>> {
        let at = match source {
            Source::Request { index, offset } => {
                let end = offset as usize + len;
                assert!(end <= self.wqes[index as usize].wr.length as usize);
                let at = self.buffers[index as usize] + offset as usize;
                (self.slots[index as usize % OFFERS] == Some(index)).then_some(at)
            }
            Source::Region { key, addr } => {
                let at = self.remote(key, addr, len).ok();
                at.filter(|at| self.region_offered && self.all_present(*at, len))
            }
        };
        at.map(|at| self.memory.borrow()[at..at + len].to_vec())
    }

    fn all_present(&self, at: usize, len: usize) -> bool {
        let mut pages = at / PAGE..(at + len).div_ceil(PAGE);
        !pages.any(|page| self.absent.borrow().contains(&page))
    }

    /// Copies the payload of a packet; `None` if it is in the memory of the peer, which does not
    /// offer it any more.
    fn copy_payload(&self, src: &Payload<'_>, to: &mut [u8]) -> Option<()> {
        match src.source() {
            None => assert_eq!(src.copy_to(to), to.len()),
            Some(_) => to.copy_from_slice(self.of_peer.as_deref()?),
        }
        Some(())
    }

    fn range(&self, at: usize, len: usize) -> Option<core::ops::Range<usize>> {
        let end = at.checked_add(len)?;
        (end <= self.memory.borrow().len()).then_some(at..end)
    }

    /// True if all pages of a range are present; records page faults for the others.
    fn present(&self, at: usize, len: usize) -> bool {
        let absent = self.absent.borrow();
        let mut missed = (at / PAGE..(at + len).div_ceil(PAGE))
            .filter(|page| absent.contains(page))
            .peekable();
        let all = missed.peek().is_none();
        self.faulted.borrow_mut().extend(missed);
        all
    }

    fn local(&self, at: usize, len: usize) -> Result<core::ops::Range<usize>, LocalFault> {
        let range = self.range(at, len).ok_or(LocalFault::Refused)?;
        if self.present(at, len) {
            Ok(range)
        } else {
            Err(LocalFault::NotPresent)
        }
    }

    /// As [`remote`](Self::remote), for an access that is executed now.
    fn remote_present(&self, rkey: RKey, addr: u64, len: usize) -> Result<usize, RemoteFault> {
        let at = self.remote(rkey, addr, len)?;
        if self.present(at, len) {
            Ok(at)
        } else {
            Err(RemoteFault::NotPresent)
        }
    }

    /// Asserts that no access overtakes a FLUSH.
    fn assert_no_flush(&self) {
        assert!(!self.flushing.get(), "a request has overtaken a FLUSH");
    }

    /// Makes the next step of `at..end` persistent and returns its end.
    fn persist(&self, at: usize, end: usize) -> usize {
        let to = end.min(at.saturating_add(self.flush_step));
        let mut image = self.persistent.borrow_mut();
        if let Some(image) = image.get_mut(at..to) {
            image.copy_from_slice(&self.memory.borrow()[at..to]);
        }
        self.flush_calls.set(self.flush_calls.get() + 1);
        to
    }

    fn remote(&self, rkey: RKey, addr: u64, len: usize) -> Result<usize, RemoteFault> {
        let at = usize::try_from(addr).map_err(|_| RemoteFault::Refused)?;
        let fits = self.range(at, len).is_some() && at >= self.grant_from;
        if rkey == RKEY && fits && !self.no_access && !self.invalid.get() {
            Ok(at)
        } else {
            Err(RemoteFault::Refused)
        }
    }
}

impl SendQueue for Host {
    fn sends_posted(&self) -> u32 {
        self.wqes.len() as u32
    }

    fn unacknowledged_limit(&self) -> u32 {
        self.unacknowledged_limit
    }

    fn send_wqe(&mut self, index: u32) -> Option<&mut SendWqe> {
        assert!(index >= self.retired, "the engine looked at a retired WQE");
        self.wqes.get_mut(index as usize)
    }

    fn retire_sends(&mut self, index: u32) {
        assert!(index >= self.retired && index <= self.wqes.len() as u32);
        self.retired = index;
        self.withdraw(index);
    }

    fn offer(&mut self, index: u32) -> bool {
        let wr = &self.wqes[index as usize].wr;
        let at = self.buffers[index as usize];
        let present = self.all_present(at, wr.length as usize);
        let offers = present && !self.offers_nothing && !self.bad_local.contains(&index);
        let slot = &mut self.slots[index as usize % OFFERS];
        if !offers || !self.offered.may_add(index) || slot.is_some() {
            return offers && *slot == Some(index);
        }
        *slot = Some(index);
        self.offered.add(index);
        true
    }

    fn gather(&self, index: u32, offset: u32, dst: &mut [u8]) -> Result<(), LocalFault> {
        if self.bad_local.contains(&index) {
            return Err(LocalFault::Refused);
        }
        let at = self.buffers[index as usize] + offset as usize;
        let range = self.local(at, dst.len())?;
        dst.copy_from_slice(&self.memory.borrow()[range]);
        Ok(())
    }

    fn scatter(&self, index: u32, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        assert!(index >= self.retired, "response data for a retired request");
        if self.bad_local.contains(&index) {
            return Err(LocalFault::Refused);
        }
        let wr = &self.wqes[index as usize].wr;
        assert!(offset as usize + src.len() <= wr.length as usize);
        let at = self.buffers[index as usize] + offset as usize;
        let range = self.local(at, src.len())?;
        let to = &mut self.memory.borrow_mut()[range];
        self.copy_payload(src, to).ok_or(LocalFault::Gone)
    }
}

impl RecvQueue for Host {
    fn take_recv(&mut self) -> TakenRecv {
        match self.receives.pop_front() {
            Some(buf) => {
                self.current = Some(buf);
                TakenRecv::Wr(RecvWr {
                    wr_id: buf.wr_id,
                    length: buf.len,
                })
            }
            None => TakenRecv::Empty,
        }
    }

    fn cq_has_room(&mut self) -> bool {
        !self.full || self.receives.is_empty()
    }

    fn scatter_recv(&self, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        self.assert_no_flush();
        let buf = self.current.expect("a receive is in use");
        assert!(offset as usize + src.len() <= buf.len as usize);
        let range = self.local(buf.at + offset as usize, src.len())?;
        let to = &mut self.memory.borrow_mut()[range];
        self.copy_payload(src, to).ok_or(LocalFault::Gone)
    }
}

impl RemoteMemory for Host {
    fn remote_check(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        _right: RemoteRight,
    ) -> Result<(), RemoteFault> {
        self.remote(rkey, addr, len as usize).map(|_| ())
    }

    fn remote_read(&self, rkey: RKey, addr: u64, dst: &mut [u8]) -> Result<(), RemoteFault> {
        let at = self.remote_present(rkey, addr, dst.len())?;
        dst.copy_from_slice(&self.memory.borrow()[at..at + dst.len()]);
        Ok(())
    }

    fn offer_region(&mut self, rkey: RKey, addr: u64, len: u32) -> bool {
        let at = self.remote(rkey, addr, len as usize);
        let offers = at.is_ok_and(|at| self.all_present(at, len as usize));
        self.region_offered |= offers && !self.offers_nothing;
        offers && !self.offers_nothing
    }

    fn remote_write(&self, rkey: RKey, addr: u64, src: &Payload<'_>) -> Result<(), RemoteFault> {
        self.assert_no_flush();
        let at = self.remote_present(rkey, addr, src.len())?;
        let to = &mut self.memory.borrow_mut()[at..at + src.len()];
        self.copy_payload(src, to).ok_or(RemoteFault::Gone)
    }

    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteFault> {
        self.assert_no_flush();
        let at = self.remote_present(rkey, addr, 8)?;
        let word = &mut self.memory.borrow_mut()[at..at + 8];
        let old = u64::from_ne_bytes(word.try_into().unwrap());
        let new = match op {
            AtomicOp::CmpSwp { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwp { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::Write { value } => value,
        };
        word.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }

    fn remote_flush(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        kind: FlushKind,
        from: Option<u64>,
    ) -> Result<Flushed, RemoteFault> {
        let (start, len_all) = match kind.selectivity {
            Selectivity::Range => (self.remote(rkey, addr, len as usize)?, len as usize),
            Selectivity::Region => {
                let start = self.remote(rkey, self.grant_from as u64, 0)?;
                (start, self.memory.borrow().len() - start)
            }
        };
        self.flushing.set(false);
        if kind.placement & Feth::PERSISTENT != 0 {
            let end = start + len_all;
            let at = from.map_or(start, |at| at as usize);
            assert!(
                (start..=end).contains(&at),
                "a FLUSH continues at another address"
            );
            let to = self.persist(at, end);
            if to < end {
                self.flushing.set(true);
                return Ok(Flushed::UpTo(to as u64));
            }
        }
        self.flushes.borrow_mut().push((addr, len, kind));
        Ok(Flushed::All)
    }

    fn remote_invalidate(&self, rkey: RKey) -> Result<(), RemoteFault> {
        if rkey != RKEY || self.invalid.replace(true) {
            return Err(RemoteFault::Refused);
        }
        Ok(())
    }

    fn local_op(&self, op: &LocalOp) -> Result<(), LocalOpFault> {
        let (key, ends) = match *op {
            LocalOp::Invalidate(key) => (key, true),
            LocalOp::Bind(bind) => (bind.key, false),
            LocalOp::Register(reg) => (reg.key, false),
        };
        if self.bad_keys.contains(&key) {
            return Err(LocalOpFault);
        }
        if key == RKEY {
            self.invalid.set(ends);
        }
        self.local_ops.borrow_mut().push((*op, self.sent.len()));
        Ok(())
    }
}

impl Completions for Host {
    fn complete_send(&mut self, wc: &Wc) {
        let mut retired = self.wqes[..self.retired as usize].iter().rev();
        assert!(
            retired.any(|wqe| wqe.wr.wr_id == wc.wr_id),
            "a completion before its slot is free"
        );
        self.sent.push(*wc);
    }

    fn complete_recv(&mut self, wc: &Wc) {
        let buf = self.current.unwrap_or(RecvBuf {
            wr_id: wc.wr_id,
            at: 0,
            len: 0,
        });
        self.received.push((*wc, buf));
    }

    fn wakes_process(&self) -> bool {
        self.waits_for_events
    }
}

impl Backend for Host {
    fn storage(&mut self) -> Storage<'_> {
        Storage {
            pending: &mut self.responses,
            replay: &mut self.replay,
        }
    }

    fn pkey(&self) -> PKey {
        self.pkey_at(0)
    }

    fn pkey_at(&self, index: u16) -> PKey {
        PKey(PKey::DEFAULT.0.wrapping_sub(index))
    }

    fn count(&mut self, what: Count) {
        self.counts.0[what.index()] += 1;
    }

    fn entering_error(&mut self) {
        let completions = self.sent.len() + self.received.len();
        self.completions_before_error.get_or_insert(completions);
    }
}
