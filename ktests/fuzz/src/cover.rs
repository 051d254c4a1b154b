// SPDX-License-Identifier: GPL-2.0
//! Coverage: which basic blocks of the driver were executed, and their approximate counts, as
//! `cover/rxe_cover.c` records them.

use crate::sys::{self, SharedMapping};
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

const COUNTERS: usize = 1 << 22;
const ENTRIES: usize = 1 << 16;
const LOG: usize = 4096;
const COUNTER_OFFSET: usize = LOG + 4 * ENTRIES;

/// The mapping shared with the kernel, and the coverage that has been read from it.
pub struct Cover {
    mapping: Option<SharedMapping>,
    /// Entries of the log: lower bits of the address, and exponent of the power of two that the
    /// count reached.
    seen: HashSet<u32>,
    blocks: HashSet<u32>,
    symbols: Vec<(u64, String)>,
}

impl Cover {
    /// Maps the counters. Prints a notice if the module rxe_cover is not loaded: there is no
    /// feedback then.
    pub fn open() -> Self {
        let mapping = sys::open("/dev/rxe_cover", libc::O_RDWR)
            .and_then(|fd| SharedMapping::map(0, COUNTER_OFFSET + COUNTERS, fd, 0));
        if mapping.is_err() {
            println!("no /dev/rxe_cover: random programs without feedback");
        }
        Self {
            mapping: mapping.ok(),
            seen: HashSet::new(),
            blocks: HashSet::new(),
            symbols: symbols(),
        }
    }

    /// Returns true if coverage is recorded.
    pub fn available(&self) -> bool {
        self.mapping.is_some()
    }

    /// Returns the number of basic blocks executed so far.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Reads the log and empties it. Returns the number of entries that have not been seen before.
    pub fn collect(&mut self) -> usize {
        let Some(mapping) = self.mapping else {
            return 0;
        };
        let words = mapping.words();
        let count = (words[0].load(Relaxed) as usize).min(ENTRIES);
        let counters = &mapping.bytes()[COUNTER_OFFSET..];
        let mut new = 0;
        for entry in words[LOG / 4..].iter().take(count) {
            let entry = entry.load(Relaxed);
            counters[entry as usize % COUNTERS].store(0, Relaxed);
            // Counts beyond 32 are ignored: they depend on timing.
            if entry >> 24 <= 5 && self.seen.insert(entry) {
                new += 1;
                self.blocks.insert(entry % COUNTERS as u32);
            }
        }
        if count == ENTRIES {
            for counter in counters {
                counter.store(0, Relaxed);
            }
        }
        words[0].store(0, Relaxed);
        new
    }

    /// Returns the number of executed blocks of each function of the driver, 0 for those never
    /// called.
    pub fn functions(&self) -> BTreeMap<String, usize> {
        let mut found: BTreeMap<String, usize> = self
            .symbols
            .iter()
            .map(|(_, name)| (name.clone(), 0))
            .collect();
        let Some(first) = self.symbols.first().map(|symbol| symbol.0) else {
            return found;
        };
        for block in &self.blocks {
            let ahead = u64::from(*block).wrapping_sub(first) & (COUNTERS as u64 - 1);
            let index = self
                .symbols
                .partition_point(|symbol| symbol.0 <= first + ahead);
            if let Some(count) = index
                .checked_sub(1)
                .and_then(|n| found.get_mut(&self.symbols[n].1))
            {
                *count += 1;
            }
        }
        found
    }
}

/// Returns addresses and names of the driver's functions; the kernel hides the addresses from
/// unprivileged processes.
fn symbols() -> Vec<(u64, String)> {
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let mut symbols: Vec<(u64, String)> = text
        .lines()
        .filter(|line| line.ends_with("[rxe_rs]"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let addr = u64::from_str_radix(words.next()?, 16).ok()?;
            let kind = words.next()?;
            let name = words.next()?;
            (matches!(kind, "t" | "T") && !name.starts_with('.')).then(|| (addr, name.to_string()))
        })
        .collect();
    symbols.sort();
    symbols.dedup_by_key(|symbol| symbol.0);
    symbols
}
