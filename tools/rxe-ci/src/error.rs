// SPDX-License-Identifier: GPL-2.0
//! Errors, each with its remedy and the exit status of the program.

use crate::inherited;
use std::fmt;
use std::io;

/// The exit status if rxe-ci itself fails, as of docker and of timeout(1).
pub const FAILED: u8 = 125;
/// The exit status after the time limit of the command, as of timeout(1).
pub const TIMED_OUT: u8 = 124;

/// An error with a remedy for the user.
#[derive(Debug)]
pub struct Error {
    /// What went wrong.
    pub what: String,
    /// What the user can do about it.
    pub fix: String,
    /// The exit status.
    pub status: u8,
    /// What the machine or QEMU printed last, which is shown before the error.
    pub console: String,
}

/// Result with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Writes a line to standard error. If that cannot be written, the exit status has to do.
pub fn complain(what: &dyn fmt::Display) {
    let _ = inherited::write_all(io::stderr().lock(), format!("{what}\n").as_bytes());
}

impl Error {
    /// Creates an error whose status is [`FAILED`].
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fix: fix.into(),
            status: FAILED,
            console: String::new(),
        }
    }

    /// Creates an error with another status.
    pub fn with_status(status: u8, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            status,
            ..Self::new(what, fix)
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.console.is_empty() {
            writeln!(f, "{}", self.console.trim_end())?;
        }
        write!(f, "rxe-ci: {}", self.what)?;
        if !self.fix.is_empty() {
            write!(f, "; {}", self.fix)?;
        }
        Ok(())
    }
}
