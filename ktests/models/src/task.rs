// SPDX-License-Identifier: GPL-2.0
//! `kernel::task`.

/// Does nothing: the models have no contexts in which a thread must not sleep.
pub fn might_sleep() {}
