// SPDX-License-Identifier: GPL-2.0
//! A value that many use and that anybody can take away at once, from any context.

use super::context::disable_bh;
use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::ops::Deref;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};

/// The value can be used.
const OPEN: u32 = 1 << 31;
/// Somebody changes it.
const CHANGING: u32 = 1 << 30;
/// Number of users.
const USERS: u32 = CHANGING - 1;

/// Holds a value, or none. Users never wait: they get in or are turned away. Who changes it waits
/// for the users, so that after [`change`](Self::change) nobody uses what was there before.
///
/// Uses are short (a copy of one packet) and happen with bottom halves off, which bounds the wait.
pub struct Gate<T> {
    word: Atomic<u32>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: The value is reached shared by users and exclusively by the one who changes it, on any
// CPU.
unsafe impl<T: Send> Send for Gate<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

impl<T> Gate<T> {
    /// A gate with a value behind it, or none.
    pub const fn new(value: Option<T>) -> Self {
        Self {
            word: Atomic::new(if value.is_some() { OPEN } else { 0 }),
            value: UnsafeCell::new(value),
        }
    }

    /// Uses the value; `None` if there is none or somebody is changing it.
    ///
    /// Context: bottom halves off until the guard is dropped. The user does not call
    /// [`change`](Self::change) of the same gate meanwhile.
    #[inline]
    pub fn enter(&self) -> Option<Pass<'_, T>> {
        let before = self.word.fetch_add(1, Acquire);
        let pass = Pass { gate: self };
        if before & (OPEN | CHANGING) != OPEN {
            // The pass was never used; dropping it takes the count back.
            return None;
        }
        Some(pass)
    }

    /// Lets `f` change the value when nobody uses it. Any context but a hard interrupt; waits for
    /// users on other CPUs, without sleeping.
    pub fn change<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> R {
        let _bh = disable_bh();
        loop {
            let word = self.word.load(Relaxed);
            let wanted = (word & !OPEN) | CHANGING;
            if word & CHANGING == 0 && self.word.cmpxchg(word, wanted, Acquire).is_ok() {
                break;
            }
            spin_loop();
        }
        while self.word.load(Acquire) & USERS != 0 {
            spin_loop();
        }
        // SAFETY: Nobody else changes the value, for `CHANGING` is ours; who used it has left,
        // and everybody else is turned away. The acquiring load orders after their uses.
        let value = unsafe { &mut *self.value.get() };
        let result = f(value);
        // Users being turned away may be counted just now.
        let flip = if value.is_some() { OPEN } else { 0 };
        self.word.fetch_add(flip.wrapping_sub(CHANGING), Release);
        result
    }
}

/// The value is in use.
pub struct Pass<'a, T> {
    gate: &'a Gate<T>,
}

impl<T> Deref for Pass<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: The gate was open when the pass was given, and stays unchanged while it counts
        // as a user; an open gate has a value.
        unsafe { (*self.gate.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> Drop for Pass<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.word.fetch_sub(1, Release);
    }
}
