// SPDX-License-Identifier: GPL-2.0
//! A QP with an arbitrary history.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_proto::sim::fuzz::engine(data));
