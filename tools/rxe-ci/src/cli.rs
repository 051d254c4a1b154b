// SPDX-License-Identifier: GPL-2.0
//! The command line. The manual pages and shell completions are generated from these comments.

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Runs a command in virtual machines that have an RDMA device (RoCE v2 in software, rxe_rs), so
/// that RDMA programs can be tested where there is no RDMA hardware.
#[derive(Debug, Parser)]
#[command(name = "rxe-ci", version, disable_help_subcommand = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot machines, run a command in them and return its exit status.
    Run(Run),
    /// List the prepared machines: kernel, version of the module, folder.
    List(List),
    /// Write the manual pages and shell completions.
    #[command(hide = true)]
    Generate(Generate),
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command runs as root in Debian 13 with rdma-core, in the current folder, which the machines \
share with this host. Each machine has the active RDMA device rxe0 on the network device eth0. \
These variables describe them:

  RXE_CI_NODE, RXE_CI_NODES           number of this machine, from 1; number of machines
  RXE_CI_DEVICE, RXE_CI_NETDEV        rxe0, eth0
  RXE_CI_IPV4, RXE_CI_IPV6            addresses of this machine
  RXE_CI_IPV4_N, RXE_CI_IPV6_N        addresses of machine N, which is also called nodeN
  RXE_CI_GID_IPV4, RXE_CI_GID_IPV6    indexes of the GIDs of these addresses

In the machines `on N COMMAND...` runs a command in machine N and returns its exit status.

Exit status: that of the command, 128 and the number of the signal that killed it, 127 if it does \
not exist, 126 if it cannot be executed; 124 after the time limit; 125 if rxe-ci fails, with the \
reason on standard error; 128 and the number of the signal that ends rxe-ci (130, 143). With --each \
it is that of the first machine whose command fails.

Prepared machines are searched in --machine; without it in $RXE_CI_MACHINE; without both in \
./out/ci, ~/.cache/rxe-ci ($XDG_CACHE_HOME/rxe-ci if that is set) and /usr/share/rxe-ci. Each is \
a folder of a machine, or has such folders. $RXE_CI_QEMU names the program that is used as qemu-system-x86_64.")]
pub struct Run {
    /// The kernel: a series (7.3) or a release (uname -r). Default: the newest of the first folder
    /// that has machines.
    #[arg(long, value_name = "SERIES")]
    pub kernel: Option<String>,

    /// Number of machines, 1 to 8, which one Ethernet joins.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub nodes: u8,

    /// Run the command in each machine, instead of the first one. Each line of output begins with
    /// the number of its machine.
    #[arg(long)]
    pub each: bool,

    /// Set an environment variable for the command; without a value, that of this host. May be
    /// repeated.
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,

    /// End the command after this number of seconds, with status 124. The default is no limit.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: Option<u64>,

    /// Time limit of a boot. Machines that are not ready then, that end before, or whose init has
    /// not started after half of it are started again, at most twice; the third boot has all of
    /// the time.
    #[arg(long, value_name = "S", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub boot_timeout: u64,

    /// Memory of each machine.
    #[arg(long, value_name = "MiB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(512..=1_048_576))]
    pub memory: u32,

    /// Processors of each machine. Default: 2, or 1 for several emulated machines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub cpus: Option<u8>,

    /// What runs the machines: QEMU with KVM, QEMU by emulation, or User Mode Linux. auto takes KVM
    /// if a machine boots with it, User Mode Linux if there is a machine for it, else emulation.
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub accel: Accel,

    /// The folder of a prepared machine, or of several.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub machine: Option<PathBuf>,

    /// Pass standard input to the command.
    #[arg(long, short = 'i', conflicts_with = "each")]
    pub stdin: bool,

    /// Write the consoles of the machines to DIR/console-N.log.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub log: Option<PathBuf>,

    /// Say on standard error what is booted, and how long it takes.
    #[arg(long, short)]
    pub verbose: bool,

    /// The command and its arguments.
    #[arg(value_name = "COMMAND", required = true, last = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl Run {
    /// Whether the command runs in the machine of that number.
    pub fn runs_in(&self, node: u8) -> bool {
        self.each || node == 1
    }
}

/// The value of an environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The folder `rxe-ci` in the user's folder for caches (XDG Base Directory Specification, which has
/// relative paths ignored). `None` if the user has no home.
pub fn cache() -> Option<PathBuf> {
    let own = variable("XDG_CACHE_HOME").map(PathBuf::from);
    own.filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|caches| caches.join("rxe-ci"))
}

/// How machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// KVM if it works, else User Mode Linux if there is a machine for it, else emulation.
    Auto,
    /// KVM.
    Kvm,
    /// Emulation.
    Tcg,
    /// User Mode Linux.
    Uml,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct List {
    /// The folder of a prepared machine, or of several.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub machine: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// Folder in which man/ and completions/ are written.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_is_the_command() {
        let cli =
            Cli::try_parse_from(["rxe-ci", "run", "--nodes", "2", "--", "sh", "--each", "--"]);
        let Command::Run(run) = cli.unwrap().command else {
            panic!("another command");
        };
        assert_eq!(run.command, ["sh", "--each", "--"]);
        assert!(!run.each);
        assert_eq!((run.nodes, run.accel, run.timeout), (2, Accel::Auto, None));
    }

    #[test]
    fn bad_arguments_are_refused() {
        let bad: [&[&str]; 8] = [
            &["--"],
            &["ls"],
            &["--nodes", "0", "--", "ls"],
            &["--nodes", "9", "--", "ls"],
            &["--timeout", "0", "--", "ls"],
            &["--memory", "511", "--", "ls"],
            &["--accel", "hvf", "--", "ls"],
            &["--each", "--stdin", "--", "ls"],
        ];
        for arguments in bad {
            let all = ["rxe-ci", "run"].iter().chain(arguments);
            assert!(Cli::try_parse_from(all).is_err(), "{arguments:?}");
        }
    }
}
