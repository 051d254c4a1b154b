// SPDX-License-Identifier: GPL-2.0
//! Congestion window: how many packets of a connection may be in flight.
//!
//! The window grows with acknowledged packets (slow start: doubling each round trip; after the
//! first loss congestion avoidance: one packet per round trip) and halves at most once per round
//! trip when packets are lost.

use crate::ids::Psn;

/// Congestion window in packets.
#[derive(Clone, Copy, Debug)]
pub struct CongestionWindow {
    limit: u32,
    /// Packets at which slow start ends.
    threshold: u32,
    /// Packets acknowledged since the window grew last, in congestion avoidance.
    credit: u32,
    /// During loss recovery: everything before it had been sent when the loss was noticed.
    recover: Option<Psn>,
}

impl CongestionWindow {
    /// Initial window, in packets.
    pub const START: u32 = 256;
    /// Minimum window, in packets.
    pub const MIN: u32 = 16;
    /// Minimum window, in packets, if the peer keeps what follows a lost packet: a loss costs
    /// little, and the window must not end before the lost packet has been repeated. At most
    /// [`MAX_AHEAD`](super::repeat::MAX_AHEAD).
    pub const MIN_REPEAT: u32 = 48;
    /// Maximum window, in packets; 32 MiB at a path MTU of 4096.
    pub const MAX: u32 = 8192;

    /// The window of a new connection.
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

    /// True once loss or a growing queue has ended the first slow start.
    #[inline]
    pub const fn is_limited_by_path(&self) -> bool {
        self.threshold < Self::MAX
    }

    /// True during loss recovery, that is until everything sent before the loss is acknowledged:
    /// packets are being retransmitted.
    #[inline]
    pub const fn is_recovering(&self) -> bool {
        self.recover.is_some()
    }

    /// The peer acknowledged `packets` more packets, everything before `una`.
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

    /// Packets were lost; everything before `max_psn` had been sent. The window does not become
    /// shorter than `least` packets.
    pub fn on_loss(&mut self, max_psn: Psn, least: u32) {
        if self.recover.is_some() {
            return;
        }
        self.recover = Some(max_psn);
        self.threshold = self.limit.wrapping_shr(1).max(least);
        self.limit = self.threshold;
        self.credit = 0;
    }

    /// A queue on the path grows: ends slow start.
    pub fn on_congestion(&mut self) {
        self.threshold = self.threshold.min(self.limit);
    }

    /// The acknowledgement timer expired; everything before `max_psn` had been sent. Whatever queue
    /// the packets are in, retransmitting them all would only make it longer: restarts from a
    /// window of `first` packets, usually the minimum, with slow start up to half of the previous
    /// one.
    pub fn on_timeout(&mut self, max_psn: Psn, first: u32) {
        self.threshold = self.limit.wrapping_shr(1).max(Self::MIN);
        self.limit = self.limit.min(first);
        self.credit = 0;
        self.recover = Some(max_psn);
    }
}

impl Default for CongestionWindow {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_up_to_the_maximum() {
        let mut w = CongestionWindow::new();
        for _ in 0..1000 {
            w.on_progress(64, Psn::new(0));
        }
        assert_eq!(w.limit(), CongestionWindow::MAX);
    }

    #[test]
    fn halves_once_per_round_trip() {
        let mut w = CongestionWindow::new();
        w.on_loss(Psn::new(100), CongestionWindow::MIN);
        w.on_loss(Psn::new(100), CongestionWindow::MIN);
        assert_eq!(w.limit(), CongestionWindow::START / 2);
        w.on_progress(1, Psn::new(99));
        w.on_loss(Psn::new(120), CongestionWindow::MIN);
        assert_eq!(w.limit(), CongestionWindow::START / 2);
        w.on_progress(1, Psn::new(100));
        w.on_loss(Psn::new(120), CongestionWindow::MIN);
        assert_eq!(w.limit(), CongestionWindow::START / 4);
        for i in 0..20u32 {
            w.on_progress(1, Psn::new(100 + 30 * i));
            w.on_loss(Psn::new(120 + 30 * i), CongestionWindow::MIN);
        }
        assert_eq!(w.limit(), CongestionWindow::MIN);
    }

    #[test]
    fn restarts_after_a_timeout() {
        let mut w = CongestionWindow::new();
        w.on_timeout(Psn::new(256), CongestionWindow::MIN);
        assert_eq!(w.limit(), CongestionWindow::MIN);
        // The loss that the timeout detected is not counted twice.
        w.on_loss(Psn::new(256), CongestionWindow::MIN);
        w.on_progress(CongestionWindow::MIN, Psn::new(16));
        assert_eq!(w.limit(), 2 * CongestionWindow::MIN);
        for i in 0..20 {
            w.on_progress(16, Psn::new(32 + 16 * i));
        }
        assert!((CongestionWindow::START / 2..CongestionWindow::START).contains(&w.limit()));
    }
}
