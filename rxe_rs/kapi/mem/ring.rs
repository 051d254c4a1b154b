// SPDX-License-Identifier: GPL-2.0
//! Rings shared with user space: the queue layout of `rdma_user_rxe.h`.
//!
//! The process can write to the header, so the kernel does not rely on it: mask and element size
//! are stored privately, the own index too, and the other side's index is masked each time it is
//! read. Elements are copied exactly once, by code that is opaque to the compiler, so that it
//! cannot read them again.
//!
//! # Context
//!
//! Any context, unless a function says otherwise. The owner of a ring locks it.

use super::{
    copy,
    occupancy::Occupancy,
    SharedBuf, //
};
use crate::bindings;
use core::mem::offset_of;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    task::might_sleep, //
};

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
    /// Creates another reference to the same memory.
    fn clone(&self) -> Self {
        Self {
            buf: self.buf.clone(),
            mask: self.mask,
            log2_size: self.log2_size,
        }
    }
}

/// Selects an index of the header.
#[derive(Clone, Copy)]
enum Index {
    Producer,
    Consumer,
}

impl Ring {
    const DATA: usize = offset_of!(bindings::rxe_queue_buf, data);

    /// Allocates a ring of `slots` elements of `size` bytes, both powers of two, in memory from
    /// `alloc`.
    fn new(
        slots: u32,
        size: usize,
        alloc: impl FnOnce(usize) -> Result<Arc<SharedBuf>>,
    ) -> Result<Self> {
        if !slots.is_power_of_two() || !size.is_power_of_two() || size < 64 {
            return Err(EINVAL);
        }
        let bytes = usize::try_from(slots)?.checked_mul(size).ok_or(EINVAL)?;
        let buf = alloc(bytes.checked_add(Self::DATA).ok_or(EINVAL)?)?;
        let (mask, log2_size) = (slots - 1, size.trailing_zeros());
        let header = buf.first_page().cast::<bindings::rxe_queue_buf>();
        // SAFETY: The first page holds a header and has not been shared yet.
        unsafe {
            (*header).log2_elem_size = log2_size;
            (*header).index_mask = mask;
        }
        // INVARIANT: The buffer was allocated for these numbers.
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
        // SAFETY: The first page holds a header; the field is aligned and lives as long as `self`.
        // The process accesses it by atomics too, or races with itself.
        unsafe { Atomic::from_ptr(self.buf.first_page().add(offset).cast()) }
    }

    /// Reads the other side's index, masked.
    fn load(&self, which: Index) -> u32 {
        self.index(which).load(Acquire) & self.mask
    }

    /// Publishes an index to the other side.
    fn store(&self, which: Index, index: u32) {
        self.index(which).store(index & self.mask, Release);
    }

    /// Returns the offset of an element in the buffer.
    fn offset(&self, index: u32) -> usize {
        Self::DATA + (((index & self.mask) as usize) << self.log2_size)
    }

    /// Returns the address of an element; `None` if the buffer is allocated page by page.
    fn slot(&self, index: u32) -> Option<*mut u8> {
        let all = self.buf.contiguous()?;
        // SAFETY: In bounds by the type invariant.
        Some(unsafe { all.add(self.offset(index)) })
    }

    /// Copies the start of an element.
    fn read(&self, index: u32, dst: &mut [u8]) {
        let len = dst.len().min(self.size());
        if let Some(dst) = dst.get_mut(..len) {
            self.buf.read(self.offset(index), dst);
        }
    }

    /// Copies a whole element from a ring with elements of the same size; both are contiguous.
    fn copy_from(&self, index: u32, from: &Ring, from_index: u32) {
        let len = self.size().min(from.size());
        if let (Some(to), Some(from)) = (self.slot(index), from.slot(from_index)) {
            // Damaged memory yields old bytes, which the process could have written as well.
            // SAFETY: Both elements are in bounds, of different buffers: `UserRing::fill_from` and
            // `CompletionRing::take_over` check that.
            let _ = unsafe { copy(to, from, len) };
        }
    }

    /// Writes the start of an element of a contiguous ring.
    fn write(&self, index: u32, src: &[u8]) {
        let len = src.len().min(self.size());
        if let Some(slot) = self.slot(index) {
            // SAFETY: An element is in bounds; `src` is private memory.
            let _ = unsafe { copy(slot, src.as_ptr(), len) };
        }
    }
}

/// A ring that user space fills and the kernel empties: send and receive queues.
///
/// Fetching an element and freeing its slot are separate steps for sends. Elements are counted from
/// 0, wrapping, in the order they were fetched; elements that were discarded do not count.
pub struct UserRing {
    ring: Ring,
    /// Number of elements fetched.
    taken: u32,
    /// Slot of element 0: advances when elements are discarded.
    base: u32,
}

impl UserRing {
    /// Allocates a ring of `slots` elements of `size` bytes; both are powers of two, `size` is at
    /// least 64. One slot always stays empty.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for other numbers or beyond 1 GiB, `ENOMEM`.
    pub fn new(slots: u32, size: usize) -> Result<Self> {
        Self::from_ring(Ring::new(slots, size, SharedBuf::new)?)
    }

    /// Allocates a ring as [`new`](Self::new), of which a process allocates the pages when it first
    /// accesses them ([`SharedBuf::lazy`]). It cannot be filled from a snapshot, nor be the source
    /// of one.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn lazy(slots: u32, size: usize) -> Result<Self> {
        Self::from_ring(Ring::new(slots, size, SharedBuf::lazy)?)
    }

    fn from_ring(ring: Ring) -> Result<Self> {
        Ok(Self {
            ring,
            taken: 0,
            base: 0,
        })
    }

    /// Returns the memory to map.
    pub fn buffer(&self) -> &Arc<SharedBuf> {
        &self.ring.buf
    }

    /// Returns the size of an element in bytes.
    pub fn element_size(&self) -> usize {
        self.ring.size()
    }

    /// Returns the slot that is fetched next.
    fn next(&self) -> u32 {
        self.base.wrapping_add(self.taken)
    }

    /// Returns the number of elements that the process has posted and that have not been fetched.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn pending(&self) -> u32 {
        self.ring.load(Index::Producer).wrapping_sub(self.next()) & self.ring.mask
    }

    /// Fetches the next element: copies it to `dst`, as much as both hold; returns false if none is
    /// pending. Its slot stays occupied until [`release`](Self::release).
    ///
    /// # Context
    ///
    /// Any context.
    pub fn fetch(&mut self, dst: &mut [u8]) -> bool {
        if self.pending() == 0 {
            return false;
        }
        self.ring.read(self.next(), dst);
        self.taken = self.taken.wrapping_add(1);
        true
    }

    /// Frees the slots of all elements before number `index` for the process.
    pub fn release(&mut self, index: u32) {
        self.ring
            .store(Index::Consumer, self.base.wrapping_add(index));
    }

    /// Fetches the next element as [`fetch`](Self::fetch) and frees its slot at once.
    pub fn take(&mut self, dst: &mut [u8]) -> bool {
        if !self.fetch(dst) {
            return false;
        }
        self.release(self.taken);
        true
    }

    /// Discards what is pending and frees its slots, and those of all elements fetched.
    pub fn discard(&mut self) {
        self.base = self.base.wrapping_add(self.pending());
        self.ring.store(Index::Consumer, self.next());
    }
}

/// The pending elements of a [`UserRing`] at some time, for moving them to another one.
pub struct RingSnapshot {
    ring: Ring,
    /// Number of elements fetched before.
    taken: u32,
    /// Index of the first pending element, and number of them.
    next: u32,
    count: u32,
}

impl UserRing {
    /// Returns the number of elements that the ring can hold.
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// Returns the elements that are pending now. They can be copied while others go on fetching
    /// elements.
    pub fn snapshot(&self) -> RingSnapshot {
        RingSnapshot {
            ring: self.ring.clone(),
            taken: self.taken,
            next: self.next(),
            count: self.pending(),
        }
    }

    /// Returns the number of elements fetched since `snapshot` was taken.
    pub fn taken_since(&self, snapshot: &RingSnapshot) -> u32 {
        self.taken.wrapping_sub(snapshot.taken)
    }

    /// Fills this ring, which must be unused, with copies; returns false if they do not fit, or are
    /// of this ring itself, or if one of the rings is [lazy](Self::lazy).
    pub fn fill_from(&mut self, snapshot: &RingSnapshot) -> bool {
        let same = Arc::ptr_eq(&self.ring.buf, &snapshot.ring.buf);
        let lazy = [&self.ring, &snapshot.ring].map(|ring| ring.buf.contiguous().is_none());
        if same
            || lazy != [false; 2]
            || snapshot.count > self.ring.mask
            || snapshot.ring.size() != self.ring.size()
        {
            return false;
        }
        for n in 0..snapshot.count {
            self.ring
                .copy_from(n, &snapshot.ring, snapshot.next.wrapping_add(n));
        }
        self.ring.store(Index::Producer, snapshot.count);
        true
    }

    /// Drops the oldest `count` elements, or all if there are fewer, and frees their slots.
    pub fn skip(&mut self, count: u32) {
        self.taken = self.taken.wrapping_add(count.min(self.pending()));
        self.release(self.taken);
    }
}

/// A ring that the kernel fills and user space empties: completion queues.
pub struct CompletionRing {
    ring: Ring,
    account: Occupancy,
    /// How often the process's index was impossible and has been repaired.
    repairs: u32,
}

/// Unread elements of an old ring, to be copied to the one that replaces it.
#[must_use = "they are still to be copied"]
pub struct Unread {
    from: Ring,
    /// Index of the first unread element in the old ring, and number of them.
    first: u32,
    count: u32,
    to: Ring,
}

impl CompletionRing {
    /// Allocates a ring for at least `count` elements of `size` bytes; `size` is a power of two and
    /// at least 64.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for other sizes or beyond 1 GiB, `ENOMEM`.
    pub fn new(count: u32, size: usize) -> Result<Self> {
        let slots = Occupancy::slots_for(count).ok_or(EINVAL)?;
        let ring = Ring::new(slots, size, SharedBuf::new)?;
        let account = Occupancy::new(ring.mask).ok_or(EINVAL)?;
        Ok(Self {
            ring,
            account,
            repairs: 0,
        })
    }

    /// Returns the memory to map.
    pub fn buffer(&self) -> &Arc<SharedBuf> {
        &self.ring.buf
    }

    /// Returns the number of elements that the ring can hold.
    pub fn capacity(&self) -> u32 {
        self.account.capacity()
    }

    /// Returns the number of elements that the process has not consumed.
    #[inline]
    pub fn len(&self) -> u32 {
        let index = self.ring.load(Index::Consumer);
        self.account.unread(index).unwrap_or(0)
    }

    /// Returns the number of elements that the process had not consumed when its index was last
    /// read.
    #[inline]
    pub fn held(&self) -> u32 {
        self.account.held()
    }

    /// Returns the process's index as it was when it was last read.
    pub fn consumed(&self) -> u32 {
        self.account.consumed()
    }

    /// Returns true if all have been consumed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how often the process's index was impossible and has been repaired.
    pub fn repairs(&self) -> u32 {
        self.repairs
    }

    /// Reads the process's index. An impossible one is corrected in the ring before the next
    /// element is published, so that the process finds that element.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn sync_consumer(&mut self) {
        if !self.account.consume(self.ring.load(Index::Consumer)) {
            self.repair();
        }
    }

    #[cold]
    fn repair(&mut self) {
        self.repairs = self.repairs.saturating_add(1);
        self.ring.store(Index::Consumer, self.account.produced());
    }

    /// Appends an element; returns false if the ring is full.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn push(&mut self, element: &[u8]) -> bool {
        self.sync_consumer();
        let Some(slot) = self.account.produce() else {
            return false;
        };
        self.ring.write(slot, element);
        self.ring.store(Index::Producer, self.account.produced());
        true
    }

    /// Reserves the first slots of this ring, which must be unused, for the unread elements of
    /// `old`: it can replace `old` at once, and new elements are appended after them.
    /// [`Unread::copy`] must copy them before the process continues. Takes constant time.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `old` holds more than fits, or has elements of another size; nothing has changed
    /// then.
    pub fn take_over(&mut self, old: &mut CompletionRing) -> Result<Unread> {
        let same = Arc::ptr_eq(&self.ring.buf, &old.ring.buf);
        if same || self.ring.size() != old.ring.size() {
            return Err(EINVAL);
        }
        old.sync_consumer();
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
    /// Copies the elements to their reserved slots.
    ///
    /// # Context
    ///
    /// Process context, no spinlock held: there may be many elements.
    pub fn copy(self) {
        might_sleep();
        for n in 0..self.count {
            let index = self.first.wrapping_add(n);
            self.to.copy_from(n, &self.from, index);
        }
    }
}
