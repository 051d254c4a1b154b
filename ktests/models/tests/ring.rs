// SPDX-License-Identifier: GPL-2.0
//! The queues shared with a process. If the process follows the protocol of the ring, each side
//! reads complete elements, and no slot is written while it is read. If it does not, the kernel's
//! accesses stay within the ring.

use rxe_models::mem::ring::{CompletionRing, UserRing};
use rxe_models::mem::SharedBuf;
use rxe_models::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use rxe_models::sync::Arc;
use rxe_models::{explore, pause, spawn};

const SIZE: usize = 64;
const HEADER: usize = 384;

/// The accesses of a process to a mapped queue.
struct Process(Arc<SharedBuf>);

impl Process {
    fn index(&self, consumer: bool) -> &Atomic<u32> {
        let at = if consumer { 256 } else { 128 };
        // SAFETY: The offset is within the header.
        unsafe { Atomic::from_ptr(self.0.as_ptr().add(at).cast()) }
    }

    fn post(&self, slot: u32, value: u8) {
        self.0.write(HEADER + SIZE * slot as usize, &[value; SIZE]);
    }

    fn completion(&self, slot: u32) -> u8 {
        let mut element = [0; SIZE];
        self.0.read(HEADER + SIZE * slot as usize, &mut element);
        assert!(element.iter().all(|byte| *byte == element[0]), "torn");
        element[0]
    }
}

#[test]
fn requests_are_complete_and_in_order() {
    explore(3, || {
        let mut ring = UserRing::new(2, SIZE).unwrap();
        let process = Process(ring.buffer().clone());
        let poster = spawn(move || {
            for value in 1..=3u8 {
                // One slot stays empty, so the ring holds one element.
                let slot = u32::from(value - 1) & 1;
                while process.index(true).load(Acquire) != slot {
                    pause();
                }
                process.post(slot, value);
                process.index(false).store((slot + 1) & 1, Release);
            }
        });
        let mut element = [0; SIZE];
        let mut expected = 1;
        while expected <= 3 {
            if ring.take(&mut element) {
                assert_eq!(element, [expected; SIZE]);
                expected += 1;
            } else {
                pause();
            }
        }
        assert_eq!(ring.pending(), 0);
        poster.join().unwrap();
    });
}

#[test]
fn released_slots_may_be_written() {
    explore(3, || {
        let mut ring = UserRing::new(2, SIZE).unwrap();
        let process = Process(ring.buffer().clone());
        process.post(0, 1);
        process.index(false).store(1, Release);
        let mut element = [0; SIZE];
        // Fetched and not yet released: a send keeps its slot until it has completed.
        assert!(ring.fetch(&mut element));
        let poster = spawn(move || {
            while process.index(true).load(Acquire) != 1 {
                pause();
            }
            // The process owns all slots now.
            process.post(0, 2);
            process.post(1, 3);
            process.index(false).store(0, Release);
        });
        assert_eq!(element[0], 1);
        ring.release(1);
        while !ring.take(&mut element) {
            pause();
        }
        assert_eq!(element[0], 3);
        poster.join().unwrap();
    });
}

#[test]
fn completions_are_complete_and_in_order() {
    explore(3, || {
        let mut ring = CompletionRing::new(2, SIZE).unwrap();
        let process = Process(ring.buffer().clone());
        let consumer = spawn(move || {
            for value in 1..=2u8 {
                let slot = u32::from(value) - 1;
                while process.index(false).load(Acquire) == slot {
                    pause();
                }
                assert_eq!(process.completion(slot), value);
                process.index(true).store(slot + 1, Release);
            }
        });
        for value in 1..=2u8 {
            assert!(ring.push(&[value; SIZE]));
        }
        consumer.join().unwrap();
        assert!(ring.is_empty() && ring.repairs() == 0);
    });
}

#[test]
fn full_ring_accepts_after_release() {
    explore(3, || {
        let mut ring = CompletionRing::new(2, SIZE).unwrap();
        let process = Process(ring.buffer().clone());
        let capacity = u8::try_from(ring.capacity()).unwrap();
        for value in 0..capacity {
            assert!(ring.push(&[value; SIZE]));
        }
        assert!(!ring.push(&[99; SIZE]));
        let consumer = spawn(move || {
            assert_eq!(process.completion(0), 0);
            process.index(true).store(1, Release);
        });
        // The slot after the last element is free; the one that is being read is not.
        while !ring.push(&[capacity; SIZE]) {
            pause();
        }
        consumer.join().unwrap();
        assert_eq!(ring.len(), ring.capacity());
    });
}

#[test]
fn invalid_indices_are_contained() {
    explore(3, || {
        let mut sends = UserRing::new(4, SIZE).unwrap();
        let mut completions = CompletionRing::new(2, SIZE).unwrap();
        let (send_side, completion_side) = (
            Process(sends.buffer().clone()),
            Process(completions.buffer().clone()),
        );
        let hostile = spawn(move || {
            send_side.index(false).store(u32::MAX, Relaxed);
            send_side.index(true).store(77, Relaxed);
            completion_side.index(true).store(0x8000_0003, Relaxed);
        });
        let mut element = [0; SIZE];
        let mut taken = 0;
        while sends.take(&mut element) {
            taken += 1;
        }
        assert!(taken <= 3);
        for value in 0..4 {
            let _ = completions.push(&[value; SIZE]);
            assert!(completions.len() <= completions.capacity());
        }
        hostile.join().unwrap();
        sends.discard();
        assert_eq!(sends.pending(), 0);
    });
}
