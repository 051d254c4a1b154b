// SPDX-License-Identifier: GPL-2.0
//! The command line. The manual pages and shell completions are generated from these comments.

use crate::explain::NameParser;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::path::PathBuf;

/// Shows, checks and configures rxe_rs devices (RoCE v2 in software); decodes RoCE v2 captures.
#[derive(Debug, Parser)]
#[command(name = "rxectl", version, disable_help_subcommand = true)]
#[command(
    after_help = "Status: 0 fine; 1 doctor or decode --check found something wrong; 2 the command could \
                  not be carried out, standard error says why and what to do; 141 nobody reads the \
                  output to its end."
)]
pub struct Cli {
    /// Print JSON: one document, or one per line for continuous output (--watch, decode).
    #[arg(long, global = true)]
    pub json: bool,

    /// Use /sys, /proc, /dev and /usr below this folder (for tests).
    #[arg(long, global = true, hide = true, default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show devices: driver, network device and namespace, state, MTU, GIDs, P_Keys, violations.
    Status(Device),
    /// Show or edit the P_Key table of a device.
    #[command(subcommand)]
    Pkey(Pkey),
    /// Show the counters of a device: traffic, protocol events, reasons of dropped packets. Devices
    /// that show none are reported on standard error; exit status 2 if there is no other.
    Counters(Counters),
    /// List queue pairs: state, PSNs, window, retries left, round-trip time. Needs iproute2.
    Qp(Device),
    /// List memory regions; keys are shown to root only. Needs iproute2.
    Mr(Device),
    /// List completion queues. Needs iproute2.
    Cq(Device),
    /// List protection domains; keys are shown to root only. Needs iproute2.
    Pd(Device),
    /// Look for what keeps RDMA from working and say how to fix it. Exit status 1 if something is
    /// wrong.
    Doctor(Doctor),
    /// Print the RoCE v2 packets of a capture, one per line, with the result of the ICRC check.
    Decode(Decode),
    /// Explain a completion status, a counter, an error of a call, an asynchronous event or an
    /// event of the RDMA CM: what happened, likely causes, what to look at.
    Explain(Explain),
    /// Write the manual pages and shell completions.
    #[command(hide = true)]
    Generate(Generate),
}

/// Arguments that select a device.
#[derive(Debug, Args)]
pub struct Device {
    /// Name of the RDMA device, such as rxe0; all rxe devices without it.
    #[arg(value_name = "DEV")]
    pub device: Option<String>,
}

/// Subcommands of `pkey`.
#[derive(Debug, Subcommand)]
pub enum Pkey {
    /// Show the entries in use.
    List {
        /// Name of the RDMA device.
        #[arg(value_name = "DEV")]
        device: String,
    },
    /// Store a P_Key in the first free entry.
    Add {
        /// Name of the RDMA device.
        #[arg(value_name = "DEV")]
        device: String,
        #[command(flatten)]
        key: Key,
    },
    /// Store a P_Key in an entry, replacing its current one.
    Set {
        /// Name of the RDMA device.
        #[arg(value_name = "DEV")]
        device: String,
        /// Entry of the table, 0 to 127.
        #[arg(value_name = "INDEX")]
        index: u16,
        #[command(flatten)]
        key: Key,
    },
    /// Clear an entry.
    Del {
        /// Name of the RDMA device.
        #[arg(value_name = "DEV")]
        device: String,
        /// Entry of the table, 0 to 127.
        #[arg(value_name = "INDEX", required_unless_present = "key")]
        index: Option<u16>,
        /// Clear the entry that holds this P_Key; all 16 bits, the membership too, are compared.
        #[arg(long, value_name = "KEY", conflicts_with = "index", value_parser = number16)]
        key: Option<u16>,
    },
}

/// A P_Key on the command line.
#[derive(Debug, Args)]
pub struct Key {
    /// The P_Key, decimal or hexadecimal (0x8001); the most significant bit selects full membership
    /// unless an option does.
    #[arg(value_name = "KEY", value_parser = number16)]
    pub key: u16,
    /// Full member: may communicate with every member of the partition.
    #[arg(long)]
    pub full: bool,
    /// Limited member: may communicate with full members only.
    #[arg(long, conflicts_with = "full")]
    pub limited: bool,
}

/// Arguments of `counters`.
#[derive(Debug, Args)]
pub struct Counters {
    /// Name of the RDMA device, such as rxe0; all rxe devices without it.
    #[arg(value_name = "DEV")]
    pub device: Option<String>,
    /// Show the rate per second of every counter, repeatedly at this interval in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub watch: Option<f64>,
    /// Stop after this number of intervals of --watch.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Also show counters that are zero.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Also check this module file: which kernel it was built for.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub module: Option<PathBuf>,
}

/// Arguments of `decode`.
#[derive(Debug, Args)]
pub struct Decode {
    /// A pcap or pcapng file; - reads standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Exit status 1 if a packet is malformed or its ICRC is wrong. Packets that stay in one kernel
    /// have none, so that one without an ICRC is no fault; with --wire it is.
    #[arg(long)]
    pub check: bool,
    /// The capture is of a wire, on which every packet has an ICRC: one without it is a fault for
    /// --check.
    #[arg(long, requires = "check")]
    pub wire: bool,
    /// Print the summary only.
    #[arg(long)]
    pub summary: bool,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// What to explain; all names are listed without it. A status (IBV_WC_RETRY_EXC_ERR, its text
    /// "transport retry counter exceeded", or status:12), a counter (rx_bad_icrc), an error
    /// (EINVAL, "Invalid argument", or errno:22), an event (IBV_EVENT_CQ_ERR, or event:0) or an
    /// event of the RDMA CM (RDMA_CM_EVENT_REJECTED, or cm:8).
    #[arg(
        value_name = "NAME",
        num_args = 0..,
        value_parser = NameParser,
        hide_possible_values = true,
        allow_negative_numbers = true
    )]
    pub name: Vec<String>,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// Folder in which man/ and completions/ are written.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

/// Parses a 16-bit number, decimal or hexadecimal.
fn number16(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = digits.map_or((text, 10), |digits| (digits, 16));
    // The standard library takes a sign before the digits.
    let value = match digits.starts_with('+') {
        true => None,
        false => u16::from_str_radix(digits, radix).ok(),
    };
    value.ok_or_else(|| "give a number from 1 to 65535, such as 32769 or 0x8001".into())
}

/// Parses an interval in seconds, between 50 ms and a day.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.05..=86400.0).contains(&value) => Ok(value),
        _ => Err("give seconds from 0.05 to 86400".into()),
    }
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
    fn numbers() {
        assert_eq!(number16("0x8001"), Ok(0x8001));
        assert_eq!(number16("0XFFFF"), Ok(0xffff));
        assert_eq!(number16("17"), Ok(17));
        for bad in [
            "", "0x", "0x+5", "+5", "65536", "0x10000", "-1", "8001h", " 1",
        ] {
            assert!(number16(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
