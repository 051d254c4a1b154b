// SPDX-License-Identifier: GPL-2.0
//! `kernel::sync::rcu`. A counter of read-side critical sections: a grace period is over when it
//! has been zero. As in the kernel, a section that begins later sees what preceded the grace
//! period, and what follows the grace period sees what a section did; nothing more is ordered here.

use crate::backend::Counter;
use crate::bindings::callback_head;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

#[cfg(feature = "loom")]
mod state {
    use super::{callback_head, Counter};
    use std::cell::RefCell;
    use std::sync::atomic::Ordering::AcqRel;

    type Callback = (usize, unsafe extern "C" fn(*mut callback_head));

    loom::lazy_static! {
        static ref SECTIONS: Counter = Counter::new(0);
    }

    thread_local! {
        /// Loom's threads are one thread of the host.
        static WAITING: RefCell<Vec<Callback>> = const { RefCell::new(Vec::new()) };
    }

    /// Clears the callbacks and creates the counter. Must be called before a model starts threads.
    pub(crate) fn start() {
        WAITING.with(|waiting| waiting.borrow_mut().clear());
        let _ = &*SECTIONS;
    }

    pub(super) fn with<R>(f: impl FnOnce(&Counter) -> R) -> R {
        f(&SECTIONS)
    }

    /// Calls `func` immediately, or when the last section has ended.
    pub(crate) fn call(head: *mut callback_head, func: unsafe extern "C" fn(*mut callback_head)) {
        if with(|sections| sections.fetch_add(0, AcqRel)) == 0 {
            // SAFETY: By the contract of `call_rcu`.
            unsafe { func(head) };
        } else {
            // Loom switches threads in its own primitives only: no section has ended since.
            WAITING.with(|waiting| waiting.borrow_mut().push((head as usize, func)));
        }
    }

    /// Calls the waiting functions. No thread is in a section.
    pub(super) fn quiet() {
        for (head, func) in WAITING.with(RefCell::take) {
            // SAFETY: As above.
            unsafe { func(head as *mut _) };
        }
    }
}

#[cfg(not(feature = "loom"))]
mod state {
    use super::{callback_head, Counter};
    use std::sync::atomic::Ordering::AcqRel;
    use std::sync::Mutex;

    struct Callback(*mut callback_head, unsafe extern "C" fn(*mut callback_head));

    // SAFETY: By the contract of `call_rcu` nobody else uses what it points to.
    unsafe impl Send for Callback {}

    static SECTIONS: Counter = Counter::new(0);
    static WAITING: Mutex<Vec<Callback>> = Mutex::new(Vec::new());

    pub(super) fn with<R>(f: impl FnOnce(&Counter) -> R) -> R {
        f(&SECTIONS)
    }

    /// Calls `func` immediately, or when no thread is in a section.
    pub(crate) fn call(head: *mut callback_head, func: unsafe extern "C" fn(*mut callback_head)) {
        WAITING.lock().unwrap().push(Callback(head, func));
        quiet();
    }

    /// Calls the waiting functions if no thread is in a section.
    pub(super) fn quiet() {
        let mut waiting = WAITING.lock().unwrap();
        // With the lock held: another thread may begin a section and add a function at any time.
        if SECTIONS.fetch_add(0, AcqRel) != 0 {
            return;
        }
        let ready = std::mem::take(&mut *waiting);
        // A function may drop objects that are in sections or add functions themselves.
        drop(waiting);
        for Callback(head, func) in ready {
            // SAFETY: By the contract of `call_rcu`.
            unsafe { func(head) };
        }
    }
}

pub(crate) use state::call;
#[cfg(feature = "loom")]
pub(crate) use state::start;

/// A read-side critical section of the thread that began it.
pub struct Guard(PhantomData<*mut ()>);

/// Begins a read-side critical section.
pub fn read_lock() -> Guard {
    state::with(|sections| sections.fetch_add(1, Acquire));
    Guard(PhantomData)
}

impl Drop for Guard {
    fn drop(&mut self) {
        if state::with(|sections| sections.fetch_sub(1, AcqRel)) == 1 {
            state::quiet();
        }
    }
}

/// Waits until no thread is in a section.
pub(crate) fn synchronize() {
    while state::with(|sections| sections.fetch_add(0, AcqRel)) != 0 {
        crate::pause();
    }
}
