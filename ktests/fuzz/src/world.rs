// SPDX-License-Identifier: GPL-2.0
//! What the workers of a world share: numbers of objects, memory, and the programs they run.
//!
//! All of it is in memory shared by processes, and nobody takes a lock: a worker uses objects that
//! another one is just making or destroying.

use crate::calls::{Call, ARGS, MOST_CALLS};
use crate::sys::{self, Window};
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
    /// Completion channel: a descriptor of one process.
    Channel,
}

const KINDS: usize = 8;
/// Objects of a kind that are remembered.
pub const SLOTS: usize = 16;
const LONGS: usize = 12;

/// An object as it was when somebody made it; it may be gone.
#[derive(Clone, Copy, Default, Debug)]
pub struct Object {
    /// Changes with each object in the slot; 0 if there was none.
    pub generation: u64,
    /// Nobody has destroyed it, as far as is known.
    pub alive: bool,
    /// The context it belongs to.
    pub context: usize,
    /// Its number there.
    pub handle: u32,
    /// What belongs to it: see the `X_` constants.
    pub x: [u64; 8],
}

/// Queue pair: number, type; then the two queues.
pub const X_QPN: usize = 0;
/// Type of a queue pair.
pub const X_TYPE: usize = 1;
/// Offset to map the queue at (SQ of a queue pair), then its bytes.
pub const X_RING: usize = 2;
/// The same of the receive queue.
pub const X_RECV: usize = 4;
/// Region: keys, address of access, bytes. Window: key. Address handle: number.
pub const X_LKEY: usize = 0;
/// Key for peers.
pub const X_RKEY: usize = 1;
/// First address of a region, as requests name it.
pub const X_IOVA: usize = 2;
/// Bytes of a region.
pub const X_LEN: usize = 3;

/// The shared memory.
#[derive(Clone, Copy)]
pub struct World {
    window: Window,
    programs: Window,
    results: Window,
}

const CALL_WORDS: usize = ARGS + 2;
const PROGRAM_WORDS: usize = 1 + MOST_CALLS * CALL_WORDS;

impl World {
    /// A new one for so many workers.
    pub fn new(workers: usize) -> Result<Self, i32> {
        Ok(Self {
            window: Window::shared(KINDS * SLOTS * LONGS * 8)?,
            programs: Window::shared(workers * PROGRAM_WORDS * 4)?,
            results: Window::shared(4096)?,
        })
    }

    /// Forgets all objects.
    pub fn clear(&self) {
        for long in self.window.longs() {
            long.store(0, Relaxed);
        }
    }

    /// What is in a slot.
    pub fn get(&self, kind: Kind, slot: usize) -> Object {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        let longs = &self.window.longs()[at..at + LONGS];
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

    /// Remembers an object, in place of what was in the slot.
    pub fn put(&self, kind: Kind, slot: usize, context: usize, handle: u32, x: &[u64]) {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        let longs = &self.window.longs()[at..at + LONGS];
        for n in 0..8 {
            longs[3 + n].store(x.get(n).copied().unwrap_or(0), Relaxed);
        }
        longs[1].store(context as u64, Relaxed);
        longs[2].store(u64::from(handle), Relaxed);
        longs[11].store(1, Relaxed);
        longs[0].fetch_add(1, Relaxed);
    }

    /// Changes one of the numbers of an object.
    pub fn set(&self, kind: Kind, slot: usize, which: usize, value: u64) {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        self.window.longs()[at + 3 + which].store(value, Relaxed);
    }

    /// Notes that an object was destroyed. Its numbers stay, for whoever uses them nevertheless.
    pub fn gone(&self, kind: Kind, slot: usize) {
        let at = (kind as usize * SLOTS + slot % SLOTS) * LONGS;
        self.window.longs()[at + 11].store(0, Relaxed);
    }

    /// A slot with an object that is there, from `start` on; `start` if there is none.
    pub fn near(&self, kind: Kind, start: usize) -> usize {
        (0..SLOTS)
            .map(|n| (start + n) % SLOTS)
            .find(|slot| self.get(kind, *slot).alive)
            .unwrap_or(start % SLOTS)
    }

    /// A slot with an object of that context, from `start` on; any slot if there is none.
    pub fn find(&self, kind: Kind, start: usize, context: usize) -> usize {
        (0..SLOTS)
            .map(|n| (start + n) % SLOTS)
            .find(|slot| {
                let object = self.get(kind, *slot);
                object.alive && object.context == context
            })
            .unwrap_or(start % SLOTS)
    }

    /// Hands a list of calls to a worker.
    pub fn set_program(&self, worker: usize, calls: &[Call]) {
        let words = &self.programs.words()[worker * PROGRAM_WORDS..];
        words[0].store(calls.len().min(MOST_CALLS) as u32, Relaxed);
        for (call, words) in calls
            .iter()
            .zip(words[1..].chunks(CALL_WORDS))
            .take(MOST_CALLS)
        {
            words[0].store(u32::from(call.op), Relaxed);
            words[1].store(u32::from(call.nth), Relaxed);
            for (word, arg) in words[2..].iter().zip(call.args) {
                word.store(arg, Relaxed);
            }
        }
    }

    /// The list that a worker was handed.
    pub fn program(&self, worker: usize) -> Vec<Call> {
        let words = &self.programs.words()[worker * PROGRAM_WORDS..];
        let count = (words[0].load(Relaxed) as usize).min(MOST_CALLS);
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

    /// Counts how a call ended.
    pub fn count(&self, op: usize, ok: bool) {
        if let Some(word) = self.results.words().get(2 * op + usize::from(ok)) {
            word.fetch_add(1, Relaxed);
        }
    }

    /// Calls of a kind that failed, and that did not.
    pub fn counted(&self, op: usize) -> (u32, u32) {
        let words = self.results.words();
        (words[2 * op].load(Relaxed), words[2 * op + 1].load(Relaxed))
    }
}

/// Areas of memory for regions, at the same addresses in all workers.
pub const AREAS: usize = 8;
/// Bytes of an area.
pub const AREA_LEN: usize = 2 << 20;
const AREA_BASE: u64 = 0x20_0000_0000;
const AREA_STEP: u64 = 16 << 20;
/// Where the queues of all objects are mapped.
pub const RING_BASE: u64 = 0x10_0000_0000;
/// Room for a queue.
pub const RING_STEP: u64 = 8 << 20;

/// Forgets all queues that this process has mapped.
pub fn unmap_rings() {
    let _ = sys::memory_call(libc::SYS_munmap, RING_BASE, RING_STEP * 4 * SLOTS as u64, 0);
}

/// First address of an area. The last one is the completion queue in slot 0.
pub fn area(number: usize) -> u64 {
    match number % AREAS {
        7 => RING_BASE,
        number => AREA_BASE + number as u64 * AREA_STEP,
    }
}

/// Maps an area as it is at first: private, shared, of a file, secret, read only, huge pages,
/// nothing.
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
    /// For making DMA buffers, if the kernel can.
    pub udmabuf: i32,
}

impl Files {
    /// Makes them.
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

    /// The file of shared memory.
    pub fn shared(&self) -> i32 {
        self.shared
    }
}

/// An address in some area.
pub fn address(arg: u32) -> u64 {
    let pages = u64::from((arg >> 4) & 0xff) << 12;
    let bytes = if (arg >> 24) & 3 == 1 {
        u64::from((arg >> 12) & 0xfff)
    } else {
        0
    };
    // Mostly the plain memory.
    let number = if arg & 8 == 0 { arg & 1 } else { arg & 7 };
    area(number as usize) + pages + bytes
}

/// A number of bytes.
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
