// SPDX-License-Identifier: GPL-2.0
//! Memory that comes and goes behind the keys of a registered region, on devices of `rxe_rs`.
//!
//! It needs no changed rdma-core: a region is named by what every `ibv_mr` shows, its handle and
//! its R_Key, and by the command file descriptor of its context (`mr->context->cmd_fd`). What the
//! calls mean is in `uapi/rxe_rs.h`.
//!
//! - [`Region`]: adds and removes memory; [`Storage`] and [`Segment`] make that safe.
//! - The same for C: `include/rxe_rs_verbs.h`, `librxe_rs.so`, `librxe_rs.a`.
//!
//! ```no_run
//! use rxe_rs::{Error, Region, Storage};
//! # use std::os::fd::BorrowedFd;
//! # fn example(cmd_fd: BorrowedFd<'_>, handle: u32, rkey: u32, end: u64) -> Result<(), Error> {
//! // `handle` and `rkey` of an `ibv_mr` whose last byte is before the page at `end`.
//! let region = Region::new(cmd_fd, handle, rkey);
//! let added = region.add(Storage::new(1 << 20)?, end);
//! let (segment, state) = added.map_err(|(error, _storage)| error)?;
//! println!("{} bytes behind key {:#x}", state.bytes, state.rkey);
//! let mut greeting = [0; 5];
//! segment.read(0, &mut greeting);
//! let (_storage, _state) = region.remove(segment).map_err(|(error, _)| error)?;
//! # Ok(())
//! # }
//! ```

mod error;
mod ffi;
mod region;
mod storage;
mod sys;

pub use error::Error;
pub use region::{Region, State};
pub use storage::{Segment, Storage};

/// Handle of the segment that a region is registered with.
pub const FIRST_SEGMENT: u64 = 1;

/// Most segments of a region.
pub const MAX_SEGMENTS: u32 = 4096;
