// SPDX-License-Identifier: GPL-2.0
//! Prepared machines of small files, for unit tests and for those that run the program.

use std::fs;
use std::path::{Path, PathBuf};

/// Makes a machine with these files in `place`; returns its folder.
fn made(place: &Path, kind: &str, release: &str, series: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = place.join(release);
    fs::create_dir_all(&folder).unwrap();
    let mut sizes = serde_json::Map::new();
    for (name, content) in files {
        fs::write(folder.join(name), content).unwrap();
        sizes.insert((*name).into(), content.len().into());
    }
    let json = serde_json::json!({
        "format": 2, "kind": kind, "release": release, "series": series, "module_version": "9.8.7",
        "sizes": sizes,
    });
    fs::write(folder.join("machine.json"), json.to_string()).unwrap();
    folder
}

/// Makes the machine of a kernel release for QEMU in `place`; returns its folder.
pub fn machine(place: &Path, release: &str, series: &str) -> PathBuf {
    let files = [
        "vmlinuz",
        "initramfs",
        "root.ext4",
        "modules.ext4",
        "rxe_rs.ko",
    ];
    made(
        place,
        "qemu",
        release,
        series,
        &files.map(|name| (name, name)),
    )
}

/// Makes one for User Mode Linux, whose kernel has that content.
pub fn uml_machine(place: &Path, release: &str, series: &str, kernel: &str) -> PathBuf {
    let files = [("linux", kernel), ("root.ext4", "x"), ("rxe_rs.ko", "x")];
    made(place, "uml", release, series, &files)
}
