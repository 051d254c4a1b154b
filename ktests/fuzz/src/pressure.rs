// SPDX-License-Identifier: GPL-2.0
//! Memory pressure: a process that repeatedly takes nearly all memory of the machine, so that the
//! kernel reclaims memory in the middle of calls, and allocations that cannot wait fail.
//!
//! The memory is that of a file in memory, which the process does not map: in User Mode Linux each
//! run of pages in the address space of a process is a mapping of the host, which allows some
//! 65,000 of them, and a process that exceeds that dies with a lock held.

use crate::sys;

/// Available memory in bytes that is left while there is no pressure.
const LEFT_AT_REST: u64 = 256 << 20;
/// Available memory in bytes that is left under pressure: less than the kernel wants to keep free,
/// so that it reclaims.
const LEFT: u64 = 4 << 20;
/// Bytes that are allocated at once.
const STEP: u64 = 4 << 20;
/// How long the pressure lasts, and how long the pause after it, in microseconds.
const PRESSURE_US: u64 = 200_000;
const PAUSE_US: u64 = 600_000;

/// The process.
pub struct Pressure {
    pid: i32,
    /// Number of times that the kernel killed it because no memory was left.
    pub killed: u32,
}

impl Pressure {
    /// Starts the process.
    pub fn start() -> Result<Self, String> {
        Ok(Self {
            pid: start()?,
            killed: 0,
        })
    }

    /// Starts the process again if the kernel has killed it.
    pub fn keep_up(&mut self) -> Result<(), String> {
        if sys::ended(self.pid, false).is_some() {
            self.killed += 1;
            self.pid = start()?;
        }
        Ok(())
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        sys::kill(self.pid, libc::SIGKILL);
        sys::ended(self.pid, true);
    }
}

fn start() -> Result<i32, String> {
    sys::fork(|| {
        sys::die_with_parent();
        // If any process runs out of memory, this one is killed.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        let Ok(fd) = sys::memfd(c"pressure", 0, false) else {
            return 1;
        };
        let at_rest = take_until(fd, 0, LEFT_AT_REST);
        loop {
            take_until(fd, at_rest, LEFT);
            sys::pause(PRESSURE_US);
            sys::truncate(fd, at_rest);
            sys::pause(PAUSE_US);
        }
    })
    .map_err(|errno| format!("fork: {errno}"))
}

/// Allocates memory of the file from `len` on, until no more than `left` bytes are available;
/// returns the new length.
fn take_until(fd: i32, mut len: u64, left: u64) -> u64 {
    while available() > left && sys::allocate(fd, len, STEP).is_ok() {
        len += STEP;
    }
    len
}

/// Returns the bytes that can be allocated before a process is killed (`MemAvailable`).
fn available() -> u64 {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find(|line| line.starts_with("MemAvailable:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(0, |kib| kib << 10)
}
