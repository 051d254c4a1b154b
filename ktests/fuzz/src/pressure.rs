// SPDX-License-Identifier: GPL-2.0
//! Memory pressure: processes that repeatedly take nearly all memory of the machine, so that the
//! kernel reclaims memory in the middle of calls, and allocations that cannot wait fail.
//!
//! The memory is that of files in memory, which the processes do not map: in User Mode Linux each
//! run of pages in the address space of a process is a mapping of the host, which allows some
//! 65,000 of them, and a process that exceeds that dies with a lock held.
//!
//! When the kernel kills a process because no memory is left, that of a file is not free before the
//! process has ended, which takes long with KASAN, and meanwhile the kernel kills others. Those are
//! to be of these processes and not of the workers, so there are several.

use crate::sys;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of processes, which share what is taken.
const PROCESSES: usize = 8;

/// Available memory in bytes that is left while there is no pressure.
const LEFT_AT_REST: u64 = 256 << 20;
/// Available memory in bytes that is left under pressure: less than the kernel wants to keep free,
/// so that it reclaims.
const LEFT: u64 = 4 << 20;
/// Bytes that are allocated at once. All processes together do not take more than what is left.
const STEP: u64 = LEFT / PROCESSES as u64;
/// The period of the pressure, and how long it lasts of that, in microseconds. The processes begin
/// together, at multiples of the period.
const PERIOD_US: u64 = 800_000;
const PRESSURE_US: u64 = 200_000;

/// The processes.
pub struct Pressure {
    pids: Vec<i32>,
    /// Number of times that the kernel killed one because no memory was left.
    pub killed: u32,
}

impl Pressure {
    /// Starts the processes.
    pub fn start() -> Result<Self, String> {
        let mut this = Self {
            pids: Vec::new(),
            killed: 0,
        };
        for _ in 0..PROCESSES {
            this.pids.push(start()?);
        }
        Ok(this)
    }

    /// Starts those again that the kernel has killed.
    pub fn keep_up(&mut self) -> Result<(), String> {
        for pid in &mut self.pids {
            if sys::ended(*pid, false).is_some() {
                self.killed += 1;
                *pid = start()?;
            }
        }
        Ok(())
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        for &pid in &self.pids {
            sys::kill(pid, libc::SIGKILL);
            sys::ended(pid, true);
        }
    }
}

fn start() -> Result<i32, String> {
    sys::fork(|| {
        sys::die_with_parent();
        // If any process runs out of memory, one of these is killed.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        let Ok(fd) = sys::memfd(c"pressure", 0, false) else {
            return 1;
        };
        let at_rest = take_until(fd, 0, LEFT_AT_REST);
        loop {
            sys::pause(PERIOD_US - since_period_began());
            take_until(fd, at_rest, LEFT);
            sys::pause(PRESSURE_US.saturating_sub(since_period_began()));
            sys::truncate(fd, at_rest);
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

/// Returns the microseconds since the period began.
fn since_period_began() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_micros() as u64 % PERIOD_US)
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
