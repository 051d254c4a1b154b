// SPDX-License-Identifier: GPL-2.0
//! `rxe-ci list`: the prepared machines.

use crate::cli::List;
use crate::error::{complain, Error, Result};
use crate::prepared::{self, Kind, Prepared};
use std::io::{self, Write};

/// Prints the machines that `run` finds, and on standard error those that cannot be used.
pub fn run(args: &List) -> Result<()> {
    let places = prepared::places(args.machine.as_deref());
    let (machines, broken): (Vec<_>, Vec<_>) =
        prepared::all(&places).into_iter().partition(Result::is_ok);
    let machines: Vec<Prepared> = machines.into_iter().flatten().collect();
    if machines.is_empty() && !args.json {
        return prepared::find(&places, Kind::Qemu, None).map(|_| ());
    }
    for error in broken.into_iter().filter_map(Result::err) {
        complain(&error);
    }
    let text = if args.json {
        serde_json::to_string_pretty(&machines).map_err(|error| failed(&error.into()))? + "\n"
    } else {
        let rows: Vec<String> = machines
            .iter()
            .map(|m| {
                format!(
                    "{:28}  {:4}  {:8}  {}\n",
                    m.release,
                    m.kind,
                    m.module_version,
                    m.folder.display()
                )
            })
            .collect();
        let head = format!("{:28}  {:4}  {:8}  folder\n", "kernel", "kind", "module");
        [head, rows.concat()].concat()
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(&error)),
        _ => Ok(()),
    }
}

/// The error if the list cannot be printed.
fn failed(error: &io::Error) -> Error {
    Error::new(
        format!("cannot write the list: {error}"),
        "write to a place with room",
    )
}
