// SPDX-License-Identifier: GPL-2.0
//! Adds memory to registered regions and removes it, on devices of `rxe_rs`. The keys of a region
//! do not change.
//!
//! The library works with an unmodified rdma-core: a region is identified by the public fields
//! `handle` and `rkey` of its `ibv_mr`, and by the command file descriptor of its context
//! (`mr->context->cmd_fd`). `uapi/rxe_rs.h` describes the calls.
//!
//! - [`Region`] adds and removes memory. [`Storage`] and [`Segment`] own the memory, so that safe
//!   code cannot free or reuse it while peers have access.
//! - C programs use `include/rxe_rs_verbs.h` with `librxe_rs.so` or `librxe_rs.a`.
//!
//! ```no_run
//! use rxe_rs::{Error, Region, Storage};
//! # use std::os::fd::BorrowedFd;
//! # fn example(cmd_fd: BorrowedFd<'_>, handle: u32, rkey: u32, end: u64) -> Result<(), Error> {
//! // `handle` and `rkey` of an `ibv_mr` whose last byte is before the page at `end`.
//! let region = Region::new(cmd_fd, handle, rkey);
//! let added = region.add(Storage::new(1 << 20)?, end);
//! let (segment, state) = added.map_err(|(error, _storage)| error)?;
//! println!("{} bytes in the region with R_Key {:#x}", state.bytes, state.rkey);
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

/// Handle of the segment that contains the memory with which a region was registered.
pub const FIRST_SEGMENT: u64 = 1;

/// Maximum number of segments of a region.
pub const MAX_SEGMENTS: u32 = 4096;
