// SPDX-License-Identifier: GPL-2.0
//! The network part: devices, the RoCEv2 UDP port, received buffers, routes and transmission.

use kernel::prelude::*;

pub mod flow;
pub mod multicast;
pub mod netdev;
pub mod notifier;
pub mod skb;
pub mod tap;
pub mod tx;
pub mod udp_tunnel;

/// The registration of the network part while the module is loaded.
///
/// Closes the UDP ports of network namespaces that end. Keep it in the module and drop it last:
/// nothing may send or receive any more then.
pub struct Registration(());

impl Registration {
    /// Registers.
    ///
    /// `guarded` says whether sending to the UDP port of an endpoint takes CAP_NET_RAW in its
    /// network namespace.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// What the kernel returns.
    pub fn new(guarded: bool) -> Result<Self> {
        // SAFETY: No requirement; undone once, by `drop`.
        kernel::error::to_result(unsafe { crate::bindings::rxe_rs_net_init(guarded) })?;
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: Undoes `new`.
        unsafe { crate::bindings::rxe_rs_net_exit() };
    }
}

/// Length of an IPv4 header without options and a UDP header, in bytes.
pub const HEADERS_V4: usize = 28;
/// Length of an IPv6 header and a UDP header, in bytes.
pub const HEADERS_V6: usize = 48;

/// Returns the IPv4 address in a GID, or `None` if it is an IPv6 address.
///
/// # Context
///
/// Any context.
#[inline]
pub fn mapped_v4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([*a, *b, *c, *d]),
        _ => None,
    }
}

/// Returns true for the GID of a multicast group of either family.
///
/// # Context
///
/// Any context.
#[inline]
pub fn is_multicast(gid: &[u8; 16]) -> bool {
    match mapped_v4(gid) {
        Some([a, ..]) => a & 0xf0 == 0xe0,
        None => gid[0] == 0xff,
    }
}

/// Returns the GID of an IPv4 address.
///
/// # Context
///
/// Any context.
#[inline]
pub fn v4_mapped(addr: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = addr;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Writes the lengths of a datagram with `payload` bytes behind its UDP header.
#[inline]
fn set_lengths(headers: &mut [u8; HEADERS_V6], v4: bool, payload: u16) {
    let udp = payload.wrapping_add(8);
    let [hi, lo] = udp.to_be_bytes();
    if v4 {
        [headers[2], headers[3]] = udp.wrapping_add(20).to_be_bytes();
        (headers[24], headers[25]) = (hi, lo);
    } else {
        (headers[4], headers[5]) = (hi, lo);
        (headers[44], headers[45]) = (hi, lo);
    }
}

/// The identification in an IPv4 header.
#[inline]
fn ipv4_id(headers: &[u8; HEADERS_V6]) -> u16 {
    u16::from_be_bytes([headers[4], headers[5]])
}

/// Writes the type of service into an IPv4 header, or the traffic class into an IPv6 header.
#[inline]
fn set_class(headers: &mut [u8; HEADERS_V6], v4: bool, class: u8) {
    if v4 {
        headers[1] = class;
    } else {
        headers[0] = headers[0] & 0xf0 | class >> 4;
        headers[1] = headers[1] & 0x0f | class << 4;
    }
}

/// Writes the identification into an IPv4 header.
#[inline]
fn set_ipv4_id(headers: &mut [u8; HEADERS_V6], id: u16) {
    [headers[4], headers[5]] = id.to_be_bytes();
}
