// SPDX-License-Identifier: GPL-2.0
//! Prepared machines: folders with what a machine boots from, which `qemu/ci-machine.py` makes.
//! Those for QEMU have a stock kernel, those for User Mode Linux a kernel that is a program.

use crate::cli;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The format of machine.json and of the messages between this program and the machine.
const FORMAT: u32 = 2;
/// How to get a machine.
const MAKE: &str =
    "make one by `make ci-machine` in a clone of rxe_rs, or unpack an archive of one there";
/// How to get one for User Mode Linux.
const MAKE_UML: &str =
    "make one by `make ci-machine UML=1` in a clone of rxe_rs, or unpack an archive of one there";

/// What runs a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// QEMU.
    Qemu,
    /// The kernel itself, which is a program: User Mode Linux.
    Uml,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Qemu => "qemu",
            Self::Uml => "uml",
        })
    }
}

impl Kind {
    /// The files that a machine of this kind boots from.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Qemu => &[
                "vmlinuz",
                "initramfs",
                "root.ext4",
                "modules.ext4",
                "rxe_rs.ko",
            ],
            Self::Uml => &["linux", "root.ext4", "rxe_rs.ko"],
        }
    }
}

/// The content of machine.json.
#[derive(Debug, Deserialize)]
struct Description {
    kind: Kind,
    release: String,
    series: String,
    module_version: String,
    /// The sizes of the files in bytes, so that an incomplete copy is noticed.
    sizes: BTreeMap<String, u64>,
}

/// A prepared machine.
#[derive(Debug, Serialize)]
pub struct Prepared {
    /// What runs it.
    pub kind: Kind,
    /// The release of the kernel.
    #[serde(rename = "kernel")]
    pub release: String,
    /// The series of the kernel.
    pub series: String,
    /// The version of rxe_rs.ko.
    #[serde(rename = "module")]
    pub module_version: String,
    /// The folder.
    pub folder: PathBuf,
}

impl Prepared {
    /// Reads the description of a machine and checks that its files are complete.
    fn read(folder: &Path) -> Result<Self> {
        let broken = |reason: String| {
            let what = format!("the prepared machine {} {reason}", folder.display());
            Error::new(what, "make or unpack it again (`make ci-machine`)")
        };
        let text = fs::read(folder.join("machine.json"))
            .map_err(|error| broken(format!("has no readable machine.json ({error})")))?;
        let json: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| broken(format!("has a damaged machine.json ({error})")))?;
        // Another format need not have the fields of this one.
        match json.get("format").and_then(serde_json::Value::as_u64) {
            Some(number) if number == u64::from(FORMAT) => {}
            _ => return Err(broken("has a format of another version of rxe-ci".into())),
        }
        let description: Description = serde_json::from_value(json)
            .map_err(|error| broken(format!("has a damaged machine.json ({error})")))?;
        for &name in description.kind.files() {
            let size = fs::metadata(folder.join(name)).map(|file| file.len());
            if size.ok() != description.sizes.get(name).copied() {
                return Err(broken(format!("is incomplete: {name}")));
            }
        }
        // QEMU does not take relative paths everywhere.
        let folder = folder.canonicalize();
        Ok(Self {
            kind: description.kind,
            folder: folder.map_err(|error| broken(format!("cannot be read ({error})")))?,
            release: description.release,
            series: description.series,
            module_version: description.module_version,
        })
    }

    /// Whether `--kernel` names this machine.
    fn is(&self, kernel: &str) -> bool {
        self.series == kernel || self.release == kernel
    }
}

/// The numbers in a release, which order releases by age.
fn numbers(release: &str) -> Vec<u64> {
    let parts = release.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Sorts folders of machines by their names: the newest release first, of the flavours of a release
/// `amd64` before `rt-amd64`.
fn sort(folders: &mut [PathBuf]) {
    folders.sort_by_key(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        (std::cmp::Reverse(numbers(&name)), name.into_owned())
    });
}

/// The folders in which machines are searched, in this order.
pub fn places(option: Option<&Path>) -> Vec<PathBuf> {
    if let Some(place) = option {
        return vec![place.into()];
    }
    if let Some(place) = cli::variable("RXE_CI_MACHINE") {
        return vec![place.into()];
    }
    let mut places = vec![PathBuf::from("out/ci")];
    places.extend(cli::cache());
    places.push("/usr/share/rxe-ci".into());
    places
}

/// The machines in a place, the newest first: the place itself or the folders in it.
fn machines_in(place: &Path) -> Vec<Result<Prepared>> {
    if place.join("machine.json").exists() {
        return vec![Prepared::read(place)];
    }
    let Ok(entries) = fs::read_dir(place) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|folder| folder.join("machine.json").exists())
        .collect();
    sort(&mut folders);
    folders
        .iter()
        .map(|folder| Prepared::read(folder))
        .collect()
}

/// All machines, and the reasons why others cannot be used.
pub fn all(places: &[PathBuf]) -> Vec<Result<Prepared>> {
    places.iter().flat_map(|place| machines_in(place)).collect()
}

/// Finds the machine that `run` boots: the newest one of that kind and kernel of the first place
/// that has one. Those that cannot be used are passed over, unless there is no other.
pub fn find(places: &[PathBuf], kind: Kind, kernel: Option<&str>) -> Result<Prepared> {
    let mut others = Vec::new();
    let mut broken = None;
    for machine in all(places) {
        match machine {
            Ok(machine) if machine.kind != kind => {}
            Ok(machine) if kernel.is_none_or(|kernel| machine.is(kernel)) => return Ok(machine),
            Ok(machine) => others.push(machine.release),
            Err(error) => broken = broken.or(Some(error)),
        }
    }
    if let Some(error) = broken {
        return Err(error);
    }
    let shown: Vec<String> = places
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    let of = kernel.map_or(String::new(), |kernel| format!(" of Linux {kernel}"));
    let have = match others.is_empty() {
        true => String::new(),
        false => format!(" (there are those of {})", others.join(", ")),
    };
    let (by, make) = match kind {
        Kind::Qemu => ("", MAKE),
        Kind::Uml => (" for User Mode Linux", MAKE_UML),
    };
    let what = format!("no prepared machine{by}{of} in {}{have}", shown.join(", "));
    Err(Error::new(what, make))
}

#[cfg(test)]
#[path = "../tests/prepared/mod.rs"]
mod made;

#[cfg(test)]
mod tests {
    use super::*;

    use super::made::{machine, uml_machine};

    fn found(places: &[&Path], kernel: Option<&str>) -> String {
        let places: Vec<PathBuf> = places.iter().map(PathBuf::from).collect();
        find(&places, Kind::Qemu, kernel).unwrap().release
    }

    #[test]
    fn the_newest_of_the_first_place_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a"), dir.path().join("b"));
        machine(&first, "7.2.9", "7.2");
        machine(&first, "7.2.12", "7.2");
        let single = machine(&second, "7.3.4", "7.3");
        assert_eq!(found(&[&first, &second], None), "7.2.12");
        assert_eq!(found(&[&first, &second], Some("7.3")), "7.3.4");
        assert_eq!(found(&[&first, &second], Some("7.2.9")), "7.2.9");
        assert_eq!(found(&[&single], None), "7.3.4");
        let text = find(&[first], Kind::Qemu, Some("7.1"))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("Linux 7.1") && text.contains("7.2.12, 7.2.9"),
            "{text}"
        );
        assert!(
            text.contains("make ci-machine") && !text.contains('\n'),
            "{text}"
        );
    }

    /// Whatever the order of the entries of the folder is.
    #[test]
    fn the_plain_flavour_of_a_release_is_taken() {
        let sorted = [
            "7.3.4+deb13-amd64",
            "7.3.4+deb13-rt-amd64",
            "7.3.3+deb13-amd64",
        ];
        for shift in 0..sorted.len() {
            let mut folders = sorted.map(|name| Path::new("/machines").join(name));
            folders.rotate_left(shift);
            sort(&mut folders);
            assert_eq!(
                folders.map(|f| f.ends_with(sorted[0])),
                [true, false, false]
            );
        }
    }

    #[test]
    fn a_kind_is_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let places = [dir.path().to_path_buf()];
        uml_machine(dir.path(), "7.3.5", "7.3", "kernel");
        let none = find(&places, Kind::Qemu, None).unwrap_err().to_string();
        assert!(none.contains("no prepared machine in "), "{none}");
        machine(dir.path(), "7.3.4", "7.3");
        for (kind, release) in [(Kind::Qemu, "7.3.4"), (Kind::Uml, "7.3.5")] {
            let found = find(&places, kind, Some("7.3")).unwrap();
            assert_eq!((found.kind, found.release.as_str()), (kind, release));
        }
        let none = find(&places, Kind::Uml, Some("7.2"))
            .unwrap_err()
            .to_string();
        assert!(
            none.contains("for User Mode Linux of Linux 7.2")
                && none.contains("(there are those of 7.3.5)")
                && none.contains("UML=1"),
            "{none}"
        );
    }

    #[test]
    fn damaged_machines_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let why = |folder: &Path| Prepared::read(folder).unwrap_err().to_string();
        let cut = machine(dir.path(), "7.3.1", "7.3");
        fs::write(cut.join("root.ext4"), "short").unwrap();
        assert!(why(&cut).contains("incomplete: root.ext4"));
        let gone = machine(dir.path(), "7.3.2", "7.3");
        fs::remove_file(gone.join("rxe_rs.ko")).unwrap();
        assert!(why(&gone).contains("incomplete: rxe_rs.ko"));
        let odd = machine(dir.path(), "7.3.3", "7.3");
        for (text, reason) in [
            ("{", "damaged machine.json"),
            ("{\"format\": 0}", "another version"),
            ("{\"format\": 2}", "damaged machine.json"),
        ] {
            fs::write(odd.join("machine.json"), text).unwrap();
            assert!(why(&odd).contains(reason), "{text}");
        }
        assert_eq!(all(&[dir.path().into()]).len(), 3);
    }

    #[test]
    fn releases_are_ordered_by_their_numbers() {
        assert!(numbers("7.3.10+deb13-amd64") > numbers("7.3.4+deb13-amd64"));
        assert!(numbers("7.10.1") > numbers("7.9.12"));
        assert_eq!(numbers("none"), Vec::<u64>::new());
    }
}
