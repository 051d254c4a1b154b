// SPDX-License-Identifier: GPL-2.0
//! Timer codes to nanoseconds and back.

/// Delay of each RNR NAK timer code, in units of 10 microseconds.
const RNR_UNITS: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

const UNIT_NS: u64 = 10_000;

/// Nanoseconds that the requester waits after an RNR NAK with timer code `code`, of which the
/// low five bits are used: 10 us to 655.36 ms (IBTA 9.7.5.2.8).
#[inline]
pub fn rnr_timer_ns(code: u8) -> u64 {
    RNR_UNITS
        .get(usize::from(code & 0x1f))
        .copied()
        .unwrap_or(1)
        .saturating_mul(UNIT_NS)
}

/// The timer code of the shortest delay that is at least `ns` nanoseconds, or of the longest.
pub fn rnr_timer_code(ns: u64) -> u8 {
    (1..32u8)
        .find(|code| rnr_timer_ns(*code) >= ns)
        .unwrap_or(0)
}

/// Nanoseconds of the acknowledgement timeout `exponent`, of which the low five bits are used:
/// 4.096 us * 2^exponent; `None` for 0, which disables the timer (IBTA 9.7.6.1.3).
#[inline]
pub fn ack_timeout_ns(exponent: u8) -> Option<u64> {
    match exponent & 0x1f {
        0 => None,
        exponent => Some(4096 << exponent),
    }
}
