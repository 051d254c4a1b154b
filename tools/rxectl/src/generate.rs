// SPDX-License-Identifier: GPL-2.0
//! `generate`: manual pages and shell completions, from the definition of the command line. A
//! module of `rxectl` and of `rxe-ci`.

use crate::cli::Cli;
use crate::error::{Error, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Returns a command without its hidden options and subcommands, which the completions of bash and
/// zsh would offer. A [`Command`] has no way to remove them, so this makes another with what
/// completions consist of.
fn visible(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_string())
        .disable_help_subcommand(command.is_disable_help_subcommand_set())
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()))
        .subcommands(
            command
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
                .map(visible),
        );
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_string());
    }
    shown
}

/// Writes `man/*.1` and `completions/*` in `folder`.
pub fn run(folder: &Path) -> Result<()> {
    let failed = |error| {
        Error::new(
            format!("cannot write below {}: {error}", folder.display()),
            "name a folder that you may write to",
        )
    };
    let man = folder.join("man");
    fs::create_dir_all(&man).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &man).map_err(failed)?;
    let completions = folder.join("completions");
    fs::create_dir_all(&completions).map_err(failed)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = visible(&Cli::command());
        let name = command.get_name().to_string();
        clap_complete::generate_to(shell, &mut command, name, &completions).map_err(failed)?;
    }
    Ok(())
}
