// SPDX-License-Identifier: GPL-2.0
//! IP multicast groups that network devices are members of.
//!
//! C headers: [`include/linux/igmp.h`](srctree/include/linux/igmp.h),
//! [`include/net/addrconf.h`](srctree/include/net/addrconf.h)

use super::netdev::NetDev;
use crate::bindings;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    error::from_err_ptr,
    prelude::*, //
};

/// The membership of a network device in a group, until it is dropped.
///
/// The device accepts frames to the group, IGMP or MLD reports it, and datagrams to it are
/// delivered to this host. Memberships are counted by the kernel: others of the same group are not
/// disturbed. Dropping it sleeps.
///
/// # Invariants
///
/// `config` is what `rxe_rs_dev_join` has returned for the group, and not yet left.
pub struct Membership {
    group: [u8; 16],
    /// The configuration of the device that has the membership, which keeps the device alive.
    config: NonNull<c_void>,
}

// SAFETY: The configuration has a reference count, and is used under the RTNL lock.
unsafe impl Send for Membership {}
// SAFETY: As above; nothing is done with a shared reference.
unsafe impl Sync for Membership {}

impl Membership {
    /// Joins `group`, a multicast address, an IPv4 one in its mapped form, on the network device
    /// with index `ifindex` in the namespace of `port`.
    ///
    /// # Context
    ///
    /// Process context; takes the RTNL lock.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is not there, is going or has no IPv4, `EINVAL` if it has no IPv6,
    /// `ENOMEM`.
    pub fn join(port: &NetDev, ifindex: u32, group: &[u8; 16]) -> Result<Self> {
        // SAFETY: The reference keeps the device of the port alive; 16 bytes are read.
        let config = unsafe { bindings::rxe_rs_dev_join(port.as_ptr(), ifindex, group.as_ptr()) };
        // INVARIANT: Just joined.
        Ok(Self {
            group: *group,
            config: NonNull::new(from_err_ptr(config)?).ok_or(ENODEV)?,
        })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // SAFETY: 16 bytes are read; the configuration by the type invariant.
        unsafe { bindings::rxe_rs_dev_leave(self.group.as_ptr(), self.config.as_ptr()) };
    }
}
