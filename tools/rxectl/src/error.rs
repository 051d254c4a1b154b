// SPDX-License-Identifier: GPL-2.0
//! Errors, each with its remedy.

use crate::output::{escaped, printable};
use std::fmt;
use std::io::{self, Write};

/// An error with a remedy for the user.
#[derive(Debug)]
pub struct Error {
    /// What went wrong.
    pub what: String,
    /// What the user can do about it.
    pub fix: String,
    /// The reader of standard output has closed the pipe, so no error is printed.
    pub nobody_reads: bool,
}

/// Result with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fix: fix.into(),
            nobody_reads: false,
        }
    }

    /// Prints the error on standard error. If that cannot be written, the exit status has to do.
    pub fn report(&self, json: bool) {
        let mut to = io::stderr();
        let _ = if json {
            let value = serde_json::json!({ "error": self.what, "fix": self.fix });
            writeln!(to, "{}", escaped(&value.to_string()))
        } else {
            writeln!(to, "{}", printable(&self.to_string()))
        };
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n  fix: {}", self.what, self.fix)
    }
}

/// Only errors of writing to standard output are converted with `?`.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self {
            what: format!("cannot write the output: {error}"),
            fix: "write to a place with room, or to a terminal".into(),
            nobody_reads: error.kind() == io::ErrorKind::BrokenPipe,
        }
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        io::Error::from(error).into()
    }
}
