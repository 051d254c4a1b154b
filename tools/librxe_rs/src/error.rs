// SPDX-License-Identifier: GPL-2.0
//! Errors of the calls.

use std::fmt;

/// The error of a call that failed and changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error {
    errno: i32,
}

impl Error {
    /// Creates the error for a value of `errno`.
    pub fn from_errno(errno: i32) -> Self {
        Self { errno }
    }

    /// Returns the error of the last system call.
    pub(crate) fn last() -> Self {
        // `last_os_error` always has a value of `errno`; EIO otherwise.
        let errno = std::io::Error::last_os_error().raw_os_error();
        Self::from_errno(errno.unwrap_or(5))
    }

    /// Returns the value of `errno`.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Returns the meaning of the value for the calls of this library, if it has a particular one.
    fn meaning(&self) -> Option<&'static str> {
        Some(match self.errno {
            1 => "RLIMIT_MEMLOCK is 0, and the process lacks CAP_IPC_LOCK",
            2 => "no such region, segment or queue pair, or the key of the region has been released or revoked",
            5 => "the device has been removed",
            9 => "the descriptor of the DMA buffer is not open",
            12 => "out of memory, or RLIMIT_MEMLOCK does not allow to pin as much",
            14 => "the memory is not mapped with the access that the rights of the region require",
            16 => "another call for the region is in progress, or memory windows are bound to it",
            17 => "it overlaps another segment, or the region is already tied to a queue pair",
            22 => "not aligned to pages, empty, wrapping, a range without memory, the key of another region, not a DMA buffer, or not an rxe device",
            28 => "the region has the maximum number of segments",
            93 => "the driver has no such calls: it is not rxe_rs, or an older version",
            95 => "a region with on-demand paging, or a DMA buffer that the CPU cannot access",
            _ => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let system = std::io::Error::from_raw_os_error(self.errno);
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} ({system})"),
            None => system.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno)
    }
}
