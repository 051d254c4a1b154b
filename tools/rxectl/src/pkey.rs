// SPDX-License-Identifier: GPL-2.0
//! `rxectl pkey`: the P_Key table of a device, read and edited through the driver's attribute
//! `pkey_table`.
//!
//! Reading it returns a line `INDEX 0xKEY` for each entry in use; writing `INDEX KEY` sets an
//! entry, and the key 0 clears it; writing `add KEY` sets the first free entry.

use crate::cli::{Key, Pkey};
use crate::device::{Device, Driver, PkeyEntry};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::output::Out;
use crate::shell;
use serde::Serialize;
use std::io;

/// The membership bit of a P_Key: set for a full member.
const FULL: u16 = 0x8000;
/// Values of `errno` that writing the attribute returns.
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

/// An entry as shown to the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PkeyRow {
    /// Index in the table.
    pub index: u16,
    /// The key in hexadecimal.
    pub pkey: String,
    /// `full` or `limited`.
    pub membership: &'static str,
}

impl From<PkeyEntry> for PkeyRow {
    fn from(entry: PkeyEntry) -> Self {
        Self {
            index: entry.index,
            pkey: format!("{:#06x}", entry.pkey),
            membership: if entry.pkey & FULL != 0 {
                "full"
            } else {
                "limited"
            },
        }
    }
}

/// Result of a change.
#[derive(Debug, Serialize)]
struct Change<'a> {
    device: &'a str,
    /// `None` if another process has changed the entry since.
    index: Option<u16>,
    /// The new key; `None` if the entry was cleared.
    pkey: Option<String>,
    /// The previous key.
    was: Option<String>,
}

/// Parses the text of the attribute; invalid lines are skipped.
fn parse_table(text: &str) -> Vec<PkeyEntry> {
    let entry = |line: &str| {
        let (index, key) = line.split_once(' ')?;
        Some(PkeyEntry {
            index: index.parse().ok()?,
            pkey: u16::from_str_radix(key.trim().strip_prefix("0x")?, 16).ok()?,
        })
    };
    text.lines().filter_map(entry).collect()
}

/// Returns the key with the requested membership.
fn value_of(key: &Key) -> Result<u16> {
    if key.key & !FULL == 0 {
        return Err(Error::new(
            format!(
                "{:#06x} is no partition: its lower 15 bits are zero",
                key.key
            ),
            "give a key from 0x0001 to 0x7fff (limited member) or 0x8001 to 0xffff (full member); \
             rxectl pkey del empties an entry",
        ));
    }
    Ok(if key.full {
        key.key | FULL
    } else if key.limited {
        key.key & !FULL
    } else {
        key.key
    })
}

/// Reads the P_Key table of a device.
fn table(host: &Host, device: &Device) -> Result<Vec<PkeyEntry>> {
    match host.read(&device.attribute("pkey_table")) {
        Some(text) => Ok(parse_table(&text)),
        None => Err(Error::new(
            format!("the P_Key table of {} cannot be edited", device.name),
            if device.driver == Driver::RxeRs {
                "run it as root in the namespace that the device belongs to, such as nsenter -t 1 -m -n rxectl …; \
                 if it is there, load a newer rxe_rs"
            } else {
                "use a device of rxe_rs: no other driver offers that"
            },
        )),
    }
}

/// Returns the entry that holds `key`. The membership is part of the key: a port may be a full and
/// a limited member of a partition at once.
fn holding(entries: &[PkeyEntry], key: u16) -> Option<PkeyEntry> {
    entries.iter().find(|entry| entry.pkey == key).copied()
}

fn exists_already(device: &Device, entry: PkeyEntry) -> Error {
    let (name, index) = (&device.name, entry.index);
    let word = shell::word(name);
    Error::new(
        format!(
            "entry {index} of {name} holds {:#06x} already",
            entry.pkey
        ),
        format!("change that one: rxectl pkey set {word} {index} KEY; or empty it first: rxectl pkey del {word} {index}"),
    )
}

/// Returns the error of a write to the P_Key table, with a remedy.
fn explain(device: &Device, index: u16, key: u16, capacity: usize, error: &io::Error) -> Error {
    let name = &device.name;
    let word = shell::word(name);
    let last = capacity.saturating_sub(1);
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Error::new(
            format!("editing the P_Key table of {name} is not permitted"),
            "run it as root (it takes CAP_NET_ADMIN): sudo rxectl pkey …",
        );
    }
    if error.kind() == io::ErrorKind::NotFound {
        return Error::new(
            format!("the device {name} has been removed"),
            "look for it: rxectl status",
        );
    }
    match error.raw_os_error() {
        Some(EBUSY) => Error::new(
            format!("entry {index} is the last valid one of {name}, and a port keeps at least one"),
            format!("set it to another key: rxectl pkey set {word} {index} KEY; or add that one first: rxectl pkey add {word} KEY"),
        ),
        Some(EEXIST) => Error::new(
            format!("another entry of {name} holds {key:#06x} already"),
            format!("find it and change it: rxectl pkey list {word}"),
        ),
        Some(EINVAL) => Error::new(
            format!("{name} refuses the key {key:#06x} at index {index}"),
            format!("use an index from 0 to {last} and a key whose lower 15 bits are not zero"),
        ),
        Some(ENOSPC) => Error::new(
            format!("all {capacity} entries of {name} are in use"),
            format!("empty one: rxectl pkey del {word} INDEX"),
        ),
        Some(EROFS) => Error::new(
            format!("the P_Key table of {name} cannot be edited, because /sys is read-only here, as in a container"),
            "edit it as root of the host, with the PID of a process in the container: nsenter -t PID -n unshare -m \
             sh -c 'mount -t sysfs sysfs /sys && rxectl pkey …'",
        ),
        _ => Error::new(
            format!("{name} refuses the change: {error}"),
            "look into the kernel log: dmesg | tail",
        ),
    }
}

fn write(host: &Host, device: &Device, index: u16, key: u16, out: &mut Out<'_>) -> Result<()> {
    let capacity = device.pkey_capacity(host);
    let before = table(host, device)?;
    if usize::from(index) >= capacity {
        return Err(explain(
            device,
            index,
            key,
            capacity,
            &io::Error::from_raw_os_error(EINVAL),
        ));
    }
    if let Some(entry) = holding(&before, key).filter(|entry| entry.index != index) {
        return Err(exists_already(device, entry));
    }
    host.write(
        &device.attribute("pkey_table"),
        &format!("{index} {key:#06x}\n"),
    )
    .map_err(|error| explain(device, index, key, capacity, &error))?;
    let was = before.iter().find(|entry| entry.index == index);
    let change = Change {
        device: &device.name,
        index: Some(index),
        pkey: (key != 0).then(|| format!("{key:#06x}")),
        was: was.map(|entry| format!("{:#06x}", entry.pkey)),
    };
    report(&change, out)
}

/// Returns the error of an addition. The key is valid, so a driver that refuses it does not know
/// additions: the module that is loaded may be older than this program.
fn explain_addition(
    device: &Device,
    entries: &[PkeyEntry],
    key: u16,
    capacity: usize,
    error: &io::Error,
) -> Error {
    let used = |index: usize| {
        entries
            .iter()
            .any(|entry| usize::from(entry.index) == index)
    };
    let free = (0..capacity).find(|index| !used(*index));
    match (error.raw_os_error(), free) {
        (Some(EINVAL), Some(free)) => Error::new(
            format!(
                "the rxe_rs that is loaded is older than rxectl, and cannot choose an entry of {}",
                device.name
            ),
            format!(
                "choose it: rxectl pkey set {} {free} {key:#06x}; or load the newer module: delete the links, \
                 modprobe -r rxe_rs, make them again",
                shell::word(&device.name)
            ),
        ),
        (Some(EINVAL), None) => explain(
            device,
            0,
            key,
            capacity,
            &io::Error::from_raw_os_error(ENOSPC),
        ),
        _ => explain(device, 0, key, capacity, error),
    }
}

/// Adds a key. The driver chooses the entry, because another process may add one at the same time.
fn add(host: &Host, device: &Device, key: u16, out: &mut Out<'_>) -> Result<()> {
    let before = table(host, device)?;
    if let Some(entry) = holding(&before, key) {
        return Err(exists_already(device, entry));
    }
    host.write(
        &device.attribute("pkey_table"),
        &format!("add {key:#06x}\n"),
    )
    .map_err(|error| explain_addition(device, &before, key, device.pkey_capacity(host), &error))?;
    let entries = table(host, device)?;
    let change = Change {
        device: &device.name,
        index: holding(&entries, key).map(|entry| entry.index),
        pkey: Some(format!("{key:#06x}")),
        was: None,
    };
    report(&change, out)
}

fn report(change: &Change<'_>, out: &mut Out<'_>) -> Result<()> {
    if out.json {
        return out.document(change);
    }
    let text = |key: &Option<String>| key.clone().unwrap_or_else(|| "empty".into());
    let (name, key) = (change.device, text(&change.pkey));
    match change.index {
        Some(index) => writeln!(
            out.to,
            "{name}: entry {index} is {key}, was {}",
            text(&change.was)
        )?,
        None => writeln!(
            out.to,
            "{name}: {key} was added, and has been removed since"
        )?,
    }
    Ok(())
}

fn list(host: &Host, device: &Device, out: &mut Out<'_>) -> Result<()> {
    let entries = match host.read(&device.attribute("pkey_table")) {
        Some(text) => parse_table(&text),
        None => device.pkeys(host),
    };
    let rows: Vec<PkeyRow> = entries.into_iter().map(PkeyRow::from).collect();
    if out.json {
        return out.document(&serde_json::json!({
            "device": device.name,
            "entries": device.pkey_capacity(host),
            "pkeys": rows,
        }));
    }
    let mut lines = vec![vec!["INDEX".into(), "KEY".into(), "MEMBERSHIP".into()]];
    lines.extend(
        rows.into_iter()
            .map(|row| vec![row.index.to_string(), row.pkey, row.membership.into()]),
    );
    out.table(&lines)
}

/// Runs a `pkey` command.
pub fn run(host: &Host, command: &Pkey, out: &mut Out<'_>) -> Result<()> {
    match command {
        Pkey::List { device } => list(host, &Device::find(host, device)?, out),
        Pkey::Add { device, key } => {
            let device = Device::find(host, device)?;
            add(host, &device, value_of(key)?, out)
        }
        Pkey::Set { device, index, key } => {
            let device = Device::find(host, device)?;
            write(host, &device, *index, value_of(key)?, out)
        }
        Pkey::Del { device, index, key } => {
            let device = Device::find(host, device)?;
            let entries = table(host, &device)?;
            let entry = match (index, key) {
                (Some(index), _) => entries.iter().find(|entry| entry.index == *index).copied(),
                (None, Some(key)) => holding(&entries, *key),
                (None, None) => None,
            };
            let Some(entry) = entry else {
                return Err(Error::new(
                    format!("{} has no such entry in use", device.name),
                    format!(
                        "see what it has: rxectl pkey list {}",
                        shell::word(&device.name)
                    ),
                ));
            };
            write(host, &device, entry.index, 0, out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let entries = parse_table("0 0xffff\n3 0x8001\nrubbish\n4 17\n\n127 0x0002\n");
        let got: Vec<(u16, u16)> = entries.iter().map(|e| (e.index, e.pkey)).collect();
        assert_eq!(got, [(0, 0xffff), (3, 0x8001), (127, 2)]);
        assert_eq!(holding(&entries, 0x8001).unwrap().index, 3);
        assert_eq!(holding(&entries, 0xffff).unwrap().index, 0);
        // The other memberships of these partitions.
        assert!(holding(&entries, 0x0001).is_none());
        assert!(holding(&entries, 0x7fff).is_none());
    }

    #[test]
    fn refusals_of_the_driver() {
        let device = Device {
            name: "rxe0".into(),
            driver: Driver::RxeRs,
        };
        let last = ["entry 4", "last valid", "pkey set rxe0 4", "pkey add rxe0"];
        let full = ["all 128 entries of rxe0", "pkey del rxe0"];
        let twice = ["another entry of rxe0 holds 0x8001", "pkey list rxe0"];
        let container = ["/sys is read-only", "nsenter -t PID -n unshare -m"];
        for (number, key, parts) in [
            (EBUSY, 0, &last[..]),
            (ENOSPC, 0x8001, &full),
            (EEXIST, 0x8001, &twice),
            (EROFS, 0x8001, &container),
        ] {
            let error = io::Error::from_raw_os_error(number);
            let said = format!("{:?}", explain(&device, 4, key, 128, &error));
            for part in parts {
                assert!(said.contains(part), "{part} is missing: {said}");
            }
        }
    }

    /// A module from before additions refuses them by EINVAL.
    #[test]
    fn additions_that_the_driver_does_not_know() {
        let device = Device {
            name: "rxe0".into(),
            driver: Driver::RxeRs,
        };
        let error = io::Error::from_raw_os_error(EINVAL);
        let said = |used: &[u16], capacity| {
            let entries: Vec<_> = used
                .iter()
                .map(|index| PkeyEntry {
                    index: *index,
                    pkey: 0x8000 | (index + 1),
                })
                .collect();
            format!(
                "{:?}",
                explain_addition(&device, &entries, 0x8009, capacity, &error)
            )
        };
        let older = said(&[0, 1, 3], 128);
        for part in ["older than rxectl", "pkey set rxe0 2 0x8009"] {
            assert!(older.contains(part), "{part} is missing: {older}");
        }
        assert!(!older.contains("index 0"), "{older}");
        let full = said(&[0, 1], 2);
        assert!(full.contains("all 2 entries of rxe0"), "{full}");
    }

    #[test]
    fn membership() {
        let key = |key, full, limited| value_of(&Key { key, full, limited });
        assert_eq!(key(0x0001, true, false).unwrap(), 0x8001);
        assert_eq!(key(0x8001, false, true).unwrap(), 0x0001);
        assert_eq!(key(0x8001, false, false).unwrap(), 0x8001);
        assert!(key(0, true, false).is_err());
        assert!(key(0x8000, false, false).is_err());
    }
}
