// SPDX-License-Identifier: GPL-2.0
//! State that the workers of a world share: handles of objects, memory areas, and the programs to
//! run.
//!
//! It is in shared memory and not protected by locks: workers use objects while other workers
//! create or destroy them.

use crate::calls::{Call, ARGS, MAX_CALLS};
use crate::sys::{self, SharedMapping};
use std::sync::atomic::Ordering::Relaxed;

/// Kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Protection domain.
    Pd,
    /// Completion queue.
    Cq,
    /// Shared receive queue.
    Srq,
    /// Queue pair.
    Qp,
    /// Memory region.
    Mr,
    /// Memory window.
    Mw,
    /// Address handle.
    Ah,
    /// Completion channel: a descriptor, valid in one process only.
    Channel,
}

const KINDS: usize = 8;
/// Number of slots for objects of a kind.
pub const SLOTS: usize = 16;
const LONGS: usize = 12;

/// An object as it was created; it may have been destroyed since.
#[derive(Clone, Copy, Default, Debug)]
pub struct Object {
    /// Incremented with each object that is stored in the slot; 0 if there has been none.
    pub generation: u64,
    /// False if a worker has destroyed it.
    pub alive: bool,
    /// Index of its context.
    pub context: usize,
    /// Its handle in the context.
    pub handle: u32,
    /// Attributes of the object; the `X_` constants are their indices.
    pub x: [u64; 8],
}

/// QP number of a queue pair.
pub const X_QPN: usize = 0;
/// Type of a queue pair.
pub const X_TYPE: usize = 1;
/// `mmap` offset of a queue (of the send queue of a queue pair); its length in bytes follows.
pub const X_RING: usize = 2;
/// The same for the receive queue of a queue pair.
pub const X_RECV: usize = 4;
/// L_Key of a region, key of a window, number of an address handle.
pub const X_LKEY: usize = 0;
/// R_Key of a region.
pub const X_RKEY: usize = 1;
/// Address of the first byte of a region in requests.
pub const X_IOVA: usize = 2;
/// Length of a region in bytes.
pub const X_LEN: usize = 3;

/// The shared memory.
#[derive(Clone, Copy)]
pub struct World {
    objects: SharedMapping,
    programs: SharedMapping,
    results: SharedMapping,
}

const CALL_WORDS: usize = ARGS + 2;
const PROGRAM_WORDS: usize = 1 + MAX_CALLS * CALL_WORDS;

impl World {
    /// Allocates the shared memory for `workers` workers.
    pub fn new(workers: usize) -> Result<Self, i32> {
        Ok(Self {
            objects: SharedMapping::shared(KINDS * SLOTS * LONGS * 8)?,
            programs: SharedMapping::shared(workers * PROGRAM_WORDS * 4)?,
            results: SharedMapping::shared(4096)?,
        })
    }

    /// Empties all slots.
    pub fn clear(&self) {
        for long in self.objects.longs() {
            long.store(0, Relaxed);
        }
    }

    /// Returns the object in a slot.
    pub fn get(&self, kind: Kind, slot: usize) -> Object {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        let longs = &self.objects.longs()[at..at + LONGS];
        let mut object = Object {
            generation: longs[0].load(Relaxed),
            context: longs[1].load(Relaxed) as usize,
            handle: longs[2].load(Relaxed) as u32,
            alive: longs[11].load(Relaxed) != 0,
            x: [0; 8],
        };
        for (to, from) in object.x.iter_mut().zip(&longs[3..11]) {
            *to = from.load(Relaxed);
        }
        object
    }

    /// Stores an object in a slot, replacing the previous one.
    pub fn put(&self, kind: Kind, slot: usize, context: usize, handle: u32, x: &[u64]) {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        let longs = &self.objects.longs()[at..at + LONGS];
        for n in 0..8 {
            longs[3 + n].store(x.get(n).copied().unwrap_or(0), Relaxed);
        }
        longs[1].store(context as u64, Relaxed);
        longs[2].store(u64::from(handle), Relaxed);
        longs[11].store(1, Relaxed);
        longs[0].fetch_add(1, Relaxed);
    }

    /// Sets an attribute of an object.
    pub fn set(&self, kind: Kind, slot: usize, which: usize, value: u64) {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        self.objects.longs()[at + 3 + which].store(value, Relaxed);
    }

    /// Marks an object as destroyed. Its handle and attributes stay, so that calls can use a stale
    /// object.
    pub fn mark_destroyed(&self, kind: Kind, slot: usize) {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        self.objects.longs()[at + 11].store(0, Relaxed);
    }

    /// Returns the first slot from `start` on that has a live object; `start` if there is none.
    pub fn near(&self, kind: Kind, start: usize) -> usize {
        (0..SLOTS)
            .map(|n| (start + n) % SLOTS)
            .find(|slot| self.get(kind, *slot).alive)
            .unwrap_or(start % SLOTS)
    }

    /// Returns the first slot from `start` on with a live object of the context; any slot if there
    /// is none.
    pub fn find(&self, kind: Kind, start: usize, context: usize) -> usize {
        (0..SLOTS)
            .map(|n| (start + n) % SLOTS)
            .find(|slot| {
                let object = self.get(kind, *slot);
                object.alive && object.context == context
            })
            .unwrap_or(start % SLOTS)
    }

    /// Stores the list of calls that a worker is to run.
    pub fn set_program(&self, worker: usize, calls: &[Call]) {
        let words = &self.programs.words()[worker * PROGRAM_WORDS..];
        words[0].store(calls.len().min(MAX_CALLS) as u32, Relaxed);
        for (call, words) in calls
            .iter()
            .zip(words[1..].chunks(CALL_WORDS))
            .take(MAX_CALLS)
        {
            words[0].store(u32::from(call.op), Relaxed);
            words[1].store(u32::from(call.nth), Relaxed);
            for (word, arg) in words[2..].iter().zip(call.args) {
                word.store(arg, Relaxed);
            }
        }
    }

    /// Returns the list of calls of a worker.
    pub fn program(&self, worker: usize) -> Vec<Call> {
        let words = &self.programs.words()[worker * PROGRAM_WORDS..];
        let count = (words[0].load(Relaxed) as usize).min(MAX_CALLS);
        words[1..]
            .chunks(CALL_WORDS)
            .take(count)
            .map(|words| {
                let mut call = Call {
                    op: words[0].load(Relaxed) as u8,
                    nth: words[1].load(Relaxed) as u16,
                    args: [0; ARGS],
                };
                for (arg, word) in call.args.iter_mut().zip(&words[2..]) {
                    *arg = word.load(Relaxed);
                }
                call
            })
            .collect()
    }

    /// Counts the result of a call.
    pub fn count(&self, op: usize, ok: bool) {
        if let Some(word) = self.results.words().get(2 * op + usize::from(ok)) {
            word.fetch_add(1, Relaxed);
        }
    }

    /// Returns how many calls of an operation failed, and how many succeeded.
    pub fn results_of(&self, op: usize) -> (u32, u32) {
        let words = self.results.words();
        (words[2 * op].load(Relaxed), words[2 * op + 1].load(Relaxed))
    }
}

/// Number of memory areas for regions. They are at the same addresses in all workers.
pub const AREAS: usize = 8;
/// Length of an area in bytes.
pub const AREA_LEN: usize = 2 << 20;
const AREA_BASE: u64 = 0x20_0000_0000;
const AREA_STEP: u64 = 16 << 20;
/// Address at which the queues of all objects are mapped.
pub const RING_BASE: u64 = 0x10_0000_0000;
/// Address space reserved for each queue, in bytes.
pub const RING_STEP: u64 = 8 << 20;

/// Unmaps all queues of this process.
pub fn unmap_rings() {
    let _ = sys::memory_call(libc::SYS_munmap, RING_BASE, RING_STEP * 4 * SLOTS as u64, 0);
}

/// Returns the address of an area. The last area is the completion queue in slot 0.
pub fn area(number: usize) -> u64 {
    match number % AREAS {
        7 => RING_BASE,
        number => AREA_BASE + number as u64 * AREA_STEP,
    }
}

/// Maps an area in its initial state: private, shared, file-backed, secret, read-only, huge pages,
/// or unmapped.
pub fn map_area(number: usize, files: &Files) {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let anonymous = libc::MAP_FIXED | libc::MAP_ANONYMOUS;
    let at = area(number);
    let _ = match number % AREAS {
        0 => sys::mmap(at, AREA_LEN, both, libc::MAP_PRIVATE | anonymous, -1, 0),
        1 => sys::mmap(at, AREA_LEN, both, libc::MAP_SHARED | anonymous, -1, 0),
        2 => sys::mmap(
            at,
            AREA_LEN,
            both,
            libc::MAP_SHARED | libc::MAP_FIXED,
            files.shared,
            0,
        ),
        3 => sys::mmap(
            at,
            AREA_LEN,
            both,
            libc::MAP_SHARED | libc::MAP_FIXED,
            files.secret,
            0,
        ),
        4 => sys::mmap(
            at,
            AREA_LEN,
            libc::PROT_READ,
            libc::MAP_PRIVATE | anonymous,
            -1,
            0,
        ),
        5 => sys::mmap(at, AREA_LEN, both, libc::MAP_PRIVATE | anonymous, -1, 0).and_then(|at| {
            sys::memory_call(
                libc::SYS_madvise,
                at,
                AREA_LEN as u64,
                libc::MADV_HUGEPAGE as u64,
            )
            .map(|_| at)
        }),
        _ => Ok(at),
    };
}

/// Files behind areas, shared by all workers.
#[derive(Clone, Copy)]
pub struct Files {
    shared: i32,
    secret: i32,
    /// `/dev/udmabuf`, which creates DMA buffers; negative if there is none.
    pub udmabuf: i32,
}

impl Files {
    /// Creates the files.
    pub fn new() -> Self {
        let shared = sys::memfd(c"rxe_fuzz", AREA_LEN as u64, true).unwrap_or(-1);
        let secret = sys::call(libc::SYS_memfd_secret, 0, 0, 0).map_or(-1, |fd| fd as i32);
        if secret >= 0 {
            sys::truncate(secret, AREA_LEN as u64);
        }
        let udmabuf = sys::open("/dev/udmabuf", libc::O_RDWR).unwrap_or(-1);
        Self {
            shared,
            secret,
            udmabuf,
        }
    }

    /// Returns the descriptor of the shared memory.
    pub fn shared(&self) -> i32 {
        self.shared
    }
}

/// Returns the address in an area that an argument selects.
pub fn address(arg: u32) -> u64 {
    let pages = u64::from((arg >> 4) & 0xff) << 12;
    let bytes = if (arg >> 24) & 3 == 1 {
        u64::from((arg >> 12) & 0xfff)
    } else {
        0
    };
    // Usually private or shared memory.
    let number = if arg & 8 == 0 { arg & 1 } else { arg & 7 };
    area(number as usize) + pages + bytes
}

/// Returns the length that an argument selects.
pub fn length(arg: u32) -> u64 {
    const LENGTHS: [u64; 16] = [
        4096,
        8192,
        65536,
        1 << 20,
        100,
        1,
        8,
        4097,
        0,
        12288,
        2 << 20,
        1 << 30,
        1 << 40,
        u64::MAX,
        u64::MAX - 4095,
        65535,
    ];
    match (arg >> 4) & 15 {
        15 => u64::from(arg >> 8),
        _ => LENGTHS[arg as usize % if arg & 0x70 == 0 { 16 } else { 8 }],
    }
}
