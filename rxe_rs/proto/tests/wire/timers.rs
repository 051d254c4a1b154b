// SPDX-License-Identifier: GPL-2.0
//! Timer and credit codes against the tables of the architecture.
use crate::wire::aeth::credit_count;
use crate::wire::rnr::*;

#[test]
fn rnr_timers() {
    // In milliseconds, as `enum ib_rnr_timeout` names them.
    const MS: [f64; 32] = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
        1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88,
        163.84, 245.76, 327.68, 491.52,
    ];
    for (code, ms) in MS.into_iter().enumerate() {
        let code = code as u8;
        assert_eq!(rnr_timer_ns(code), (ms * 1e6).round() as u64);
        assert_eq!(rnr_timer_ns(code | 0xe0), rnr_timer_ns(code));
        assert_eq!(rnr_timer_code(rnr_timer_ns(code)), code);
    }
    assert_eq!(rnr_timer_code(0), 1);
    assert_eq!(rnr_timer_code(50_000), 5);
    assert_eq!(rnr_timer_code(u64::MAX), 0);
}

#[test]
fn ack_timeouts() {
    assert_eq!(ack_timeout_ns(0), None);
    assert_eq!(ack_timeout_ns(1), Some(8192));
    assert_eq!(ack_timeout_ns(14), Some(67_108_864));
    assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
    assert_eq!(ack_timeout_ns(32), None);
}

#[test]
fn credits() {
    assert_eq!(credit_count(31), None);
    assert_eq!(credit_count(255), None);
    let mut last = None;
    for code in 0..31 {
        let count = credit_count(code);
        assert!(count > last);
        last = count;
    }
    assert_eq!(last, Some(32768));
}
