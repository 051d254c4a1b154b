// SPDX-License-Identifier: GPL-2.0
//! Memory pressure: a process that takes nearly all memory of the machine for moments, so that the
//! kernel reclaims memory in the middle of calls, and allocations that cannot wait fail.

use crate::sys;

/// Available memory that is left between the moments, in bytes.
const BETWEEN: u64 = 256 << 20;
/// Available memory that is left at such a moment, in bytes: less than the kernel wants to keep
/// free, so that it reclaims.
const LEFT: u64 = 4 << 20;
/// Bytes that are taken at once.
const STEP: u64 = 4 << 20;
/// Length of a moment, and time between two of them, in microseconds.
const MOMENT: u64 = 200_000;
const PAUSE: u64 = 600_000;

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
        // Whoever runs out of memory, this process is killed.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        take_until(BETWEEN);
        loop {
            let taken = take_until(LEFT);
            sys::pause(MOMENT);
            for addr in taken {
                let _ = sys::memory_call(libc::SYS_munmap, addr, STEP, 0);
            }
            sys::pause(PAUSE);
        }
    })
    .map_err(|errno| format!("fork: {errno}"))
}

/// Takes memory until no more than `left` bytes are available; returns the addresses.
fn take_until(left: u64) -> Vec<u64> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | libc::MAP_NORESERVE;
    let mut taken = Vec::new();
    while available() > left {
        let Ok(addr) = sys::mmap(0, STEP as usize, both, flags, -1, 0) else {
            break;
        };
        taken.push(addr);
    }
    taken
}

/// Returns the bytes that could be allocated without the death of a process (`MemAvailable`).
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
