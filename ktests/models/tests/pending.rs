// SPDX-License-Identifier: GPL-2.0
//! `Pending`, by which completion handlers are called, and `PendingSet`, by which consumers are
//! notified of events: calls do not overlap, and no notification is lost.

use rxe_models::lockfree::{Pending, PendingSet};
use rxe_models::sync::atomic::{Atomic, Full};
use rxe_models::sync::Arc;
use rxe_models::track::Tracked;
use rxe_models::{explore, pause, spawn, Counter};
use std::sync::atomic::Ordering::Relaxed;

struct Queue {
    pending: Pending,
    /// Completions added so far.
    added: Counter,
    /// Those that the last call of the handler saw. Only the handler accesses it.
    seen: Tracked,
}

impl Queue {
    fn complete(&self, most: u32) {
        self.added.fetch_add(1, Relaxed);
        if self.pending.add() {
            let mut notify = || self.seen.write(self.added.load(Relaxed));
            while !self.pending.deliver(most, &mut notify) {
                pause();
            }
        }
    }
}

fn two_producers(most: u32) {
    explore(3, move || {
        let queue = Arc::new(Queue {
            pending: Pending::new(),
            added: Counter::new(0),
            seen: Tracked::new(0),
        });
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                spawn(move || queue.complete(most))
            })
            .collect();
        for producer in producers {
            producer.join().unwrap();
        }
        assert_eq!(queue.seen.read(), 2, "a completion without a notification");
    });
}

#[test]
fn no_notification_is_lost() {
    two_producers(4);
}

#[test]
fn no_notification_is_lost_with_a_budget() {
    two_producers(1);
}

/// A work item: queued once at most, and ordered after whatever preceded the queueing.
struct Work {
    queued: Atomic<bool>,
    events: PendingSet,
    /// Written before the event of the same index is raised.
    causes: [Tracked; 2],
}

#[test]
fn events_are_ordered_after_their_causes() {
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
        let mut notified = 0;
        while notified != 3 {
            if !work.queued.xchg(false, Full) {
                pause();
                continue;
            }
            let events = work.events.take();
            assert_eq!(notified & events, 0, "notified twice");
            for (kind, cause) in work.causes.iter().enumerate() {
                if events & (1 << kind) != 0 {
                    assert_eq!(cause.read(), 1);
                }
            }
            notified |= events;
        }
        for raiser in raisers {
            raiser.join().unwrap();
        }
        assert_eq!(work.events.take(), 0);
    });
}
