// SPDX-License-Identifier: GPL-2.0
//! The queues that the driver shares with a process, and the layout of their elements.

use crate::sys::SharedMapping;
use crate::world::{RING_BASE, RING_STEP, SLOTS};
use rxe_proto::abi::layout::{queue, DmaInfo, RECV_WQE_LEN, SEND_WQE_LEN};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A mapped queue.
#[derive(Clone, Copy)]
pub struct Ring {
    mapping: SharedMapping,
    /// Layout from the header when the queue was mapped first. Calls may corrupt the header later.
    log2: u32,
    mask: u32,
    generation: u64,
}

impl Ring {
    fn word(&self, offset: usize) -> &'static std::sync::atomic::AtomicU32 {
        &self.mapping.words()[offset / 4]
    }

    /// Returns the producer index.
    pub fn producer(&self) -> u32 {
        self.word(queue::PRODUCER_INDEX).load(Acquire)
    }

    /// Returns the consumer index.
    pub fn consumer(&self) -> u32 {
        self.word(queue::CONSUMER_INDEX).load(Acquire)
    }

    /// Sets an index.
    pub fn set(&self, consumer: bool, index: u32) {
        let offset = if consumer {
            queue::CONSUMER_INDEX
        } else {
            queue::PRODUCER_INDEX
        };
        self.word(offset).store(index, Release);
    }

    /// Appends an element and advances the producer index.
    pub fn post(&self, element: &[u8]) {
        let index = self.producer() & self.mask;
        let len = element.len().min(1 << self.log2);
        self.mapping.put(
            queue::HEADER_LEN + ((index as usize) << self.log2),
            &element[..len],
        );
        self.set(false, index.wrapping_add(1) & self.mask);
    }

    /// Advances the consumer index.
    pub fn consume(&self, count: u32) {
        let waiting = self.producer().wrapping_sub(self.consumer()) & self.mask;
        let index = self.consumer().wrapping_add(waiting.min(count)) & self.mask;
        self.set(true, index);
    }

    /// Writes bytes at any offset.
    pub fn overwrite(&self, offset: u32, data: &[u8]) {
        self.mapping.put(offset as usize % self.mapping.len(), data);
    }

    /// Returns the mask of indices: the number of elements minus 1.
    pub fn mask(&self) -> u32 {
        self.mask
    }
}

/// Type of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Completion queue.
    Cq,
    /// Shared receive queue.
    Srq,
    /// Send queue.
    Sq,
    /// Receive queue.
    Rq,
}

/// Queues that this process has mapped.
pub struct Rings {
    rings: [Option<Ring>; 4 * SLOTS],
}

impl Rings {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self {
            rings: [None; 4 * SLOTS],
        }
    }

    /// Returns the queue of the object in a slot; maps it on first use.
    pub fn get(
        &mut self,
        which: Which,
        slot: usize,
        generation: u64,
        fd: i32,
        offset: u64,
        len: u64,
    ) -> Option<Ring> {
        let index = which as usize * SLOTS + slot % SLOTS;
        if let Some(ring) = self.rings[index].filter(|ring| ring.generation == generation) {
            return Some(ring);
        }
        // A queue of a destroyed object cannot be mapped.
        if !(4096..=RING_STEP).contains(&len) {
            return None;
        }
        let address = RING_BASE + index as u64 * RING_STEP;
        let mapping = SharedMapping::map(address, len as usize, fd, offset).ok()?;
        let words = mapping.words();
        let log2 = words[queue::LOG2_ELEM_SIZE / 4].load(Relaxed).min(12);
        let room = (len as usize - queue::HEADER_LEN) >> log2;
        let mask = words[queue::INDEX_MASK / 4]
            .load(Relaxed)
            .min(room.next_power_of_two() as u32 / 2);
        let ring = Ring {
            mapping,
            log2,
            mask,
            generation,
        };
        self.rings[index] = Some(ring);
        Some(ring)
    }
}

/// A scatter/gather entry.
#[derive(Clone, Copy)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// L_Key.
    pub key: u32,
}

fn sges(out: &mut Vec<u8>, list: &[Sge]) {
    for sge in list {
        out.extend(sge.addr.to_ne_bytes());
        out.extend(sge.len.to_ne_bytes());
        out.extend(sge.key.to_ne_bytes());
    }
}

fn dma(out: &mut Vec<u8>, length: u32, count: u32) {
    let start = out.len();
    for word in [length, 0, 0, count, 0, 0] {
        out.extend(u32::to_ne_bytes(word));
    }
    debug_assert_eq!(out.len() - start, size_of::<DmaInfo>());
}

/// Encodes a send WQE; `own` are the fields of the operation.
pub fn send_wqe(
    opcode: u32,
    flags: u32,
    ex: u32,
    own: &[u8],
    length: u32,
    count: u32,
    list: &[Sge],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEND_WQE_LEN + 16 * list.len());
    out.extend(7u64.to_ne_bytes());
    for word in [0, opcode, flags, ex] {
        out.extend(u32::to_ne_bytes(word));
    }
    out.extend(own);
    // The fields up to the data description are private to the library.
    out.resize(SEND_WQE_LEN - size_of::<DmaInfo>(), 0);
    dma(&mut out, length, count);
    sges(&mut out, list);
    out
}

/// Encodes a receive WQE.
pub fn recv_wqe(count: u32, list: &[Sge]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECV_WQE_LEN + 16 * list.len());
    out.extend(9u64.to_ne_bytes());
    out.resize(RECV_WQE_LEN - size_of::<DmaInfo>(), 0);
    dma(
        &mut out,
        list.iter()
            .fold(0, |sum: u32, sge| sum.wrapping_add(sge.len)),
        count,
    );
    sges(&mut out, list);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_proto::abi::{decode_recv, decode_send, SendLimits};
    use rxe_proto::engine::Service;

    #[test]
    fn requests_are_what_the_driver_reads() {
        let limits = SendLimits {
            service: Service::Rc,
            max_sge: 4,
            max_inline: 0,
            signal_all: false,
        };
        let list = [Sge {
            addr: 5,
            len: 100,
            key: 9,
        }];
        let wqe = send_wqe(2, 2, 0, &[], 100, 1, &list);
        let entry = decode_send(&wqe, &limits);
        assert!(entry.wqe.invalid.is_none());
        assert_eq!(
            (
                entry.wqe.wr.wr_id,
                entry.wqe.wr.length,
                entry.wqe.wr.num_sge
            ),
            (7, 100, 1)
        );
        let wqe = recv_wqe(1, &list);
        let entry = decode_recv(&wqe, 4);
        assert!(entry.is_ok_and(|entry| entry.list.len() == 16));
    }
}
