// SPDX-License-Identifier: GPL-2.0
//! Models of the lock-free code of `rxe_kapi`: the driver's own files, not copies of them, on a
//! `kernel` crate whose atomics are loom's. A test explores the executions of its threads that the
//! C11 memory model allows, within the bounds of [`explore`]. The kernel's memory model is
//! stronger: it also orders by dependencies and by full barriers. A property that holds here holds
//! there.
//!
//! The files are included by path ([`lockfree`], [`mem`]). The kernel interfaces that they use are
//! here, in modules of the same names. Data that two threads must not access at once is a
//! [`track::Tracked`], or lies in a [`mem::SharedBuf`]: loom fails a test in which two accesses are
//! not ordered, and a test in which an atomic is accessed after it was freed.
//!
//! Without the feature `loom` the primitives are those of `std`, memory is really freed, and each
//! test runs several times on real threads: so Miri and the sanitizers can check it.

extern crate self as kernel;

pub mod alloc;
mod backend;
pub mod bindings;
pub mod error;
pub mod lockfree;
pub mod mem;
pub mod prelude;
pub mod rand;
pub mod sync;
pub mod task;
pub mod time;
pub mod track;
pub mod types;

pub use backend::{explore, pause, spawn, Counter};

/// `pin_init!` of the kernel crate, for structures without pinned fields.
#[macro_export]
macro_rules! pin_init {
    (Self { $pinned:ident <- $place:expr, $($field:ident: $value:expr),* $(,)? }) => {
        Self { $pinned: $place, $($field: $value),* }
    };
    ($name:ident { $pinned:ident <- $place:expr, $($field:ident: $value:expr),* $(,)? }) => {
        $name { $pinned: $place, $($field: $value),* }
    };
}
