// SPDX-License-Identifier: GPL-2.0
//! `rxectl explain`: what a completion status, a counter, an error of a call, an asynchronous event
//! or an event of the RDMA CM means with this driver, its likely causes, and what to look at.
//!
//! The texts are in a table for each of the [`GROUPS`]. `tests/explain.rs` compares these with the
//! sources of the driver: each counter, status, event type and error must have an explanation.

mod cm_events;
mod counters;
mod drops;
mod errors;
mod events;
mod statuses;

use crate::cli::Explain;
use crate::error::{Error, Result};
use crate::output::Out;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use serde_json::{json, Map, Value};
use std::ffi::OsStr;

/// A command, and what it shows.
type Look = (&'static str, &'static str);

/// The explanation of a name.
struct Entry {
    /// The name, as in the header file or in `hw_counters`.
    name: &'static str,
    /// Its number, if it has one.
    number: Option<u32>,
    /// What libraries and the kernel print for it, and other names.
    also: &'static [&'static str],
    /// The driver, or the RDMA core for it, reports it.
    reported: bool,
    /// What happened. The first sentence stands alone in the list of all names.
    what: &'static str,
    /// Likely causes, the more likely first.
    causes: &'static [&'static str],
    /// What to look at.
    look: &'static [Look],
}

/// A table of entries.
struct Group {
    /// Its key in JSON.
    key: &'static str,
    /// The word that a name may be preceded by, as in `status:12`.
    prefix: &'static str,
    /// Its heading.
    title: &'static str,
    /// What one of its entries is called.
    kind: &'static str,
    entries: &'static [Entry],
}

/// All groups.
const GROUPS: &[Group] = &[
    Group {
        key: "statuses",
        prefix: "status",
        title: "completion statuses",
        kind: "completion status",
        entries: statuses::ENTRIES,
    },
    Group {
        key: "counters",
        prefix: "counter",
        title: "counters of traffic and protocol events",
        kind: "counter",
        entries: counters::ENTRIES,
    },
    Group {
        key: "drops",
        prefix: "drop",
        title: "counters of dropped packets",
        kind: "counter of dropped packets",
        entries: drops::ENTRIES,
    },
    Group {
        key: "errors",
        prefix: "errno",
        title: "errors of calls",
        kind: "error of calls",
        entries: errors::ENTRIES,
    },
    Group {
        key: "events",
        prefix: "event",
        title: "asynchronous events",
        kind: "asynchronous event",
        entries: events::ENTRIES,
    },
    Group {
        key: "cm_events",
        prefix: "cm",
        title: "events of the RDMA CM",
        kind: "event of the RDMA CM",
        entries: cm_events::ENTRIES,
    },
];

/// The cause of what this driver never reports.
const OTHER_DRIVER: &str = "The device belongs to another driver.";

/// Which driver a device has.
const WHO: Look = ("rxectl status DEV", "The driver of the device.");

/// What both hosts must agree on.
const STATUS_OF_BOTH: Look = (
    "rxectl status DEV",
    "On both hosts: the active MTU, the GIDs and the P_Keys.",
);

/// The state of queue pairs.
const QUEUE_PAIRS: Look = (
    "rxectl qp DEV",
    "The state of each queue pair, its retries left, packets in flight and round-trip time.",
);

/// A counter, with its rate.
const RATE: Look = (
    "rxectl counters DEV --watch 1",
    "Whether it grows now, and with which other counters.",
);

/// The limits of the device.
const LIMITS: Look = (
    "ibv_devinfo -v -d DEV",
    "The limits of the device (max_...), and the active MTU of the port.",
);

/// The way to an address.
const ROUTE: Look = (
    "ip route get ADDRESS",
    "The network device of the route to an address. It must have a link.",
);

/// The links of all namespaces that the caller sees.
const LINKS: Look = (
    "rdma link show",
    "The links of this network namespace, and their network devices.",
);

/// Whether addresses are resolved to MAC addresses.
const NEIGHBOURS: Look = (
    "ip neighbour show dev NETDEV",
    "FAILED: the address has not been resolved.",
);

/// Whether there is a way to the peer.
const PING: Look = ("ping PEER", "Whether the peer can be reached.");

/// The identifiers of the RDMA CM.
const CM_IDS: Look = (
    "rdma resource show cm_id",
    "The identifiers of the RDMA CM: their states, addresses, ports and processes.",
);

/// A check of the host.
const DOCTOR: Look = (
    "rxectl doctor",
    "What is wrong with this host, with a remedy for each finding.",
);

/// The P_Key table.
const PKEYS: Look = (
    "rxectl pkey list DEV",
    "The P_Keys, and whether they are those of full members. Compare both hosts.",
);

/// Why calls are refused.
const REASONS: Look = (
    "echo 'module rxe_rs +p' >/sys/kernel/debug/dynamic_debug/control",
    "Repeat the call, then dmesg: the driver names the operation that failed and the reason.",
);

/// A record of the packets.
const CAPTURE: Look = (
    "tcpdump -i NETDEV -w FILE.pcap udp port 4791",
    "Records the packets of the network device.",
);

/// Shows the record.
const DECODE: Look = (
    "rxectl decode FILE.pcap",
    "A line for each packet: addresses, opcode, queue pair, PSN, and whether the ICRC is right.",
);

/// Columns of the text.
const WIDTH: usize = 80;

/// How many near names an error proposes.
const PROPOSALS: usize = 5;

/// Parser of a name. It accepts any text, and lists the names for the shell completions.
#[derive(Clone)]
pub struct NameParser;

impl TypedValueParser for NameParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = GROUPS.iter().flat_map(|group| group.entries);
        Some(Box::new(names.map(|entry| PossibleValue::new(entry.name))))
    }
}

/// Returns the form in which names are compared: `IBV_WC_RETRY_EXC_ERR`, `ib_wc_retry_exc_err` and
/// `Retry Exc Err` are the same.
fn normalized(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let joined = words.join("_");
    let prefixes = [
        "ibv_wc_",
        "ib_wc_",
        "ibv_event_",
        "ib_event_",
        "rdma_cm_event_",
    ];
    let mut bare = prefixes.iter();
    let bare = bare.find_map(|prefix| joined.strip_prefix(prefix));
    bare.unwrap_or(&joined).to_string()
}

/// Returns the number of characters to insert, delete or replace to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    // The distances between the characters of `a` so far and each beginning of `b`.
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (before, x) in a.chars().enumerate() {
        let mut corner = before;
        let mut left = before.saturating_add(1);
        let mut cells = row.iter_mut();
        if let Some(first) = cells.next() {
            *first = left;
        }
        for (cell, y) in cells.zip(b.chars()) {
            let replaced = corner.saturating_add(usize::from(x != y));
            corner = *cell;
            left = replaced
                .min(corner.saturating_add(1))
                .min(left.saturating_add(1));
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

impl Entry {
    /// Returns all forms of the name.
    fn forms(&self) -> impl Iterator<Item = String> {
        let names = std::iter::once(self.name).chain(self.also.iter().copied());
        names.map(normalized)
    }

    /// Returns the first sentence of what happened.
    fn summary(&self) -> &'static str {
        let end = self.what.find(". ").map(|at| at.saturating_add(1));
        end.and_then(|end| self.what.get(..end))
            .unwrap_or(self.what)
    }

    /// Returns how far `name` is from the entry, if it is near: whether it is no part of a form,
    /// and the distance.
    fn nearness(&self, name: &str) -> Option<(bool, usize)> {
        let near = |form: String| {
            let part = name.len() >= 3 && (form.contains(name) || name.contains(&form));
            let distance = distance(name, &form);
            let typo = distance <= (name.len() / 3).max(1);
            (part || typo).then_some((!part, distance))
        };
        self.forms().filter_map(near).min()
    }

    fn as_json(&self, group: &Group) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("name".into(), json!(self.name));
        object.insert("kind".into(), json!(group.prefix));
        object.insert("number".into(), json!(self.number));
        object.insert("also".into(), json!(self.also));
        object.insert("reported".into(), json!(self.reported));
        object
    }
}

type Found = (&'static Group, &'static Entry);

/// Finds the entry of a name, a text or a number, with or without the prefix of a group.
fn find(wanted: &str) -> Result<Found> {
    let (groups, name): (Vec<&'static Group>, &str) = match wanted.split_once(':') {
        Some((prefix, rest)) if GROUPS.iter().any(|group| group.prefix == prefix) => {
            let groups = GROUPS.iter().filter(|group| group.prefix == prefix);
            (groups.collect(), rest.trim())
        }
        _ => (GROUPS.iter().collect(), wanted.trim()),
    };
    let entries = || {
        let groups = groups.iter().copied();
        groups.flat_map(|group| group.entries.iter().map(move |entry| (group, entry)))
    };
    let candidates: Vec<Found> = match name.parse::<i64>() {
        // The kernel and its traces print errors as negative numbers.
        Ok(number) => entries()
            .filter(|(group, entry)| {
                entry.number.map(i64::from) == Some(number.saturating_abs())
                    && (number >= 0 || group.prefix == "errno")
            })
            .collect(),
        Err(_) => {
            let name = normalized(name);
            entries()
                .filter(|(_, entry)| entry.forms().any(|form| form == name))
                .collect()
        }
    };
    match candidates.as_slice() {
        [found] => Ok(*found),
        [] => Err(unknown(wanted, &normalized(name), entries())),
        several => {
            let each = several
                .iter()
                .map(|(group, entry)| format!("{}:{name} ({})", group.prefix, entry.name));
            Err(Error::new(
                format!("{wanted} has several meanings"),
                format!("use one of: {}", each.collect::<Vec<_>>().join(", ")),
            ))
        }
    }
}

/// Returns the error for a name that has no entry, with those that are near.
fn unknown(wanted: &str, name: &str, entries: impl Iterator<Item = Found>) -> Error {
    const ALL: &str = "see all names: rxectl explain";
    let mut near: Vec<_> = entries
        .filter_map(|(_, entry)| Some((entry.nearness(name)?, entry.name)))
        .collect();
    near.sort();
    let names: Vec<&str> = near.iter().take(PROPOSALS).map(|(_, name)| *name).collect();
    Error::new(
        format!("no status, counter, error or event is called {wanted}"),
        match names.as_slice() {
            [] => ALL.into(),
            _ => format!("perhaps {}; {ALL}", names.join(", ")),
        },
    )
}

/// Returns `text` as lines of at most `WIDTH` columns, of which each begins with `indent` blanks
/// and the first one with `mark` in their place.
fn wrapped(text: &str, mark: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut line = format!("{mark:indent$}");
    let mut empty = true;
    for word in text.split_whitespace() {
        let blank = usize::from(!empty);
        let length = line.len().saturating_add(blank).saturating_add(word.len());
        if !empty && length > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(indent);
        } else if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push_str(&line);
    lines
}

/// Prints what is known of one entry.
fn print(group: &Group, entry: &Entry, out: &mut Out<'_>) -> Result<()> {
    write!(out.to, "{}: {}", entry.name, group.kind)?;
    if let Some(number) = entry.number {
        write!(out.to, " {number}")?;
    }
    for text in entry.also {
        write!(out.to, ", \"{text}\"")?;
    }
    writeln!(out.to, "\n")?;
    writeln!(out.to, "What happened")?;
    writeln!(out.to, "{}", wrapped(entry.what, "", 2))?;
    writeln!(out.to, "\nLikely causes")?;
    for cause in entry.causes {
        writeln!(out.to, "{}", wrapped(cause, "  -", 4))?;
    }
    writeln!(out.to, "\nWhat to look at")?;
    for (command, shows) in entry.look {
        writeln!(out.to, "  {command}")?;
        writeln!(out.to, "{}", wrapped(shows, "", 6))?;
    }
    Ok(())
}

/// Prints all names.
fn list(out: &mut Out<'_>) -> Result<()> {
    if out.json {
        let mut all = Map::new();
        for group in GROUPS {
            let entries = group.entries.iter().map(|entry| {
                let mut object = entry.as_json(group);
                object.insert("summary".into(), json!(entry.summary()));
                Value::Object(object)
            });
            all.insert(group.key.into(), Value::Array(entries.collect()));
        }
        return out.document(&all);
    }
    for group in GROUPS {
        writeln!(out.to, "{}", group.title)?;
        for entry in group.entries {
            writeln!(out.to, "  {:<30} {}", entry.name, entry.summary())?;
        }
        writeln!(out.to)?;
    }
    writeln!(out.to, "rxectl explain NAME says more.")?;
    Ok(())
}

/// Explains a name, or lists all.
pub fn run(args: &Explain, out: &mut Out<'_>) -> Result<()> {
    if args.name.is_empty() {
        return list(out);
    }
    let (group, entry) = find(&args.name.join(" "))?;
    if !out.json {
        return print(group, entry, out);
    }
    let mut object = entry.as_json(group);
    object.insert("what".into(), json!(entry.what));
    object.insert("causes".into(), json!(entry.causes));
    let look = entry.look.iter();
    let look: Vec<Value> = look
        .map(|(command, shows)| json!({ "command": command, "shows": shows }))
        .collect();
    object.insert("look".into(), Value::Array(look));
    out.document(&object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use std::collections::BTreeMap;

    fn entries() -> impl Iterator<Item = Found> {
        GROUPS
            .iter()
            .flat_map(|group| group.entries.iter().map(move |entry| (group, entry)))
    }

    #[test]
    fn names_of_all_kinds() {
        for name in [
            "IBV_WC_RETRY_EXC_ERR",
            "ib_wc_retry_exc_err",
            "RETRY_EXC_ERR",
            "transport retry counter exceeded",
            "status:12",
            "status:retry_exc_err",
        ] {
            assert_eq!(find(name).unwrap().1.name, "IBV_WC_RETRY_EXC_ERR", "{name}");
        }
        for name in [
            "ENOMEM",
            "enomem",
            "errno:12",
            "-12",
            "Cannot allocate memory",
        ] {
            assert_eq!(find(name).unwrap().1.name, "ENOMEM", "{name}");
        }
        for (name, found) in [
            ("rx_bad_icrc", "rx_bad_icrc"),
            ("bad_pkey_cntr", "rx_bad_pkey"),
            ("drop:rx_no_qp", "rx_no_qp"),
            ("counter:sent_pkts", "sent_pkts"),
            ("IBV_EVENT_CQ_ERR", "IBV_EVENT_CQ_ERR"),
            ("event:0", "IBV_EVENT_CQ_ERR"),
            ("WR flushed", "IBV_WC_WR_FLUSH_ERR"),
            ("RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_REJECTED"),
            ("addr_error", "RDMA_CM_EVENT_ADDR_ERROR"),
            ("cm:10", "RDMA_CM_EVENT_DISCONNECTED"),
            ("timewait exit", "RDMA_CM_EVENT_TIMEWAIT_EXIT"),
        ] {
            assert_eq!(find(name).unwrap().1.name, found, "{name}");
        }
    }

    #[test]
    fn numbers_that_mean_several_things() {
        let error = find("12").err().unwrap();
        for part in [
            "status:12 (IBV_WC_RETRY_EXC_ERR)",
            "errno:12 (ENOMEM)",
            "event:12 (IBV_EVENT_PKEY_CHANGE)",
        ] {
            assert!(error.fix.contains(part), "{error}");
        }
        assert_eq!(find("110").unwrap().1.name, "ETIMEDOUT");
        assert!(find("status:99").is_err());
        assert!(find("-1000").is_err());
    }

    #[test]
    fn unknown_names_and_their_neighbours() {
        for (name, near) in [
            ("rx_bad_irc", "rx_bad_icrc"),
            ("retry", "IBV_WC_RETRY_EXC_ERR"),
            ("EINVALL", "EINVAL"),
            ("IBV_WC_REM_ACESS_ERR", "IBV_WC_REM_ACCESS_ERR"),
            ("status:rem_access", "IBV_WC_REM_ACCESS_ERR"),
        ] {
            let error = find(name).err().unwrap();
            assert!(error.what.contains(name), "{error}");
            assert!(error.fix.contains(near), "{error}");
        }
        let error = find("xyzzy").err().unwrap();
        assert_eq!(error.fix, "see all names: rxectl explain");
        assert!(find("").is_err());
    }

    #[test]
    fn distances() {
        for (a, b, between) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 2),
        ] {
            assert_eq!(distance(a, b), between, "{a} {b}");
        }
    }

    #[test]
    fn lines_fit_the_width() {
        let text = wrapped(&"word ".repeat(60), "  -", 4);
        assert!(text.starts_with("  - word"));
        assert!(text.lines().all(|line| line.len() <= WIDTH));
        assert!(text
            .lines()
            .skip(1)
            .all(|line| line.starts_with("    word")));
        assert_eq!(wrapped("one", "", 2), "  one");
        let long = "x".repeat(100);
        assert_eq!(wrapped(&long, "", 2), format!("  {long}"));
    }

    #[test]
    fn a_name_leads_to_one_entry() {
        let mut owners = BTreeMap::new();
        for (_, entry) in entries() {
            for form in entry.forms() {
                let other = owners.insert(form.clone(), entry.name);
                let own = other.is_none_or(|other| other == entry.name);
                assert!(own, "{form}: {other:?} and {}", entry.name);
            }
        }
    }

    #[test]
    fn numbers_ascend() {
        for group in GROUPS {
            let numbers: Vec<Option<u32>> = group.entries.iter().map(|e| e.number).collect();
            if numbers.iter().all(Option::is_none) {
                continue;
            }
            assert!(numbers.iter().all(Option::is_some), "{}", group.key);
            assert!(numbers.is_sorted_by(|a, b| a < b), "{}", group.key);
        }
    }

    #[test]
    fn texts_are_complete() {
        for (_, entry) in entries() {
            let name = entry.name;
            assert!(!entry.causes.is_empty() && !entry.look.is_empty(), "{name}");
            assert!(entry.summary().len() <= 100, "{name}: {}", entry.summary());
            assert_eq!(
                !entry.reported,
                entry.what.contains("This driver "),
                "{name}"
            );
            let shown = entry.look.iter().map(|(_, shows)| shows);
            for text in [&entry.what].into_iter().chain(entry.causes).chain(shown) {
                assert!(text.is_ascii() && !text.contains("  "), "{name}: {text}");
                let ends = text.ends_with('.') || text.ends_with(".)");
                assert!(ends, "{name}: not a sentence: {text}");
            }
        }
    }

    /// A command of this program that a text names exists, with these arguments.
    #[test]
    fn commands_exist() {
        let mut count = 0;
        for (_, entry) in entries() {
            for (line, _) in entry.look {
                for command in line.split(';').map(str::trim) {
                    if command.starts_with("rxectl ") {
                        let parsed = Cli::command().try_get_matches_from(command.split(' '));
                        assert!(parsed.is_ok(), "{}: {command}", entry.name);
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 100, "{count}");
    }

    /// Each name of a status, an event or a counter in a text has an entry of its own, so that a
    /// renamed counter is noticed.
    #[test]
    fn names_in_texts_exist() {
        let known = |word: &str| entries().any(|(_, e)| e.name == word || e.also.contains(&word));
        let drops = |word: &str| word.starts_with("rx_") || word.ends_with("_err");
        let mut count = 0;
        for (_, entry) in entries() {
            let shown = entry.look.iter().map(|(_, shows)| shows);
            for text in [&entry.what].into_iter().chain(entry.causes).chain(shown) {
                for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                    let mut prefixes = ["IBV_WC_", "IBV_EVENT_", "RDMA_CM_EVENT_"].into_iter();
                    let named = prefixes.any(|prefix| word.starts_with(prefix));
                    if named || drops(word) {
                        assert!(known(word), "{}: {word}", entry.name);
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 50, "{count}");
    }
}
