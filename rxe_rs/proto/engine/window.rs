// SPDX-License-Identifier: GPL-2.0
//! How many packets of a connection may be unacknowledged.
//!
//! Grows with acknowledged packets (doubling each round trip, then by one packet a round trip
//! after the first loss) and halves at most once a round trip when packets are lost.

use crate::ids::Psn;

/// Congestion window in packets.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    limit: u32,
    threshold: u32,
    credit: u32,
    recover: Option<Psn>,
}

impl Window {
    /// Packets in flight that a new connection starts with.
    pub const START: u32 = 256;
    /// Least number of packets in flight.
    pub const MIN: u32 = 16;
    /// Greatest number of packets in flight; 32 MiB at a path MTU of 4096.
    pub const MAX: u32 = 8192;

    /// A window that has seen neither progress nor loss.
    pub const fn new() -> Self {
        Self {
            limit: Self::START,
            threshold: Self::MAX,
            credit: 0,
            recover: None,
        }
    }

    /// Packets that may be in flight.
    #[inline]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// True from a loss until everything sent before is acknowledged: packets are sent twice.
    #[inline]
    pub const fn is_recovering(&self) -> bool {
        self.recover.is_some()
    }

    /// `packets` more have been acknowledged; everything before `una` is.
    #[inline]
    pub fn on_progress(&mut self, packets: u32, una: Psn) {
        if let Some(recover) = self.recover {
            if !una.is_before(recover) {
                self.recover = None;
            }
        }
        if self.limit >= Self::MAX {
            return;
        }
        if self.limit < self.threshold {
            self.limit = self.limit.saturating_add(packets).min(Self::MAX);
        } else {
            self.credit = self.credit.saturating_add(packets);
            if self.credit >= self.limit {
                self.credit = 0;
                self.limit = self.limit.saturating_add(1);
            }
        }
    }

    /// Packets were lost while everything before `top` had been sent.
    pub fn on_loss(&mut self, top: Psn) {
        if self.recover.is_some() {
            return;
        }
        self.recover = Some(top);
        self.threshold = self.limit.wrapping_shr(1).max(Self::MIN);
        self.limit = self.threshold;
        self.credit = 0;
    }

    /// A queue on the way grows longer than it should: the end of doubling.
    pub fn on_congestion(&mut self) {
        self.threshold = self.threshold.min(self.limit);
    }

    /// Nothing was heard of the peer for a whole timeout while everything before `top` had been
    /// sent. Whatever queue that sits in, sending as much again only makes it longer: starts over
    /// from the least window, and grows back by doubling to half of what was too much.
    pub fn on_timeout(&mut self, top: Psn) {
        self.threshold = self.limit.wrapping_shr(1).max(Self::MIN);
        self.limit = Self::MIN;
        self.credit = 0;
        self.recover = Some(top);
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_limit_and_no_further() {
        let mut w = Window::new();
        for _ in 0..1000 {
            w.on_progress(64, Psn::new(0));
        }
        assert_eq!(w.limit(), Window::MAX);
    }

    #[test]
    fn halves_once_a_round_trip() {
        let mut w = Window::new();
        w.on_loss(Psn::new(100));
        w.on_loss(Psn::new(100));
        assert_eq!(w.limit(), Window::START / 2);
        w.on_progress(1, Psn::new(99));
        w.on_loss(Psn::new(120));
        assert_eq!(w.limit(), Window::START / 2);
        w.on_progress(1, Psn::new(100));
        w.on_loss(Psn::new(120));
        assert_eq!(w.limit(), Window::START / 4);
        for i in 0..20u32 {
            w.on_progress(1, Psn::new(100 + 30 * i));
            w.on_loss(Psn::new(120 + 30 * i));
        }
        assert_eq!(w.limit(), Window::MIN);
    }

    #[test]
    fn starts_over_after_a_timeout() {
        let mut w = Window::new();
        w.on_timeout(Psn::new(256));
        assert_eq!(w.limit(), Window::MIN);
        // The loss that the timeout found is not counted twice.
        w.on_loss(Psn::new(256));
        w.on_progress(Window::MIN, Psn::new(16));
        assert_eq!(w.limit(), 2 * Window::MIN);
        for i in 0..20 {
            w.on_progress(16, Psn::new(32 + 16 * i));
        }
        assert!((Window::START / 2..Window::START).contains(&w.limit()));
    }
}
