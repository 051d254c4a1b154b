// SPDX-License-Identifier: GPL-2.0
//! What went wrong, and what the reader of the message can do about it.

use std::fmt;
use std::io;

/// An error for people: a sentence, and a way out of it.
#[derive(Debug)]
pub struct Error {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: String,
    /// The reader of standard output has gone; nobody is left to tell.
    pub nobody_reads: bool,
}

/// Result of nearly everything here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with its remedy.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            fix: fix.into(),
            nobody_reads: false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n  fix: {}", self.what, self.fix)
    }
}

/// Only writing to standard output uses `?` on an [`io::Error`].
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
