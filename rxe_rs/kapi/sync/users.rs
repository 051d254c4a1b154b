// SPDX-License-Identifier: GPL-2.0
//! Counting the users of an object that is going to be removed.

use super::context::{
    relax,
    SPINS, //
};
use kernel::{
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};

/// Set when no further user is admitted.
const CLOSED: u32 = 1 << 31;

/// Time between two reads of the count, once the caller sleeps.
const NAP_US: i64 = 50;

/// The users of an object: they never wait, they are admitted or not. Code that removes the object
/// closes it, and sleeps until all users have left.
///
/// In contrast to an RCU grace period this waits for the users of this object only, and disturbs no
/// other CPU. In contrast to `Rearmable` it is closed for good, and waiting sleeps, so that users
/// may be preempted.
pub struct Users(Atomic<u32>);

impl Users {
    /// Creates a count without users, which is not closed.
    ///
    /// # Context
    ///
    /// Any context.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts one more user, until the guard is dropped; `None` once it is closed.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn try_get(&self) -> Option<User<'_>> {
        let user = User(self);
        // Orders the user's reads after the count.
        if self.0.fetch_add(1, Acquire) & CLOSED != 0 {
            // It was counted, so dropping it decrements the count.
            return None;
        }
        Some(user)
    }

    /// Returns true if it is closed. A user that finds it closed should leave soon.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.load(Relaxed) & CLOSED != 0
    }

    /// Admits no further users and waits until all have left; their effects are visible to the
    /// caller.
    ///
    /// # Context
    ///
    /// Process context; sleeps. Must not be called by a user.
    pub fn close(&self) {
        loop {
            let word = self.0.load(Relaxed);
            // The caller's earlier writes are visible to users that are not admitted.
            if self.0.cmpxchg(word, word | CLOSED, Full).is_ok() {
                break;
            }
        }
        for _ in 0..SPINS {
            if self.0.load(Acquire) == CLOSED {
                return;
            }
            relax();
        }
        while self.0.load(Acquire) != CLOSED {
            fsleep(Delta::from_micros(NAP_US));
        }
    }
}

impl Default for Users {
    fn default() -> Self {
        Self::new()
    }
}

/// A user of an object that counts its [`Users`].
pub struct User<'a>(&'a Users);

impl User<'_> {
    /// Returns true if a writer waits for this user to leave.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.0.is_closed()
    }
}

impl Drop for User<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Release);
    }
}
