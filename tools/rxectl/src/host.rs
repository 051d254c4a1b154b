// SPDX-License-Identifier: GPL-2.0
//! The machine as the commands see it: its files and the tools on it.
//!
//! Everything goes through [`Host`], so that tests can put a folder in the place of `/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a tool gave no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum ToolError {
    /// It is not installed.
    Missing,
    /// It ended with an error; what it said.
    Failed(String),
}

/// A machine below some folder, `/` for the real one.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The machine below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// Where `path` of the machine is; `path` is absolute.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is such a file or folder.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A text file without the white space around it; `None` if it cannot be read. Attributes of
    /// sysfs may refuse: an unused GID entry has no type.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// Names in a folder, sorted: numbers by value, then the rest. Empty if there is none.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_by(|a, b| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(x), Ok(y)) => x.cmp(&y),
            _ => a.cmp(b),
        });
        names
    }

    /// Writes `text` with one system call, as attributes of sysfs want it.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.path(path), text)
    }

    /// A line of `/proc/self/status`, such as `Uid`: its words.
    fn status_words(&self, key: &str) -> Vec<String> {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let words = line.unwrap_or_default().split_whitespace();
        words.map(str::to_string).collect()
    }

    /// Whether this process runs with the rights of root.
    pub fn is_root(&self) -> bool {
        // Real, effective, saved, file system.
        self.status_words("Uid")
            .get(1)
            .is_some_and(|uid| uid == "0")
    }

    /// Whether this process holds capability number `number`.
    pub fn has_capability(&self, number: u32) -> bool {
        let words = self.status_words("CapEff");
        let mask = words
            .first()
            .and_then(|hex| u64::from_str_radix(hex, 16).ok());
        mask.unwrap_or(0).checked_shr(number).unwrap_or(0) & 1 == 1
    }

    /// Release of the running kernel.
    pub fn kernel_release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// Whether a module is loaded or built in (as far as built-in ones show).
    pub fn module(&self, name: &str) -> bool {
        self.exists(&format!("/sys/module/{name}"))
    }

    /// Where a program is: in PATH and the folders of system tools.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        if self.root == Path::new("/") {
            let path = std::env::var_os("PATH").unwrap_or_default();
            folders.extend(std::env::split_paths(&path).filter(|folder| folder.is_absolute()));
        }
        for folder in ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
            folders.push(self.path(folder));
        }
        folders
            .into_iter()
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    }

    /// Runs a program and returns what it printed.
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

    /// The same for a program that prints JSON; some print nothing at all for an empty list.
    pub fn json_tool(
        &self,
        name: &str,
        arguments: &[&str],
    ) -> Result<serde_json::Value, ToolError> {
        let text = self.tool(name, arguments)?;
        if text.trim().is_empty() {
            return Ok(serde_json::Value::Array(Vec::new()));
        }
        serde_json::from_str(&text)
            .map_err(|error| ToolError::Failed(format!("its output is no JSON: {error}")))
    }
}
