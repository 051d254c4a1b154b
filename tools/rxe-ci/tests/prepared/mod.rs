// SPDX-License-Identifier: GPL-2.0
//! A prepared machine of small files, for unit tests and for those that run the program.

use std::fs;
use std::path::{Path, PathBuf};

/// Makes the machine of a kernel release in `place`; returns its folder.
pub fn machine(place: &Path, release: &str, series: &str) -> PathBuf {
    let folder = place.join(release);
    fs::create_dir_all(&folder).unwrap();
    let mut sizes = serde_json::Map::new();
    for name in [
        "vmlinuz",
        "initramfs",
        "root.ext4",
        "modules.ext4",
        "rxe_rs.ko",
    ] {
        fs::write(folder.join(name), name).unwrap();
        sizes.insert(name.into(), name.len().into());
    }
    let json = serde_json::json!({
        "format": 1, "release": release, "series": series, "module_version": "9.8.7", "sizes": sizes,
    });
    fs::write(folder.join("machine.json"), json.to_string()).unwrap();
    folder
}
