// SPDX-License-Identifier: GPL-2.0
//! What tests with random connections choose.

use crate::ids::Mtu;

/// All path MTUs.
pub const MTUS: [Mtu; 5] = [
    Mtu::Mtu256,
    Mtu::Mtu512,
    Mtu::Mtu1024,
    Mtu::Mtu2048,
    Mtu::Mtu4096,
];

/// One of several values.
pub fn one_of<T: Copy>(rng: &mut fastrand::Rng, all: &[T]) -> T {
    all[rng.usize(0..all.len())]
}

/// A rate up to `max` in one of three cases, else 0.
pub fn rate(rng: &mut fastrand::Rng, max: f64) -> f64 {
    match rng.u8(0..3) {
        0 => rng.f64() * max,
        _ => 0.0,
    }
}
