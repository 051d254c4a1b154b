// SPDX-License-Identifier: GPL-2.0
//! Initial state of a world: contexts, and objects of every kind. The queue pairs are connected and
//! have requests posted, so that even the shortest program runs concurrently with traffic.

use crate::calls::{Call, Op};
use crate::exec::{Device, Net, SHARED_CONTEXTS};
use crate::{sys, Options};

/// Returns the calls that create the initial objects. Adjacent slots hold queue pairs of different
/// contexts, which are connected to each other: RC, UC, UD, RC with a shared receive queue.
pub fn first_objects() -> Vec<Call> {
    let mut calls = Vec::new();
    for context in 0..2 {
        let slots = |n: u32| 2 * n + context;
        calls.push(Call::of(Op::AllocPd, &[slots(0), context]));
        calls.push(Call::of(Op::CreateChannel, &[slots(0), context]));
        calls.push(Call::of(Op::CreateCq, &[slots(0), context, 4]));
        calls.push(Call::of(Op::CreateCq, &[slots(1), context, 5, 0, 0, 1]));
        calls.push(Call::of(Op::CreateSrq, &[slots(0), context, 0, context]));
        // Private memory, shared memory, on-demand paging.
        calls.push(Call::of(
            Op::RegMr,
            &[slots(0), context, context, 0, 0x13, 0],
        ));
        calls.push(Call::of(
            Op::RegMr,
            &[slots(1), context, context, 1, 0x13, 0],
        ));
        calls.push(Call::of(
            Op::RegMr,
            &[slots(2), context, context, 0, 0x13, 4],
        ));
        calls.push(Call::of(Op::AllocMw, &[slots(0), context, context, 0]));
        calls.push(Call::of(Op::AllocMw, &[slots(1), context, context, 1]));
        calls.push(Call::of(Op::CreateAh, &[slots(0), context, context, 0]));
    }
    for (number, kind, shared) in [(0, 0, 0), (2, 8, 0), (4, 11, 0), (6, 0, 1)] {
        for context in 0..2 {
            calls.push(Call::of(
                Op::CreateQp,
                &[number + context, context, kind, context, 0x20, shared, 0, 3],
            ));
        }
        for context in 0..2 {
            calls.push(Call::of(
                Op::Connect,
                &[number + context, 2, 0, 0, 0, 4, 2, 7],
            ));
        }
        for context in 0..2 {
            calls.push(Call::of(
                Op::PostRecv,
                &[number + context, 0, context, 0, 3, 0, 7],
            ));
        }
    }
    calls.push(Call::of(Op::PostRecv, &[0, 2, 0, 0, 3, 0, 7]));
    calls.push(Call::of(Op::PostRecv, &[1, 2, 1, 0, 3, 0, 7]));
    // One request of each operation that needs no further setup.
    for opcode in [2, 0, 4, 5, 6, 15, 14] {
        calls.push(Call::of(Op::PostSend, &[0, opcode, 0, 1, 3]));
    }
    calls
}

/// Returns the index of the device that a shared context belongs to.
pub fn device_of(context: usize, devices: usize) -> usize {
    [0, 1, 0, 2][context % SHARED_CONTEXTS] % devices
}

/// Reads the valid entries of a device's GID table.
pub fn device(name: &str) -> Device {
    let mut gids = Vec::new();
    for index in 0..=255u8 {
        let path = format!("/sys/class/infiniband/{name}/ports/1/gids/{index}");
        let Ok(text) = std::fs::read_to_string(path) else {
            continue;
        };
        let mut gid = [0; 16];
        for (group, bytes) in text.trim().split(':').zip(gid.chunks_mut(2)) {
            bytes.copy_from_slice(&u16::from_str_radix(group, 16).unwrap_or(0).to_be_bytes());
        }
        // Link-local GIDs are left out: the namespaces have addresses of their own.
        if gid != [0; 16] && gid[0] != 0xfe {
            gids.push((index, gid));
        }
    }
    // IPv4 first.
    gids.sort_by_key(|(_, gid)| gid[10] != 0xff);
    Device {
        name: name.into(),
        gids,
    }
}

/// Opens a socket in each network namespace.
pub fn nets(options: &Options) -> Vec<Net> {
    let Ok(own) = sys::open("/proc/self/ns/net", libc::O_RDONLY) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, netdev) in &options.nets {
        let path = if name.is_empty() {
            "/proc/self/ns/net".into()
        } else {
            format!("/run/netns/{name}")
        };
        let Ok(there) = sys::open(&path, libc::O_RDONLY) else {
            continue;
        };
        if sys::enter_netns(there).is_ok() {
            if let Ok(socket) =
                sys::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)
            {
                found.push(Net {
                    socket,
                    netdev: netdev.clone(),
                });
            }
        }
        sys::close(there);
    }
    let _ = sys::enter_netns(own);
    sys::close(own);
    found
}
