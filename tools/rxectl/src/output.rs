// SPDX-License-Identifier: GPL-2.0
//! Standard output: text or JSON.

use crate::error::Result;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

/// The destination of results.
pub struct Out<'w> {
    /// Print JSON.
    pub json: bool,
    /// The stream that they are written to.
    pub to: &'w mut dyn Write,
}

impl Out<'_> {
    /// Writes an indented JSON document.
    pub fn document<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        serde_json::to_writer_pretty(&mut *self.to, value)?;
        writeln!(self.to)?;
        Ok(())
    }

    /// Writes a JSON document on one line.
    pub fn line<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        serde_json::to_writer(&mut *self.to, value)?;
        writeln!(self.to)?;
        Ok(())
    }

    /// Writes a table with columns as wide as their longest cell. The first row is the heading. A
    /// row stays on its line, whatever the names in it have: a process chooses its own.
    pub fn table(&mut self, rows: &[Vec<String>]) -> Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{:width$}", cell.replace('\n', "?")))
                .collect();
            writeln!(self.to, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Returns true for a character that a terminal may obey, other than the end of a line: control
/// characters (U+0000 to U+001F and U+007F to U+009F), and those with which a name changes the
/// order in which the text around it is shown (the property `Bidi_Control` of Unicode).
fn is_obeyed(c: char) -> bool {
    let reorders = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    reorders || c.is_control() && c != '\n'
}

/// Returns the text with question marks in place of the characters that a terminal may obey: names
/// of processes and of network devices can have any.
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(is_obeyed) {
        true => text.replace(is_obeyed, "?").into(),
        false => text.into(),
    }
}

/// Returns JSON with the characters escaped that a terminal may obey. They occur in its strings
/// only, and of them `serde_json` escapes the first 32.
pub fn escaped(json: &str) -> Cow<'_, str> {
    if !json.contains(is_obeyed) {
        return json.into();
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_obeyed(c) {
            // All of them are below U+10000.
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text.into()
}

/// Text or JSON on its way to standard output, without characters that a terminal may obey.
pub struct Filter<W> {
    to: W,
    json: bool,
}

impl<W: Write> Write for Filter<W> {
    /// Takes complete characters, as `write!` and `serde_json` pass them on.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(json) if self.json => self.to.write_all(escaped(json).as_bytes())?,
            Ok(text) => self.to.write_all(printable(text).as_bytes())?,
            Err(_) => self.to.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Returns buffered standard output for text or for JSON.
pub fn stdout(json: bool) -> impl Write {
    Filter {
        to: BufWriter::new(io::stdout()),
        json,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_on_their_lines() {
        let mut written = Vec::new();
        let mut out = Out {
            json: false,
            to: &mut written,
        };
        let rows = [["PID", "COMM"], ["7", "a\nrxe0"], ["8", "b"]];
        out.table(&rows.map(|row| row.map(String::from).to_vec()))
            .unwrap();
        assert_eq!(written, b"PID  COMM\n7    a?rxe0\n8    b\n");
    }

    #[test]
    fn terminals_get_no_commands() {
        let written = |json: bool, write: &dyn Fn(&mut Out<'_>)| {
            let mut to = Vec::new();
            let mut filter = Filter { to: &mut to, json };
            let mut out = Out {
                json,
                to: &mut filter,
            };
            write(&mut out);
            String::from_utf8(to).unwrap()
        };
        let name = "a\x1b[2J\tb\x07\n\u{9b}\u{7f}\u{202e}\u{2069}\u{61c}é";
        let text = written(false, &|out| write!(out.to, "{name}").unwrap());
        assert_eq!(text, "a?[2J?b?\n?????é");
        for one_line in [false, true] {
            let json = written(true, &|out| {
                let done = match one_line {
                    true => out.line(&[name]),
                    false => out.document(&[name]),
                };
                done.unwrap();
            });
            assert!(
                json.contains(r#""a\u001b[2J\tb\u0007\n\u009b\u007f\u202e\u2069\u061cé""#),
                "{json}"
            );
            let value: [String; 1] = serde_json::from_str(&json).unwrap();
            assert_eq!(value, [name]);
        }
    }
}
