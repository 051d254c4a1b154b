// SPDX-License-Identifier: GPL-2.0
//! When the consumer of a completion queue is told: arming (IBTA vol1 11.4.2.2) and moderation.
//!
//! A queue that is armed tells of the next completion that it was armed for, once. A moderated one
//! waits for more of them: until there are as many as set, or until a time has passed since the
//! first of them. So the last completions are told of late, never not at all.

/// What an armed queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// A solicited completion, or an error.
    Solicited,
    /// A completion of any kind.
    Any,
}

/// What to do about the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// Nothing.
    No,
    /// Notify it.
    Now,
    /// See to it that [`CqArm::expired`] is called at this time, in nanoseconds.
    At(u64),
}

/// The completions to tell of together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Moderation {
    count: u16,
    period_ns: u64,
}

/// Decides for one completion queue when its consumer is told. Whoever calls it holds the queue's
/// lock; times are nanoseconds of one monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct CqArm {
    armed: Option<Wanted>,
    moderation: Option<Moderation>,
    /// Completions that the consumer waits for and has not been told of.
    held: u16,
    /// When it is told of them, if there are any.
    deadline: u64,
}

impl CqArm {
    /// Arms the queue. One that is armed for everything stays so, and what it holds back is told
    /// of when that is due.
    pub fn arm(&mut self, wanted: Wanted) {
        if self.armed != Some(Wanted::Any) {
            self.armed = Some(wanted);
        }
    }

    /// The consumer waits to be told.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Completions to wait for and microseconds to wait for them, if the queue is moderated.
    pub fn moderation(&self) -> Option<(u16, u64)> {
        self.moderation.map(|m| (m.count, m.period_ns / 1000))
    }

    /// Tells of `count` completions together, but of the first of them no later than `period_us`
    /// after it. A count below 2 or a period of 0 tells of each at once.
    ///
    /// What is held back already is due at once.
    pub fn moderate(&mut self, count: u16, period_us: u16, now: u64) -> Notify {
        self.moderation = (count > 1 && period_us > 0).then(|| Moderation {
            count,
            period_ns: u64::from(period_us).saturating_mul(1000),
        });
        if self.held == 0 {
            return Notify::No;
        }
        self.deadline = now;
        Notify::At(now)
    }

    /// A completion was added. The clock is read only if it is the first one to wait.
    #[inline]
    pub fn added(&mut self, solicited: bool, clock: impl FnOnce() -> u64) -> Notify {
        match self.armed {
            Some(Wanted::Any) => {}
            Some(Wanted::Solicited) if solicited => {}
            _ => return Notify::No,
        }
        let Some(moderation) = self.moderation else {
            return self.notify();
        };
        self.held = self.held.saturating_add(1);
        if self.held >= moderation.count {
            return self.notify();
        }
        if self.held > 1 {
            return Notify::No;
        }
        self.deadline = clock().saturating_add(moderation.period_ns);
        Notify::At(self.deadline)
    }

    /// A completion was lost: whoever waits for something shall see that nothing more comes.
    #[cold]
    pub fn lost(&mut self) -> Notify {
        if self.armed.is_some() {
            return self.notify();
        }
        Notify::No
    }

    /// The time asked for has come, or an earlier one.
    pub fn expired(&mut self, now: u64) -> Notify {
        if self.held == 0 {
            return Notify::No;
        }
        if now < self.deadline {
            return Notify::At(self.deadline);
        }
        self.notify()
    }

    #[inline]
    fn notify(&mut self) -> Notify {
        self.armed = None;
        self.held = 0;
        Notify::Now
    }
}

#[cfg(test)]
#[path = "../tests/notify.rs"]
mod tests;
