// SPDX-License-Identifier: GPL-2.0
//! Standard output: text or JSON.

use crate::error::Result;
use serde::Serialize;
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

    /// Writes a table with columns as wide as their longest cell. The first row is the heading.
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
                .map(|(cell, &width)| format!("{cell:width$}"))
                .collect();
            writeln!(self.to, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Returns buffered standard output.
pub fn stdout() -> BufWriter<io::Stdout> {
    BufWriter::new(io::stdout())
}
