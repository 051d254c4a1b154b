// SPDX-License-Identifier: GPL-2.0
//! Work queue elements of arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_proto::sim::fuzz::rings(data));
