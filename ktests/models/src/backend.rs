// SPDX-License-Identifier: GPL-2.0
//! Loom, or the threads and atomics of `std`.

#[cfg(feature = "loom")]
mod with_loom {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::{Arc, Mutex};

    /// Atomics of the tests, not of the driver.
    pub type Counter = loom::sync::atomic::AtomicU32;

    /// Runs `model` in every order of its threads in which at most `preemptions` of them are
    /// stopped where they need not wait.
    pub fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 10_000;
        builder.check(move || {
            crate::prelude::release();
            crate::sync::atomic::start();
            crate::sync::rcu::start();
            model();
        });
    }

    /// Starts a thread.
    pub fn spawn<T: 'static>(run: impl FnOnce() -> T + 'static) -> loom::thread::JoinHandle<T> {
        loom::thread::spawn(run)
    }

    /// Lets other threads run; must be called in each iteration of a loop that waits for them.
    pub fn pause() {
        loom::thread::yield_now();
    }
}

#[cfg(not(feature = "loom"))]
mod with_std {
    pub use std::sync::{Arc, Mutex};

    /// Atomics of the tests, not of the driver.
    pub type Counter = std::sync::atomic::AtomicU32;

    /// Number of runs of a model; Miri selects another schedule each time.
    const RUNS: u32 = if cfg!(miri) { 20 } else { 500 };

    /// Runs `model` several times.
    pub fn explore(_: usize, model: impl Fn() + Sync + Send + 'static) {
        for _ in 0..RUNS {
            model();
        }
    }

    /// Starts a thread.
    pub fn spawn<T: Send + 'static>(
        run: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        std::thread::spawn(run)
    }

    /// Lets other threads run; must be called in each iteration of a loop that waits for them.
    pub fn pause() {
        std::thread::yield_now();
    }

    /// `UnsafeCell` with the interface of loom's.
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

#[cfg(feature = "loom")]
pub use with_loom::*;
#[cfg(not(feature = "loom"))]
pub use with_std::*;
