// SPDX-License-Identifier: GPL-2.0
//! Bounded fuzzing with random bytes, on any compiler. `RXE_FUZZ_SECS` sets the time for each
//! target (default 3); `RXE_FUZZ_SEED` the start. A failure names the seed that repeats it. The
//! targets in `fuzz/` play the same functions under a coverage-guided fuzzer.
#![cfg(feature = "sim")]

use rxe_proto::sim::fuzz;
use std::time::{Duration, Instant};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn run(target: fn(&[u8]), max_len: usize) {
    let end = Instant::now() + Duration::from_secs(env("RXE_FUZZ_SECS", 3));
    let first = env("RXE_FUZZ_SEED", 0);
    let mut seed = first;
    // An interpreter takes seconds for one of them.
    let batch = if cfg!(miri) { 1 } else { 100 };
    while Instant::now() < end {
        for _ in 0..batch {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut data = vec![0; rng.usize(0..max_len)];
            rng.fill(&mut data);
            let result = std::panic::catch_unwind(|| target(&data));
            assert!(result.is_ok(), "RXE_FUZZ_SEED={seed} repeats it");
            seed += 1;
        }
    }
    println!("{} inputs", seed - first);
}

#[test]
fn packets() {
    run(fuzz::packet, 200);
}

#[test]
fn rings() {
    run(fuzz::rings, 400);
}

#[test]
fn histories() {
    run(fuzz::engine, 1500);
}
