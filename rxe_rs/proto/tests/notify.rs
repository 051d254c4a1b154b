// SPDX-License-Identifier: GPL-2.0
//! Completion notification: arming and moderation.

use super::*;
use proptest::prelude::*;

fn no_clock() -> Instant {
    panic!("the clock was read")
}

fn at(ns: u64) -> Instant {
    Instant::from_ns(ns)
}

#[test]
fn notified_once_when_armed() {
    let mut n = CqArm::default();
    assert_eq!(n.added(true, no_clock), Notify::No);
    n.arm(ArmType::Next);
    assert!(n.is_armed());
    assert_eq!(n.added(false, no_clock), Notify::Now);
    assert!(!n.is_armed());
    assert_eq!(n.added(true, no_clock), Notify::No);
}

#[test]
fn armed_for_solicited() {
    let mut n = CqArm::default();
    n.arm(ArmType::Solicited);
    assert_eq!(n.added(false, no_clock), Notify::No);
    assert_eq!(n.added(true, no_clock), Notify::Now);
    // Arming may widen what the CQ is armed for, never narrow it.
    n.arm(ArmType::Next);
    n.arm(ArmType::Solicited);
    assert_eq!(n.added(false, no_clock), Notify::Now);
}

#[test]
fn moderated_by_count() {
    let mut n = CqArm::default();
    assert_eq!(n.moderate(3, 50, at(0)), Notify::No);
    assert_eq!(n.moderation(), Some((3, 50)));
    // Completions that the CQ is not armed for do not count.
    assert_eq!(n.added(true, no_clock), Notify::No);
    n.arm(ArmType::Next);
    assert_eq!(n.added(false, || at(1000)), Notify::At(at(51_000)));
    assert_eq!(n.added(false, no_clock), Notify::No);
    assert_eq!(n.added(false, no_clock), Notify::Now);
    assert_eq!(n.expired(at(51_000)), Notify::No);
    // The next completions have a new deadline; the timer of the previous ones fires early for it.
    n.arm(ArmType::Next);
    assert_eq!(n.added(false, || at(40_000)), Notify::At(at(90_000)));
    assert_eq!(n.expired(at(51_000)), Notify::At(at(90_000)));
    assert_eq!(n.expired(at(90_000)), Notify::Now);
    assert_eq!(n.expired(at(90_000)), Notify::No);
    assert!(!n.is_armed());
}

#[test]
fn moderated_and_solicited() {
    let mut n = CqArm::default();
    n.moderate(2, 1, at(0));
    n.arm(ArmType::Solicited);
    for _ in 0..5 {
        assert_eq!(n.added(false, no_clock), Notify::No);
    }
    assert_eq!(n.added(true, || at(0)), Notify::At(at(1000)));
    assert_eq!(n.added(false, no_clock), Notify::No);
    // Armed for all completions while one is delayed: from now on all count.
    n.arm(ArmType::Next);
    assert_eq!(n.added(false, no_clock), Notify::Now);
}

#[test]
fn no_moderation() {
    for (count, period) in [(0, 0), (0, 5), (1, 5), (5, 0), (u16::MAX, 0), (1, u16::MAX)] {
        let mut n = CqArm::default();
        n.moderate(count, period, at(0));
        assert_eq!(n.moderation(), None);
        n.arm(ArmType::Next);
        assert_eq!(n.added(false, no_clock), Notify::Now);
    }
}

#[test]
fn changed_while_delayed() {
    for (count, period) in [(0, 0), (1000, u16::MAX)] {
        let mut n = CqArm::default();
        n.moderate(u16::MAX, u16::MAX, at(0));
        n.arm(ArmType::Next);
        assert_eq!(n.added(false, || at(7)), Notify::At(at(65_535_007)));
        assert_eq!(n.moderate(count, period, at(9)), Notify::At(at(9)));
        assert_eq!(n.expired(at(9)), Notify::Now);
    }
}

#[test]
fn overflow_notifies_at_once() {
    let mut n = CqArm::default();
    n.moderate(9, 9, at(0));
    assert_eq!(n.lost(), Notify::No);
    n.arm(ArmType::Solicited);
    assert_eq!(n.lost(), Notify::Now);
    n.arm(ArmType::Next);
    assert_eq!(n.added(true, || at(0)), Notify::At(at(9000)));
    assert_eq!(n.lost(), Notify::Now);
    assert_eq!(n.expired(Instant::MAX), Notify::No);
}

#[test]
fn deadline_saturates() {
    let mut n = CqArm::default();
    n.moderate(2, 5, at(0));
    n.arm(ArmType::Next);
    assert_eq!(n.added(true, || Instant::MAX - 1), Notify::At(Instant::MAX));
    assert_eq!(n.expired(Instant::MAX), Notify::Now);
}

#[derive(Clone, Debug)]
enum Step {
    Arm(bool),
    Add(bool),
    Moderate(u16, u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<bool>().prop_map(Step::Arm),
        any::<bool>().prop_map(Step::Add),
        (0u16..6, 0u16..40).prop_map(|(count, period)| Step::Moderate(count, period)),
        (0u64..30_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// With a timer that keeps the earliest deadline until it fires, no completion that the CQ is
    /// armed for is notified later than the longest period, and none is notified twice.
    #[test]
    fn every_completion_is_notified(steps in proptest::collection::vec(step(), 1..200)) {
        let mut n = CqArm::default();
        let (mut now, mut timer) = (Instant::ZERO, None::<Instant>);
        // When the oldest completion was added that the CQ is armed for.
        let (mut oldest, mut armed) = (None::<Instant>, None::<ArmType>);
        let mut longest = 0;
        for step in steps {
            let notify = match step {
                Step::Arm(any) => {
                    let arm_type = if any { ArmType::Next } else { ArmType::Solicited };
                    if armed != Some(ArmType::Next) {
                        armed = Some(arm_type);
                    }
                    n.arm(arm_type);
                    Notify::No
                }
                Step::Add(solicited) => {
                    if armed == Some(ArmType::Next) || armed.is_some() && solicited {
                        oldest.get_or_insert(now);
                    }
                    n.added(solicited, || now)
                }
                Step::Moderate(count, period) => {
                    longest = longest.max(u64::from(period) * 1000);
                    n.moderate(count, period, now)
                }
                Step::Wait(time) => {
                    now += time;
                    Notify::No
                }
            };
            let mut notify = notify;
            loop {
                match notify {
                    Notify::No => {}
                    Notify::Now => {
                        prop_assert!(oldest.take().is_some());
                        armed = None;
                    }
                    Notify::At(at) => timer = Some(timer.map_or(at, |set: Instant| set.min(at))),
                }
                match timer {
                    Some(at) if at <= now => {
                        timer = None;
                        notify = n.expired(at.max(now));
                    }
                    _ => break,
                }
            }
            prop_assert_eq!(n.is_armed(), armed.is_some());
            if let Some(since) = oldest {
                prop_assert!(now < since + longest);
                prop_assert!(timer.is_some());
            }
        }
    }
}
