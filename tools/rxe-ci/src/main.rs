// SPDX-License-Identifier: GPL-2.0
//! `rxe-ci`: runs a command in virtual machines that have an RDMA device of `rxe_rs`.
//!
//! [`cli`] is the command line; [`run`], [`list`] and [`generate`] are its commands. Below them:
//! [`prepared`] (the folders that machines boot from), [`qemu`] and [`uml`] (the arguments of QEMU
//! and of User Mode Linux), [`ethernet`] (the network of the latter), [`accel`] (whether KVM
//! works), [`node`] (a running machine), [`streams`] (what its command reads and prints),
//! [`inherited`] (the standard streams of this program) and [`events`] (what `run` waits for).
//! `guest/` has the programs inside of the machines.
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

mod accel;
mod cli;
mod error;
mod ethernet;
mod events;
#[path = "../../rxectl/src/generate.rs"]
mod generate;
mod inherited;
mod list;
mod node;
mod prepared;
mod qemu;
mod run;
mod streams;
mod uml;

use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // There is nothing else to say if standard error is closed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { error::FAILED } else { 0 });
        }
    };
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args).map(|()| 0),
        Command::Generate(args) => generate::run(&args.folder).map(|()| 0),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            error::complain(&error);
            ExitCode::from(error.status)
        }
    }
}
