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

/// Returns the text with question marks in place of control characters, except the ends of lines:
/// names of processes and of network devices can have any, which a terminal would obey.
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n';
    match text.contains(obeyed) {
        true => text.replace(obeyed, "?").into(),
        false => text.into(),
    }
}

/// Text on its way to standard output.
pub struct Text<W>(W);

impl<W: Write> Write for Text<W> {
    /// Takes complete characters, as `write!` passes them on.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.0.write_all(printable(text).as_bytes())?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns buffered standard output for text, or for JSON, in which control characters are escaped.
pub fn stdout(json: bool) -> Box<dyn Write> {
    let buffered = BufWriter::new(io::stdout());
    match json {
        true => Box::new(buffered),
        false => Box::new(Text(buffered)),
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
        let mut out = Vec::new();
        let name = "a\x1b[2J\tb\x07\n\u{9b}é";
        write!(Text(&mut out), "{name}").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a?[2J?b?\n?é");
    }
}
