// SPDX-License-Identifier: GPL-2.0
//! Why a call is refused.

use std::fmt;

/// A refused call; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error {
    errno: i32,
}

impl Error {
    /// From a value of `errno`.
    pub fn from_errno(errno: i32) -> Self {
        Self { errno }
    }

    pub(crate) fn last() -> Self {
        // The system always gives a number for a failed call.
        let errno = std::io::Error::last_os_error().raw_os_error();
        Self::from_errno(errno.unwrap_or(5))
    }

    /// The value of `errno`.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// What it means for these calls.
    fn meaning(&self) -> Option<&'static str> {
        Some(match self.errno {
            2 => "no such region or segment, or the region's key has been released",
            5 => "the device is gone",
            12 => "no memory, or more than RLIMIT_MEMLOCK allows to pin",
            14 => "the memory is not mapped as the region's rights need it",
            16 => "another call for the region is under way, or memory windows are bound to it",
            17 => "it overlaps another segment",
            22 => "not of whole pages or whole segments, empty, wrapping, another region's key, or no rxe device",
            28 => "the region has as many segments as there may be",
            93 => "the driver has no such calls: it is not rxe_rs, or an older one",
            95 => "not a region of user memory",
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
