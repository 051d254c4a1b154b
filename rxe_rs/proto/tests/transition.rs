// SPDX-License-Identifier: GPL-2.0
//! The transition table against the independently written one that the tests on a live device use.
use super::*;
use std::collections::HashMap;

const TABLE: &str = include_str!("../../../ktests/vm/transitions.txt");

const STATES: [(&str, State); 7] = [
    ("RESET", State::Reset),
    ("INIT", State::Init),
    ("RTR", State::Rtr),
    ("RTS", State::Rts),
    ("SQD", State::Sqd),
    ("SQE", State::Sqe),
    ("ERR", State::Err),
];

const SERVICES: [(&str, Service); 5] = [
    ("RC", Service::Rc),
    ("UC", Service::Uc),
    ("UD", Service::Ud),
    ("GSI", Service::Gsi),
    ("RAW", Service::Raw),
];

/// The bits of `enum ibv_qp_attr_mask`, from bit 0; bit 19 is the capacities.
const NAMES: [&str; 21] = [
    "STATE",
    "CUR_STATE",
    "EN_SQD_ASYNC_NOTIFY",
    "ACCESS_FLAGS",
    "PKEY_INDEX",
    "PORT",
    "QKEY",
    "AV",
    "PATH_MTU",
    "TIMEOUT",
    "RETRY_CNT",
    "RNR_RETRY",
    "RQ_PSN",
    "MAX_QP_RD_ATOMIC",
    "ALT_PATH",
    "MIN_RNR_TIMER",
    "SQ_PSN",
    "MAX_DEST_RD_ATOMIC",
    "PATH_MIG_STATE",
    "CAP",
    "DEST_QPN",
];

fn mask<'a>(names: impl Iterator<Item = &'a str>) -> u32 {
    names
        .map(|name| 1 << NAMES.iter().position(|n| *n == name).expect(name))
        .sum()
}

/// Required and optional attributes of each allowed transition.
fn table() -> HashMap<(&'static str, &'static str, &'static str), (u32, u32)> {
    let mut rows = HashMap::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let (head, optional) = line.split_once('|').expect("a bar");
        let mut words = head.split_whitespace();
        let mut word = || words.next().expect("three names");
        let key = (word(), word(), word());
        rows.insert(key, (mask(words), mask(optional.split_whitespace())));
    }
    for (service, _) in SERVICES {
        for (state, _) in STATES {
            rows.insert((service, state, "RESET"), (0, 0));
            if state != "RESET" {
                rows.insert((service, state, "ERR"), (0, 0));
            }
        }
    }
    rows
}

/// Every service, state, next state and set of attributes.
#[test]
#[cfg_attr(miri, ignore = "millions of checks")]
fn every_change() {
    let table = table();
    assert_eq!(table.len(), 5 * 9 + 5 * 13);
    for (service_name, service) in SERVICES {
        for (from_name, from) in STATES {
            for (to_name, to) in STATES {
                let Some(&(required, optional)) = table.get(&(service_name, from_name, to_name))
                else {
                    for bit in 0..21 {
                        let refused = check(service, from, to, 1 << bit);
                        assert_eq!(refused, Err(TransitionError::NoTransition));
                    }
                    continue;
                };
                // All sets of the attributes that have to do with it, and each of those with each
                // other attribute.
                let known = required | optional | STATE;
                let mut set = 0u32;
                loop {
                    let missing = required & !set;
                    let expected = match missing {
                        0 => Ok(()),
                        _ => Err(TransitionError::Missing(missing)),
                    };
                    let what = format!("{service_name} {from_name} {to_name} {set:#x}");
                    assert_eq!(check(service, from, to, set), expected, "{what}");
                    for foreign in (0..32).map(|bit| 1 << bit).filter(|bit| known & bit == 0) {
                        let expected = match missing {
                            0 => Err(TransitionError::NotAllowed(foreign)),
                            _ => Err(TransitionError::Missing(missing)),
                        };
                        assert_eq!(
                            check(service, from, to, set | foreign),
                            expected,
                            "{what}, {foreign:#x}"
                        );
                    }
                    set = set.wrapping_sub(known) & known;
                    if set == 0 {
                        break;
                    }
                }
            }
        }
    }
}
