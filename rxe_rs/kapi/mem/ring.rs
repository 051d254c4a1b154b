// SPDX-License-Identifier: GPL-2.0
//! Rings shared with user space: the queue layout of `rdma_user_rxe.h`.
//!
//! The header is shared and writable by the process, so nothing in it is trusted: mask and
//! element size are kept privately, the own index too, and the other side's index is masked each
//! time it is read. Elements are copied exactly once, by code that the compiler does not see into,
//! so it cannot read them again.

use super::occupancy::Occupancy;
use super::{copy, SharedBuf};
use crate::bindings;
use core::mem::offset_of;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::Arc;

/// A ring of elements of a power-of-two size.
///
/// # Invariants
///
/// The buffer holds the header and `mask + 1` elements of `1 << log2_size` bytes.
struct Ring {
    buf: Arc<SharedBuf>,
    mask: u32,
    log2_size: u32,
}

impl Clone for Ring {
    /// Another name for the same memory.
    fn clone(&self) -> Self {
        Self {
            buf: self.buf.clone(),
            mask: self.mask,
            log2_size: self.log2_size,
        }
    }
}

/// Which index of the header.
#[derive(Clone, Copy)]
enum Index {
    Producer,
    Consumer,
}

impl Ring {
    const DATA: usize = offset_of!(bindings::rxe_queue_buf, data);

    /// A ring of `slots` elements of `size` bytes, both powers of two.
    fn new(slots: u32, size: usize) -> Result<Self> {
        if !slots.is_power_of_two() || !size.is_power_of_two() || size < 64 {
            return Err(EINVAL);
        }
        let bytes = usize::try_from(slots)?.checked_mul(size).ok_or(EINVAL)?;
        let buf = SharedBuf::new(bytes.checked_add(Self::DATA).ok_or(EINVAL)?)?;
        let (mask, log2_size) = (slots - 1, size.trailing_zeros());
        let header = buf.as_ptr().cast::<bindings::rxe_queue_buf>();
        // SAFETY: The buffer holds a header and nobody else knows it yet.
        unsafe {
            (*header).log2_elem_size = log2_size;
            (*header).index_mask = mask;
        }
        // INVARIANT: The buffer was made for these numbers.
        Ok(Self {
            buf,
            mask,
            log2_size,
        })
    }

    fn size(&self) -> usize {
        1 << self.log2_size
    }

    fn index(&self, which: Index) -> &Atomic<u32> {
        let offset = match which {
            Index::Producer => offset_of!(bindings::rxe_queue_buf, producer_index),
            Index::Consumer => offset_of!(bindings::rxe_queue_buf, consumer_index),
        };
        // SAFETY: The buffer holds a header; the field is aligned and lives as long as `self`.
        // The process accesses it by atomics too, or races with itself.
        unsafe { Atomic::from_ptr(self.buf.as_ptr().add(offset).cast()) }
    }

    /// What the other side wrote, masked.
    fn load(&self, which: Index) -> u32 {
        self.index(which).load(Acquire) & self.mask
    }

    /// Tells the other side.
    fn store(&self, which: Index, index: u32) {
        self.index(which).store(index & self.mask, Release);
    }

    fn slot(&self, index: u32) -> *mut u8 {
        let at = ((index & self.mask) as usize) << self.log2_size;
        // SAFETY: In bounds by the type invariant.
        unsafe { self.buf.as_ptr().add(Self::DATA + at) }
    }

    /// Copies the start of an element; returns the number of bytes.
    fn read(&self, index: u32, dst: &mut [u8]) -> usize {
        let len = dst.len().min(self.size());
        // Memory that is damaged gives old bytes, as good as any that the process could write.
        // SAFETY: An element is in bounds; `dst` is private memory.
        let _ = unsafe { copy(dst.as_mut_ptr(), self.slot(index), len) };
        len
    }

    /// Copies a whole element from a ring with elements of the same size.
    fn copy_from(&self, index: u32, from: &Ring, from_index: u32) {
        let len = self.size().min(from.size());
        // SAFETY: Both elements are in bounds, of different buffers: `UserRing::adopt` and
        // `CompletionRing::succeed` see to that.
        let _ = unsafe { copy(self.slot(index), from.slot(from_index), len) };
    }

    /// Writes the start of an element.
    fn write(&self, index: u32, src: &[u8]) {
        let len = src.len().min(self.size());
        // SAFETY: An element is in bounds; `src` is private memory.
        let _ = unsafe { copy(self.slot(index), src.as_ptr(), len) };
    }
}

/// A ring that user space fills and the kernel empties: send and receive queues.
///
/// Taking an element and giving its slot back are separate steps for sends. Elements are counted
/// from 0, wrapping, in the order they were taken; elements that were discarded do not count.
pub struct UserRing {
    ring: Ring,
    /// Count of elements taken.
    taken: u32,
    /// Slot of element 0: moves when elements are discarded.
    base: u32,
}

impl UserRing {
    /// A ring of `slots` elements of `size` bytes; both are powers of two, `size` is at least 64.
    ///
    /// One slot always stays empty.
    ///
    /// # Errors
    ///
    /// `EINVAL` for other numbers or beyond 1 GiB, `ENOMEM`.
    pub fn new(slots: u32, size: usize) -> Result<Self> {
        Ok(Self {
            ring: Ring::new(slots, size)?,
            taken: 0,
            base: 0,
        })
    }

    /// The memory to map.
    pub fn buffer(&self) -> &Arc<SharedBuf> {
        &self.ring.buf
    }

    /// Bytes of an element.
    pub fn element_size(&self) -> usize {
        self.ring.size()
    }

    /// The slot that is taken next.
    fn next(&self) -> u32 {
        self.base.wrapping_add(self.taken)
    }

    /// Elements the process has posted and nobody has taken.
    pub fn pending(&self) -> u32 {
        self.ring.load(Index::Producer).wrapping_sub(self.next()) & self.ring.mask
    }

    /// Copies the next element to `dst`, as much as both hold, and counts it as taken; false if
    /// none is pending. Its slot stays occupied until [`release`](Self::release).
    pub fn peek_next(&mut self, dst: &mut [u8]) -> bool {
        if self.pending() == 0 {
            return false;
        }
        self.ring.read(self.next(), dst);
        self.taken = self.taken.wrapping_add(1);
        true
    }

    /// Gives the slots of all elements before number `index` back to the process.
    pub fn release(&mut self, index: u32) {
        self.ring
            .store(Index::Consumer, self.base.wrapping_add(index));
    }

    /// Takes the next element as [`peek_next`](Self::peek_next) and gives its slot back at once.
    pub fn take(&mut self, dst: &mut [u8]) -> bool {
        if !self.peek_next(dst) {
            return false;
        }
        self.release(self.taken);
        true
    }

    /// Drops what is pending and gives its slots back, and those of all elements taken.
    pub fn discard(&mut self) {
        self.base = self.base.wrapping_add(self.pending());
        self.ring.store(Index::Consumer, self.next());
    }
}

/// What waited in a [`UserRing`] at some time, for moving it to another one.
pub struct Backlog {
    ring: Ring,
    taken: u32,
    next: u32,
    count: u32,
}

impl UserRing {
    /// Elements the ring can hold.
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// What waits now. Whoever has it can copy it while others go on taking elements.
    pub fn backlog(&self) -> Backlog {
        Backlog {
            ring: self.ring.clone(),
            taken: self.taken,
            next: self.next(),
            count: self.pending(),
        }
    }

    /// Elements taken since `backlog` was noted.
    pub fn taken_since(&self, backlog: &Backlog) -> u32 {
        self.taken.wrapping_sub(backlog.taken)
    }

    /// Fills this ring, which nobody has used yet, with copies; false if they do not fit, or are
    /// of this ring itself.
    pub fn adopt(&mut self, backlog: &Backlog) -> bool {
        let same = Arc::ptr_eq(&self.ring.buf, &backlog.ring.buf);
        if same || backlog.count > self.ring.mask || backlog.ring.size() != self.ring.size() {
            return false;
        }
        for n in 0..backlog.count {
            self.ring
                .copy_from(n, &backlog.ring, backlog.next.wrapping_add(n));
        }
        self.ring.store(Index::Producer, backlog.count);
        true
    }

    /// Drops the oldest elements, as far as there are that many, and gives their slots back.
    pub fn skip(&mut self, count: u32) {
        self.taken = self.taken.wrapping_add(count.min(self.pending()));
        self.release(self.taken);
    }
}

/// A ring that the kernel fills and user space empties: completion queues.
pub struct CompletionRing {
    ring: Ring,
    account: Occupancy,
    /// Times that the process's index was one that it cannot have.
    repairs: u32,
}

/// Elements that a ring which is not used any more holds for the one that took its place.
#[must_use = "they are still to be copied"]
pub struct Unread {
    from: Ring,
    first: u32,
    to: Ring,
    count: u32,
}

impl CompletionRing {
    /// A ring for at least `count` elements of `size` bytes; `size` is a power of two and at least
    /// 64.
    ///
    /// # Errors
    ///
    /// `EINVAL` for other sizes or beyond 1 GiB, `ENOMEM`.
    pub fn new(count: u32, size: usize) -> Result<Self> {
        let ring = Ring::new(Occupancy::slots_for(count).ok_or(EINVAL)?, size)?;
        let account = Occupancy::new(ring.mask).ok_or(EINVAL)?;
        Ok(Self {
            ring,
            account,
            repairs: 0,
        })
    }

    /// The memory to map.
    pub fn buffer(&self) -> &Arc<SharedBuf> {
        &self.ring.buf
    }

    /// Elements the ring can hold.
    pub fn capacity(&self) -> u32 {
        self.account.capacity()
    }

    /// Elements the process has not consumed.
    #[inline]
    pub fn len(&self) -> u32 {
        let index = self.ring.load(Index::Consumer);
        self.account.unread(index).unwrap_or(0)
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Times that the process's index was one that it cannot have.
    pub fn repairs(&self) -> u32 {
        self.repairs
    }

    /// Reads the process's index. One that it cannot have is set right in the ring, before the next
    /// element is published: the process finds that one then.
    #[inline]
    pub fn look(&mut self) {
        if !self.account.consume(self.ring.load(Index::Consumer)) {
            self.repair();
        }
    }

    #[cold]
    fn repair(&mut self) {
        self.repairs = self.repairs.saturating_add(1);
        self.ring.store(Index::Consumer, self.account.produced());
    }

    /// Appends an element; false if the ring is full.
    #[inline]
    pub fn push(&mut self, element: &[u8]) -> bool {
        self.look();
        let Some(slot) = self.account.produce() else {
            return false;
        };
        self.ring.write(slot, element);
        self.ring.store(Index::Producer, self.account.produced());
        true
    }

    /// Makes room in this ring, which nobody has used yet, for what `old` holds: it can take the
    /// place of `old` at once, and what is appended comes behind. [`Unread::copy`] fills the room,
    /// before the process is let go on. Takes the same time whatever is held.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `old` holds more than fits, or is of other elements; nothing has changed then.
    pub fn succeed(&mut self, old: &mut CompletionRing) -> Result<Unread> {
        let same = Arc::ptr_eq(&self.ring.buf, &old.ring.buf);
        if same || self.ring.size() != old.ring.size() {
            return Err(EINVAL);
        }
        old.look();
        let count = old.len();
        if !self.account.start_with(count) {
            return Err(EINVAL);
        }
        self.repairs = old.repairs;
        self.ring.store(Index::Producer, count);
        Ok(Unread {
            from: old.ring.clone(),
            first: old.account.produced().wrapping_sub(count),
            to: self.ring.clone(),
            count,
        })
    }
}

impl Unread {
    /// Copies the elements to where there is room for them. Process context, no lock held.
    pub fn copy(self) {
        for n in 0..self.count {
            let index = self.first.wrapping_add(n);
            self.to.copy_from(n, &self.from, index);
        }
    }
}
