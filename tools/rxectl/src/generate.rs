// SPDX-License-Identifier: GPL-2.0
//! `generate`: manual pages and shell completions, from the definition of the command line. A
//! module of `rxectl` and of `rxe-ci`.

use crate::cli::Cli;
use crate::error::{Error, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

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
        let mut command = Cli::command();
        let name = command.get_name().to_string();
        clap_complete::generate_to(shell, &mut command, name, &completions).map_err(failed)?;
    }
    Ok(())
}
