// SPDX-License-Identifier: GPL-2.0
//! Rings shared with user space: the queue layout of `rdma_user_rxe.h`.
//!
//! The header is shared and writable by the process, so nothing in it is trusted: mask and
//! element size are kept privately, the own index too, and the other side's index is masked each
//! time it is read. Elements are copied exactly once.

use super::SharedBuf;
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

/// Which index of the header.
#[derive(Clone, Copy)]
enum Index {
    Producer,
    Consumer,
}

impl Ring {
    const DATA: usize = offset_of!(bindings::rxe_queue_buf, data);

    /// A ring that holds at least `capacity` elements of at least `size` bytes.
    fn new(capacity: u32, size: usize) -> Result<Self> {
        // One slot always stays empty.
        let slots = capacity.checked_add(1).and_then(u32::checked_next_power_of_two).ok_or(EINVAL)?;
        let size = size.max(64).checked_next_power_of_two().ok_or(EINVAL)?;
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
        Ok(Self { buf, mask, log2_size })
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
        // SAFETY: An element is in bounds; `dst` is private memory.
        unsafe { core::ptr::copy_nonoverlapping(self.slot(index), dst.as_mut_ptr(), len) };
        len
    }

    /// Writes the start of an element.
    fn write(&self, index: u32, src: &[u8]) {
        let len = src.len().min(self.size());
        // SAFETY: An element is in bounds; `src` is private memory.
        unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), self.slot(index), len) };
    }
}

/// A ring that user space fills and the kernel empties: send and receive queues.
///
/// Taking an element ([`fetch`](Self::fetch)) and giving its slot back
/// ([`release`](Self::release)) are separate steps.
pub struct ConsumerRing {
    ring: Ring,
    fetched: u32,
    released: u32,
}

impl ConsumerRing {
    /// A ring for at least `capacity` elements of at least `size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is beyond 1 GiB, `ENOMEM`.
    pub fn new(capacity: u32, size: usize) -> Result<Self> {
        Ok(Self { ring: Ring::new(capacity, size)?, fetched: 0, released: 0 })
    }

    /// The memory to map.
    pub fn buf(&self) -> &Arc<SharedBuf> {
        &self.ring.buf
    }

    /// Elements the ring can hold: a power of two minus one.
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// Bytes of an element: a power of two.
    pub fn element_size(&self) -> usize {
        self.ring.size()
    }

    /// Elements the process has posted and nobody has fetched.
    pub fn pending(&self) -> u32 {
        self.ring.load(Index::Producer).wrapping_sub(self.fetched) & self.ring.mask
    }

    /// Elements fetched and not released.
    pub fn held(&self) -> u32 {
        self.fetched.wrapping_sub(self.released) & self.ring.mask
    }

    /// Copies the next element to `dst`, as much as fits, and returns the number of bytes; `None`
    /// if none is pending.
    pub fn fetch(&mut self, dst: &mut [u8]) -> Option<usize> {
        if self.pending() == 0 {
            return None;
        }
        let len = self.ring.read(self.fetched, dst);
        self.fetched = self.fetched.wrapping_add(1) & self.ring.mask;
        Some(len)
    }

    /// Gives the slots of the oldest `count` fetched elements back to the process.
    pub fn release(&mut self, count: u32) {
        let count = count.min(self.held());
        self.released = self.released.wrapping_add(count) & self.ring.mask;
        self.ring.store(Index::Consumer, self.released);
    }

    /// Gives everything back, fetched or not.
    pub fn discard(&mut self) {
        self.fetched = self.ring.load(Index::Producer);
        self.released = self.fetched;
        self.ring.store(Index::Consumer, self.released);
    }
}

/// A ring that the kernel fills and user space empties: completion queues.
pub struct ProducerRing {
    ring: Ring,
    produced: u32,
}

impl ProducerRing {
    /// A ring for at least `capacity` elements of at least `size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is beyond 1 GiB, `ENOMEM`.
    pub fn new(capacity: u32, size: usize) -> Result<Self> {
        Ok(Self { ring: Ring::new(capacity, size)?, produced: 0 })
    }

    /// The memory to map.
    pub fn buf(&self) -> &Arc<SharedBuf> {
        &self.ring.buf
    }

    /// Elements the ring can hold: a power of two minus one.
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// Elements the process has not consumed.
    pub fn len(&self) -> u32 {
        self.produced.wrapping_sub(self.ring.load(Index::Consumer)) & self.ring.mask
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an element; false if the ring is full.
    pub fn push(&mut self, element: &[u8]) -> bool {
        if self.len() == self.ring.mask {
            return false;
        }
        self.ring.write(self.produced, element);
        self.produced = self.produced.wrapping_add(1) & self.ring.mask;
        self.ring.store(Index::Producer, self.produced);
        true
    }

    /// Appends all elements not consumed to `to`, oldest first; false if they do not fit, in
    /// which case `to` must not be used.
    pub fn move_to(&self, to: &mut ProducerRing) -> bool {
        let count = self.len();
        let mut element = [0; 64];
        let mut index = self.produced.wrapping_sub(count);
        for _ in 0..count {
            let len = self.ring.read(index, &mut element);
            if !to.push(element.get(..len).unwrap_or(&element)) {
                return false;
            }
            index = index.wrapping_add(1);
        }
        true
    }
}
