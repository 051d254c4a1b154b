// SPDX-License-Identifier: GPL-2.0
//! Completion notification: arming of CQs and moderation.
//!
//! An armed CQ notifies its consumer once, of the next completion that it is armed for. A
//! moderated CQ delays the notification until the set number of such completions has been added,
//! or until the period since the first of them is over. So the last completions are notified
//! late, but always.

use crate::time::Instant;

/// What a CQ is armed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArmType {
    /// A solicited completion, or an error.
    Solicited,
    /// A completion of any kind.
    Next,
}

/// What the caller must do about the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// Nothing.
    No,
    /// Notify it.
    Now,
    /// Call [`CqArm::expired`] at this time.
    At(Instant),
}

/// Moderation parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Moderation {
    /// Completions after which the consumer is notified.
    count: u16,
    /// Time after the first completion at which it is notified in any case.
    period_ns: u64,
}

/// Decides when to notify the consumer of one CQ (IBTA 11.4.2.2). The caller holds the lock of the
/// CQ.
///
/// # Examples
///
/// ```
/// use rxe_proto::engine::notify::{ArmType, CqArm, Notify};
/// use rxe_proto::time::Instant;
///
/// let clock = || Instant::ZERO;
/// let mut arm = CqArm::default();
/// assert_eq!(arm.added(false, clock), Notify::No);
/// // One completion is notified each time the CQ is armed.
/// arm.arm(ArmType::Next);
/// assert_eq!(arm.added(false, clock), Notify::Now);
/// assert_eq!(arm.added(false, clock), Notify::No);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CqArm {
    armed: Option<ArmType>,
    moderation: Option<Moderation>,
    /// Completions whose notification is delayed.
    delayed: u16,
    /// When to notify of them, if there are any.
    deadline: Instant,
}

impl CqArm {
    /// Arms the CQ. A CQ that is armed for all completions stays so, and a delayed notification
    /// stays due at its deadline.
    pub fn arm(&mut self, arm_type: ArmType) {
        if self.armed != Some(ArmType::Next) {
            self.armed = Some(arm_type);
        }
    }

    /// True if the CQ is armed.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Number of completions and period in microseconds, if the CQ is moderated.
    pub fn moderation(&self) -> Option<(u16, u64)> {
        self.moderation.map(|m| (m.count, m.period_ns / 1000))
    }

    /// Sets moderation: notify after `count` completions, but at most `period_us` microseconds
    /// after the first of them. A count below 2 or a period of 0 disables moderation.
    ///
    /// A notification that is already delayed becomes due at once.
    pub fn moderate(&mut self, count: u16, period_us: u16, now: Instant) -> Notify {
        self.moderation = (count > 1 && period_us > 0).then(|| Moderation {
            count,
            period_ns: u64::from(period_us).saturating_mul(1000),
        });
        if self.delayed == 0 {
            return Notify::No;
        }
        self.deadline = now;
        Notify::At(now)
    }

    /// A completion was added. Reads the clock only if this is the first delayed one.
    #[inline]
    pub fn added(&mut self, solicited: bool, clock: impl FnOnce() -> Instant) -> Notify {
        match self.armed {
            Some(ArmType::Next) => {}
            Some(ArmType::Solicited) if solicited => {}
            _ => return Notify::No,
        }
        let Some(moderation) = self.moderation else {
            return self.notify();
        };
        self.delayed = self.delayed.saturating_add(1);
        if self.delayed >= moderation.count {
            return self.notify();
        }
        if self.delayed > 1 {
            return Notify::No;
        }
        self.deadline = clock().saturating_add(moderation.period_ns);
        Notify::At(self.deadline)
    }

    /// A completion was lost (CQ overflow): notifies an armed consumer at once, so that it sees the
    /// failed CQ.
    #[cold]
    pub fn lost(&mut self) -> Notify {
        if self.armed.is_some() {
            return self.notify();
        }
        Notify::No
    }

    /// The deadline has passed, or the timer fired early.
    pub fn expired(&mut self, now: Instant) -> Notify {
        if self.delayed == 0 {
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
        self.delayed = 0;
        Notify::Now
    }
}

#[cfg(test)]
#[path = "../tests/notify.rs"]
mod tests;
