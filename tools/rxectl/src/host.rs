// SPDX-License-Identifier: GPL-2.0
//! The host: its files and tools.
//!
//! All accesses go through [`Host`], so that tests can use another folder as `/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why running a tool failed.
#[derive(Debug, PartialEq, Eq)]
pub enum ToolError {
    /// It is not installed.
    Missing,
    /// It exited with an error; its message.
    Failed(String),
}

/// A host whose files are below a folder, which is `/` except in tests.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
}

/// Sorts names: numbers by value, then the rest.
fn sort(names: &mut [String]) {
    fn key(name: &str) -> (bool, u64, &str) {
        let number = name.parse::<u64>();
        (number.is_err(), number.unwrap_or_default(), name)
    }
    names.sort_by(|a, b| key(a).cmp(&key(b)));
}

/// Escapes the control characters in strings of JSON, which the programs of iproute2 print as they
/// are: a process can have any in its name.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\0'..='\x1f' if !matches!(c, '\n' | '\r' | '\t') => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => text.push(c),
        }
    }
    text
}

impl Host {
    /// Returns the host with its files below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// Translates an absolute path of the host.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns true if the file or folder exists.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns a text file without leading and trailing white space; `None` if it cannot be read.
    /// Reads of sysfs attributes may fail: an unused GID entry has no type.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// Returns the names in a folder, sorted: numbers by value, then the rest. Empty if the folder
    /// does not exist.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        sort(&mut names);
        names
    }

    /// Writes `text` by one system call, as sysfs attributes require.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.path(path), text)
    }

    /// Returns the values of a line of `/proc/self/status`, such as `Uid`.
    fn status_words(&self, key: &str) -> Vec<String> {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let words = line.unwrap_or_default().split_whitespace();
        words.map(str::to_string).collect()
    }

    /// Returns true if the effective user is root.
    pub fn is_root(&self) -> bool {
        // Real, effective, saved and file system user ID.
        self.status_words("Uid")
            .get(1)
            .is_some_and(|uid| uid == "0")
    }

    /// Returns true if this process has capability number `number` in effect.
    pub fn has_capability(&self, number: u32) -> bool {
        let words = self.status_words("CapEff");
        let mask = words
            .first()
            .and_then(|hex| u64::from_str_radix(hex, 16).ok());
        mask.unwrap_or(0).checked_shr(number).unwrap_or(0) & 1 == 1
    }

    /// Returns true if this process is in the initial user namespace, the only one whose
    /// capabilities `capable` of the kernel accepts. Its users are those of the kernel.
    pub fn in_initial_user_namespace(&self) -> bool {
        // A kernel without user namespaces has no such file.
        self.read("/proc/self/uid_map").is_none_or(|map| {
            let words: Vec<&str> = map.split_whitespace().collect();
            words == ["0", "0", "4294967295"]
        })
    }

    /// Returns the release of the running kernel.
    pub fn kernel_release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// Returns true if a module is loaded, or built in and visible in sysfs.
    pub fn module(&self, name: &str) -> bool {
        self.exists(&format!("/sys/module/{name}"))
    }

    /// Returns the path of a program, searched in PATH, the folders of system tools and that of the
    /// packages of `rxe_rs`.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        if self.root == Path::new("/") {
            let path = std::env::var_os("PATH").unwrap_or_default();
            folders.extend(std::env::split_paths(&path).filter(|folder| folder.is_absolute()));
        }
        for folder in [
            "/usr/sbin",
            "/usr/bin",
            "/sbin",
            "/bin",
            "/usr/libexec/rxe_rs",
        ] {
            folders.push(self.path(folder));
        }
        folders
            .into_iter()
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    }

    /// Runs a program and returns its output.
    pub fn tool(&self, name: &str, arguments: &[&str]) -> Result<String, ToolError> {
        let program = self.program(name).ok_or(ToolError::Missing)?;
        let output = Command::new(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .output()
            .map_err(|error| ToolError::Failed(error.to_string()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            return Err(ToolError::Failed(said));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a program that prints JSON and returns the parsed output; no output counts as an empty
    /// list.
    pub fn json_tool(
        &self,
        name: &str,
        arguments: &[&str],
    ) -> Result<serde_json::Value, ToolError> {
        let text = self.tool(name, arguments)?;
        if text.trim().is_empty() {
            return Ok(serde_json::Value::Array(Vec::new()));
        }
        serde_json::from_str(&escaped(&text))
            .map_err(|error| ToolError::Failed(format!("its output is no JSON: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order must be total: `sort_by` panics if it is not.
    #[test]
    fn names_are_sorted_whatever_their_order_was() {
        let sorted = ["2", "9", "10", "1a", "9z", "eth0"];
        for shift in 0..sorted.len() {
            let mut names = sorted.map(String::from);
            names.rotate_left(shift);
            sort(&mut names);
            assert_eq!(names, sorted);
            names.reverse();
            sort(&mut names);
            assert_eq!(names, sorted);
        }
        let mut many: Vec<String> = (0..60)
            .flat_map(|n| [format!("{n}"), format!("{n}a"), format!("c{n}")])
            .collect();
        many.rotate_left(77);
        sort(&mut many);
        assert_eq!(many[59], "59");
        assert_eq!(many[60], "0a");
    }
}
