// SPDX-License-Identifier: GPL-2.0
//! `rxectl`: shows, checks and configures devices of `rxe_rs`, and decodes captures.
//!
//! [`cli`] is the command line; each command has a module of its own: [`status`], [`pkey`],
//! [`counters`], [`resources`], [`doctor`], [`decode`], [`explain`], [`generate`]. Below them:
//! [`device`] (what sysfs says about a device), [`capture`] and [`frame`] (files and packets down
//! to UDP), [`host`] (files and tools of the machine), [`shell`] (names in remedies) and
//! [`output`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// Tests may panic: that is how they fail.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

mod capture;
mod cli;
mod counters;
mod decode;
mod device;
mod doctor;
mod error;
mod explain;
mod frame;
mod generate;
mod host;
mod output;
mod pkey;
mod resources;
mod shell;
mod status;

use clap::error::ErrorKind;
use clap::Parser;
use cli::{Cli, Command};
use error::{Error, Result};
use host::Host;
use output::Out;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit status if the reader of standard output has closed the pipe, as of a program that
/// SIGPIPE has ended.
const NOBODY_READS: u8 = 141;

/// Runs a command; false if `doctor` or `decode --check` found a fault.
fn run(cli: &Cli, out: &mut Out<'_>) -> Result<bool> {
    let host = Host::new(&cli.root);
    match &cli.command {
        Command::Status(args) => status::run(&host, args.device.as_deref(), out)?,
        Command::Pkey(args) => pkey::run(&host, args, out)?,
        Command::Counters(args) => counters::run(&host, args, out)?,
        Command::Qp(args) => resources::run(&host, "qp", args.device.as_deref(), out)?,
        Command::Mr(args) => resources::run(&host, "mr", args.device.as_deref(), out)?,
        Command::Cq(args) => resources::run(&host, "cq", args.device.as_deref(), out)?,
        Command::Pd(args) => resources::run(&host, "pd", args.device.as_deref(), out)?,
        Command::Doctor(args) => return doctor::run(&host, args, out),
        Command::Decode(args) => return decode::run(args, out),
        Command::Explain(args) => explain::run(args, out)?,
        Command::Generate(args) => generate::run(&args.folder)?,
    }
    Ok(true)
}

/// What is wrong with the command line, on one line.
fn what_is_wrong(error: &clap::Error) -> String {
    // The text of this error is the help.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "the command is incomplete".into();
    }
    let text = error.to_string();
    // Behind the first blank line come hints and the usage.
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").trim_start_matches("error: ").into()
}

/// Parses the command line; prints an error as JSON if that was asked for.
fn command_line() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            // The help or the version.
            error.exit()
        }
        if std::env::args_os().any(|argument| argument == "--json") {
            Error::new(what_is_wrong(&error), "see the commands: rxectl --help").report(true);
        } else {
            // It quotes arguments. If it cannot be written, the exit status has to do.
            let _ = write!(
                io::stderr(),
                "{}",
                output::printable(&error.render().to_string())
            );
        }
        std::process::exit(2)
    })
}

fn main() -> ExitCode {
    let cli = command_line();
    let mut stdout = output::stdout(cli.json);
    let mut out = Out {
        json: cli.json,
        to: &mut stdout,
    };
    let result = run(&cli, &mut out).and_then(|fine| {
        out.to.flush()?;
        Ok(fine)
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // The verdict may be unknown, and success would be a wrong one.
        Err(error) if error.nobody_reads => ExitCode::from(NOBODY_READS),
        Err(error) => {
            // Output so far must precede the error message; an error of the flush is ignored.
            let _ = out.to.flush();
            error.report(cli.json);
            ExitCode::from(2)
        }
    }
}
