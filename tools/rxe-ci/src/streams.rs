// SPDX-License-Identifier: GPL-2.0
//! The streams of a command: its output on its way from the machine to this program's output, and
//! its input on the way to the machine.

use crate::error::Error;
use crate::events::Event;
use std::io::{self, Read, Write};
use std::sync::mpsc::Sender;

/// The end of a stream, which is marked by a token in it.
#[derive(Debug)]
struct UntilToken {
    token: Vec<u8>,
    held: Vec<u8>,
}

impl UntilToken {
    /// Takes data, and returns those that are certainly no part of the token, and whether the
    /// stream has ended.
    fn take(&mut self, data: &[u8]) -> (Vec<u8>, bool) {
        self.held.extend_from_slice(data);
        let longest = self.token.len().min(self.held.len());
        let part = (0..=longest)
            .rev()
            .find(|&length| {
                self.token
                    .get(..length)
                    .is_some_and(|t| self.held.ends_with(t))
            })
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len().saturating_sub(part));
        let ended = rest == self.token;
        (std::mem::replace(&mut self.held, rest), ended)
    }
}

/// Puts a prefix before each line. Incomplete lines are held back, so that lines of several
/// machines do not mix.
#[derive(Debug)]
struct Prefix {
    prefix: String,
    line: Vec<u8>,
}

impl Prefix {
    /// Takes data, and returns the complete lines.
    fn take(&mut self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in data.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                out.extend(self.rest());
            }
        }
        out
    }

    /// Returns the incomplete line, if there is one.
    fn rest(&mut self) -> Vec<u8> {
        if self.line.is_empty() {
            return Vec::new();
        }
        let mut out = self.prefix.clone().into_bytes();
        out.append(&mut self.line);
        out
    }
}

/// Passes a stream on to `write`, which writes all that it is given, until its token, and says so
/// by [`Event::Drained`]. `node`: the machine; `label`: whether its number precedes each line.
pub fn pass_on(
    mut from: impl Read,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
    token: &str,
    node: u8,
    label: bool,
    events: &Sender<Event>,
) {
    let mut end = UntilToken {
        token: token.into(),
        held: Vec::new(),
    };
    let mut prefix = label.then(|| Prefix {
        prefix: format!("[{node}] "),
        line: Vec::new(),
    });
    let mut buffer = vec![0; 65536];
    let result = loop {
        let data = match from.read(&mut buffer) {
            Ok(0) => break Ok(false),
            Ok(count) => buffer.get(..count).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The machine is gone, which its control port tells.
            Err(_) => break Ok(false),
        };
        let (data, ended) = end.take(data);
        let mut data = match &mut prefix {
            Some(prefix) => prefix.take(&data),
            None => data,
        };
        if let (Some(prefix), true) = (&mut prefix, ended) {
            data.extend(prefix.rest());
        }
        match write(&data) {
            Ok(()) if ended => break Ok(true),
            Ok(()) => {}
            Err(error) => break Err(error),
        }
    };
    // There is nobody to tell if rxe-ci is about to end.
    let _ = match result {
        Ok(false) => Ok(()),
        Ok(true) => events.send(Event::Drained(node)),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => events.send(Event::NobodyReads),
        Err(error) => events.send(Event::Failed(Error::new(
            format!("cannot write the output of the command: {error}"),
            "free some space, or write to another place",
        ))),
    };
}

/// Passes the input of a command on, in pieces: the number of bytes and a newline before each, and
/// 0 at the end. An input that cannot be read is no input that has ended.
pub fn feed(mut from: impl Read, mut to: impl Write, events: &Sender<Event>) -> io::Result<()> {
    let mut buffer = vec![0; 65536];
    loop {
        let data = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => buffer.get(..count).unwrap_or_default(),
            Err(error) => {
                // There is nobody to tell if rxe-ci is about to end.
                let _ = events.send(Event::Failed(Error::new(
                    format!("cannot read standard input: {error}"),
                    "take a file or a pipe that can be read, or leave out --stdin",
                )));
                return Ok(());
            }
        };
        writeln!(to, "{}", data.len())?;
        to.write_all(data)?;
    }
    writeln!(to, "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A reader that returns one piece for each call.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn passed(pieces: Vec<&'static [u8]>, label: bool) -> (String, Vec<Event>) {
        let (sender, receiver) = channel();
        let mut out = Vec::new();
        let write = |data: &[u8]| out.write_all(data);
        pass_on(Pieces(pieces), write, "abac", 2, label, &sender);
        drop(sender);
        (String::from_utf8(out).unwrap(), receiver.iter().collect())
    }

    #[test]
    fn the_token_is_not_part_of_the_output() {
        for pieces in [
            vec![b"one\nabac".as_slice()],
            vec![b"one\na", b"b", b"ac"],
            vec![b"one", b"\n", b"abac"],
        ] {
            let (text, events) = passed(pieces, false);
            assert_eq!(text, "one\n");
            assert!(matches!(events[..], [Event::Drained(2)]), "{events:?}");
        }
    }

    #[test]
    fn what_resembles_the_token_is_output() {
        let (text, events) = passed(vec![b"ab", b"ab", b"a", b"bac"], false);
        assert_eq!(text, "abab");
        assert_eq!(events.len(), 1);
        let (text, events) = passed(vec![b"abacus", b"aba"], false);
        assert_eq!(text, "abacus");
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn lines_have_prefixes() {
        let (text, _) = passed(vec![b"one\ntw", b"o\n\nthree", b"abac"], true);
        assert_eq!(text, "[2] one\n[2] two\n[2] \n[2] three");
    }

    #[test]
    fn output_is_passed_on_as_it_comes() {
        let mut end = UntilToken {
            token: b"abac".to_vec(),
            held: Vec::new(),
        };
        assert_eq!(end.take(b"prompt> "), (b"prompt> ".to_vec(), false));
        assert_eq!(end.take(b"xab"), (b"x".to_vec(), false));
        assert_eq!(end.take(b"y"), (b"aby".to_vec(), false));
    }

    #[test]
    fn input_is_in_pieces() {
        let (sender, _receiver) = channel();
        let mut out = Vec::new();
        feed(Pieces(vec![b"one\n", b"two three"]), &mut out, &sender).unwrap();
        assert_eq!(out, b"4\none\n9\ntwo three0\n");
    }

    #[test]
    fn input_that_cannot_be_read_does_not_end() {
        let (sender, receiver) = channel();
        let mut out = Vec::new();
        let folder = std::fs::File::open("/").unwrap();
        feed(folder, &mut out, &sender).unwrap();
        assert!(out.is_empty());
        let Ok(Event::Failed(error)) = receiver.recv() else {
            panic!("no error");
        };
        assert!(error.to_string().contains("Is a directory"), "{error}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let (sender, receiver) = channel();
        let mut full = std::fs::File::create("/dev/full").unwrap();
        let write = |data: &[u8]| full.write_all(data);
        pass_on(Pieces(vec![b"text"]), write, "abac", 1, false, &sender);
        let Ok(Event::Failed(error)) = receiver.recv() else {
            panic!("no error");
        };
        assert!(error.to_string().contains("No space left"), "{error}");
    }
}
