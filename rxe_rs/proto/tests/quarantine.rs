// SPDX-License-Identifier: GPL-2.0
//! QP numbers are reused late, but they are reused.
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;

fn at(ns: u64) -> Instant {
    Instant::from_ns(ns)
}

fn empty(ns: u64) -> Quarantine<Vec<u64>> {
    Quarantine::new(vec![0; WORDS], vec![0; WORDS], at(ns))
}

#[test]
fn held_for_the_minimum_time() {
    let mut quarantine = empty(5);
    assert!(!quarantine.contains(at(5), 0x123456));
    quarantine.add(at(10), 0x123456);
    quarantine.add(at(10), 0xff_fffe);
    for after in [0, 1, SECOND, HOLD_NS - 1] {
        assert!(quarantine.contains(at(10 + after), 0x123456));
        assert!(quarantine.contains(at(10 + after), 0xff_fffe));
        assert!(!quarantine.contains(at(10 + after), 0x123457));
    }
    assert!(!quarantine.contains(at(10 + 2 * HOLD_NS), 0x123456));
    assert!(!quarantine.contains(at(10 + 2 * HOLD_NS), 0xff_fffe));
}

#[test]
fn held_without_look_ups() {
    let mut quarantine = empty(0);
    quarantine.add(at(HOLD_NS - 1), 7);
    assert!(quarantine.contains(at(2 * HOLD_NS - 2), 7));
    let mut quarantine = empty(0);
    quarantine.add(at(100 * HOLD_NS), 7);
    assert!(quarantine.contains(at(101 * HOLD_NS - 1), 7));
    assert!(!quarantine.contains(at(102 * HOLD_NS), 7));
}

/// A clock that stops or goes back slightly, as between two CPUs, frees no number early.
#[test]
fn clock_goes_back() {
    let mut quarantine = empty(SECOND);
    quarantine.add(at(SECOND), 9);
    assert!(quarantine.contains(at(0), 9));
}

/// A number in quarantine is used only if no other is drawn, and then nobody is refused one.
#[test]
fn exhausted_quarantine_refuses_nobody() {
    let mut quarantine = empty(0);
    for number in 0..1 << BITS {
        quarantine.add(at(1), number);
    }
    let mut drawn = 0;
    let number: Result<u32, ()> = draw_free(
        || {
            drawn += 1;
            Ok(drawn * 0x1234)
        },
        |number| quarantine.contains(at(2), *number),
    );
    assert_eq!((number, drawn), (Ok(DRAWS * 0x1234), DRAWS));
    for free in 0..DRAWS {
        let mut numbers = 0..DRAWS;
        let number = draw_free(|| numbers.next().ok_or(()), |number| *number < free);
        assert_eq!(number, Ok(free));
    }
    assert_eq!(draw_free(|| Err::<u32, _>("full"), |_| true), Err("full"));
}

proptest! {
    /// Against a model: never free before the hold time, always free after twice the hold time.
    #[test]
    fn agrees_with_a_model(steps in proptest::collection::vec((0u32..64, any::<bool>(), 0..3 * HOLD_NS / 2), 1..60)) {
        let mut quarantine = empty(0);
        let mut gone: HashMap<u32, Instant> = HashMap::new();
        let mut now = at(0);
        for (number, give_back, pause) in steps {
            now += pause;
            // Spread over words.
            let number = number * 1017;
            if give_back {
                quarantine.add(now, number);
                gone.insert(number, now);
            }
            let held = quarantine.contains(now, number);
            match gone.get(&number) {
                Some(at) if now - *at < HOLD_NS => prop_assert!(held),
                Some(at) if now - *at < 2 * HOLD_NS => {}
                _ => prop_assert!(!held),
            }
        }
    }
}
