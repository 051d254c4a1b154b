// SPDX-License-Identifier: GPL-2.0
//! Adds memory of this process to a region of the process that started it.
//!
//! `exercise CMD-FD HANDLE RKEY ADDRESS`; the file descriptor is inherited. The program adds a page
//! at the address and prints the result, waits for a line on standard input while peers write to
//! the page, prints what they wrote, and removes the page.

use rxe_rs::{Region, Storage};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

fn number(argument: Option<String>) -> u64 {
    let text = argument.expect("exercise CMD-FD HANDLE RKEY ADDRESS");
    text.parse().expect("a decimal number")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let fd = i32::try_from(number(arguments.next())).expect("a descriptor");
    let handle = number(arguments.next()) as u32;
    let rkey = number(arguments.next()) as u32;
    let address = number(arguments.next());

    // SAFETY: The descriptor was inherited for this purpose, and nothing else in this process uses
    // it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let region = Region::new(fd.as_fd(), handle, rkey);

    let mut storage = Storage::new(1).expect("memory");
    storage.as_mut_slice()[..5].copy_from_slice(b"hello");
    let (segment, state) = region.add(storage, address).expect("adding");
    println!("added {} run {}", segment.handle(), state.run_length);

    let twice = region.add(Storage::new(1).expect("memory"), address);
    let (error, _unused) = twice.expect_err("it overlaps");
    println!("refused {} {error}", error.errno());

    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let mut seen = [0; 8];
    segment.read(segment.len() - seen.len(), &mut seen);
    println!("seen {}", String::from_utf8_lossy(&seen));

    let (storage, state) = region.remove(segment).expect("removing");
    println!(
        "removed {} left {}",
        String::from_utf8_lossy(&storage.as_slice()[..5]),
        state.segments
    );
    let wrong = region.remove_range(address, 1 << 20);
    println!("refused {}", wrong.expect_err("not there").errno());
}
