// SPDX-License-Identifier: GPL-2.0
//! IP multicast groups that a network device is a member of.
//!
//! C headers: [`include/linux/igmp.h`](srctree/include/linux/igmp.h),
//! [`include/net/addrconf.h`](srctree/include/net/addrconf.h)

use super::netdev::NetDev;
use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// The membership of a network device in a group, until it is dropped.
///
/// The device accepts frames to the group, IGMP or MLD reports it, and datagrams to it are
/// delivered to this host. Memberships are counted by the kernel: others of the same group are not
/// disturbed. Dropping it sleeps.
pub struct Membership {
    dev: NetDev,
    group: [u8; 16],
}

impl Membership {
    /// Joins `group`, a multicast address; an IPv4 one in its mapped form.
    ///
    /// # Context
    ///
    /// Process context; takes the RTNL lock.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is going or has no IPv4, `EINVAL` if it has no IPv6, `ENOMEM`.
    pub fn join(dev: &NetDev, group: &[u8; 16]) -> Result<Self> {
        // SAFETY: The reference keeps the device alive; 16 bytes are read.
        to_result(unsafe { bindings::rxe_rs_dev_join(dev.as_ptr(), group.as_ptr()) })?;
        Ok(Self {
            dev: dev.clone(),
            group: *group,
        })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // SAFETY: As in `join`, which this undoes.
        unsafe { bindings::rxe_rs_dev_leave(self.dev.as_ptr(), self.group.as_ptr()) };
    }
}
