// SPDX-License-Identifier: GPL-2.0
//! Counting the users of something that is going to be taken away.

use super::context::{relax, SPINS};
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::time::{delay::fsleep, Delta};

/// Nobody gets in any more.
const CLOSED: u32 = 1 << 31;

/// Time between two looks at the count, once the caller sleeps.
const NAP_US: i64 = 50;

/// The users of a thing: they never wait, they get in or are turned away. Who takes the thing away
/// closes it, and sleeps until everybody has left.
///
/// In contrast to an RCU grace period this waits for those alone who use this very thing, and
/// disturbs no other CPU. In contrast to a [`Gate`](super::Gate) it is closed for good, and waiting
/// sleeps, so that users may be preempted.
pub struct Users(Atomic<u32>);

impl Users {
    /// Nobody, and not closed.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// One more user, until the guard is dropped; `None` once it is closed. Any context.
    #[inline]
    pub fn enter(&self) -> Option<User<'_>> {
        let user = User(self);
        // Orders what the user reads after it has been counted.
        if self.0.fetch_add(1, Acquire) & CLOSED != 0 {
            // It was counted, so dropping it takes it back.
            return None;
        }
        Some(user)
    }

    /// Whether it is closed already. A user who finds it so does well to leave soon.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.load(Relaxed) & CLOSED != 0
    }

    /// Turns away everybody from now on and waits until all users have left: what they did is
    /// seen by the caller. Process context, sleeps. Not to be called by a user.
    pub fn close(&self) {
        loop {
            let word = self.0.load(Relaxed);
            // What the caller did before is seen by whoever is turned away.
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

/// A user of a thing that counts its [`Users`].
pub struct User<'a>(&'a Users);

impl User<'_> {
    /// Whether somebody waits for this user to leave.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.0.is_closed()
    }
}

impl Drop for User<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Release);
    }
}
