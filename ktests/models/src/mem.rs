// SPDX-License-Identifier: GPL-2.0
//! The shipped files of `rxe_rs/kapi/mem`, and replacements for the rest of that folder.

#[path = "../../../rxe_rs/kapi/mem/occupancy.rs"]
mod occupancy;
#[path = "../../../rxe_rs/kapi/mem/ring.rs"]
pub mod ring;
mod shared;

use shared::copy;
pub use shared::SharedBuf;
