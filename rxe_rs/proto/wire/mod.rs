// SPDX-License-Identifier: GPL-2.0
//! Bytes to values and back; knows nothing of queue pairs.

pub mod opcode;
