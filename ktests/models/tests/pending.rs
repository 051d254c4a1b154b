// SPDX-License-Identifier: GPL-2.0
//! `Pending`, by which completion handlers are called, and `PendingSet`, by which consumers hear of
//! events: calls do not overlap, and nothing is forgotten.

use rxe_models::lockfree::{Pending, PendingSet};
use rxe_models::sync::atomic::{Atomic, Full};
use rxe_models::sync::Arc;
use rxe_models::track::Tracked;
use rxe_models::{explore, pause, spawn, Counter};
use std::sync::atomic::Ordering::Relaxed;

struct Queue {
    pending: Pending,
    /// Completions there are.
    added: Counter,
    /// What the handler has seen of them last: only it accesses this.
    seen: Tracked,
}

impl Queue {
    fn complete(&self, most: u32) {
        self.added.fetch_add(1, Relaxed);
        if self.pending.add() {
            let mut tell = || self.seen.write(self.added.load(Relaxed));
            while !self.pending.deliver(most, &mut tell) {
                pause();
            }
        }
    }
}

fn two_at_once(most: u32) {
    explore(3, move || {
        let queue = Arc::new(Queue {
            pending: Pending::new(),
            added: Counter::new(0),
            seen: Tracked::new(0),
        });
        let others: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                spawn(move || queue.complete(most))
            })
            .collect();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(queue.seen.read(), 2, "a completion was never told of");
    });
}

#[test]
fn nothing_is_forgotten() {
    two_at_once(4);
}

#[test]
fn nothing_is_forgotten_when_calls_are_cut_short() {
    two_at_once(1);
}

/// A work item: queued once at most, and run after whatever was done before it was queued.
struct Work {
    queued: Atomic<bool>,
    events: PendingSet,
    /// What was done before each of the events.
    causes: [Tracked; 2],
}

#[test]
fn events_are_told_with_what_led_to_them() {
    explore(3, || {
        let work = Arc::new(Work {
            queued: Atomic::new(false),
            events: PendingSet::new(),
            causes: [Tracked::new(0), Tracked::new(0)],
        });
        let raisers: Vec<_> = (0..2)
            .map(|kind: usize| {
                let work = work.clone();
                spawn(move || {
                    work.causes[kind].write(1);
                    work.events.raise(1 << kind);
                    work.queued.xchg(true, Full);
                })
            })
            .collect();
        let mut told = 0;
        while told != 3 {
            if !work.queued.xchg(false, Full) {
                pause();
                continue;
            }
            let events = work.events.take();
            assert_eq!(told & events, 0, "told twice");
            for (kind, cause) in work.causes.iter().enumerate() {
                if events & (1 << kind) != 0 {
                    assert_eq!(cause.read(), 1);
                }
            }
            told |= events;
        }
        for raiser in raisers {
            raiser.join().unwrap();
        }
        assert_eq!(work.events.take(), 0);
    });
}
