// SPDX-License-Identifier: GPL-2.0
//! Network devices.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use crate::bindings;
use core::ptr::NonNull;

/// Identity of a network namespace, which is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetId(pub u64);

/// A reference to a network namespace, which does not end before it is dropped.
///
/// # Context
///
/// Process context.
pub(crate) struct Net(NonNull<bindings::net>);

impl Net {
    /// Returns its identity.
    pub(crate) fn id(&self) -> NetId {
        // SAFETY: The namespace is alive by the reference.
        NetId(unsafe { bindings::rxe_rs_net_id(self.0.as_ptr()) })
    }

    /// Returns the namespace.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: Drops the reference of the type.
        unsafe { bindings::rxe_rs_net_put(self.0.as_ptr()) };
    }
}

/// Identity of a network device, only to be compared while the device is known to exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DevId(pub(super) usize);

/// A reference to a network device.
///
/// Unregistration of a device waits for all references: drop yours on the event
/// [`Unregister`](super::notifier::NetdevEvent::Unregister).
///
/// # Context
///
/// Any context, unless a function says otherwise.
pub struct NetDev(NonNull<bindings::net_device>);

// SAFETY: The reference count and all that is read here may be used by every CPU.
unsafe impl Send for NetDev {}
// SAFETY: As above.
unsafe impl Sync for NetDev {}

impl NetDev {
    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `dev` is alive.
    pub(crate) unsafe fn get(dev: NonNull<bindings::net_device>) -> Self {
        // SAFETY: By contract.
        unsafe { bindings::rxe_rs_dev_hold(dev.as_ptr()) };
        Self(dev)
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Returns the identity, to compare with that of a received buffer.
    #[inline]
    pub fn id(&self) -> DevId {
        DevId(self.0.as_ptr() as usize)
    }

    /// Takes a reference to the namespace of the device; `None` if it has ended.
    pub(crate) fn namespace(&self) -> Option<Net> {
        // SAFETY: The reference keeps the device alive; the same for all below.
        NonNull::new(unsafe { bindings::rxe_rs_netdev_net_get(self.as_ptr()) }).map(Net)
    }

    /// Returns true if the device is registered in `net`, and all events that move or unregister it
    /// are yet to come.
    ///
    /// # Context
    ///
    /// Process context; takes the RTNL lock.
    pub fn is_in(&self, net: NetId) -> bool {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_netdev_is_in(self.as_ptr(), net.0) }
    }

    /// Returns the MTU in bytes.
    pub fn mtu(&self) -> u32 {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_mtu(self.as_ptr()) }
    }

    /// The most that IPsec policies of the namespace may add to a datagram that leaves by the
    /// device, or by one above it, for UDP port `port`, in bytes, at `per_transform` for each
    /// transformation that a policy asks for and `per_tunnel` more if that is a tunnel. 0 without
    /// policies.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn ipsec_overhead(&self, port: u16, per_transform: u32, per_tunnel: u32) -> u32 {
        // SAFETY: As in `namespace`.
        unsafe {
            bindings::rxe_rs_dev_ipsec_overhead(self.as_ptr(), port, per_transform, per_tunnel)
        }
    }

    /// Returns the interface index.
    pub fn ifindex(&self) -> u32 {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_ifindex(self.as_ptr()) }
    }

    /// Returns the Ethernet address; zeros if it has none.
    pub fn mac(&self) -> [u8; 6] {
        let mut mac = [0; 6];
        // SAFETY: As in `namespace`; six bytes are written.
        unsafe { bindings::rxe_rs_dev_mac(self.as_ptr(), mac.as_mut_ptr()) };
        mac
    }

    /// Returns the hardware type, an `ARPHRD_` number.
    pub fn hardware_type(&self) -> u16 {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_type(self.as_ptr()) }
    }

    /// Returns true for a VLAN device.
    pub fn is_vlan(&self) -> bool {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_is_vlan(self.as_ptr()) }
    }

    /// Returns true for a loopback device.
    pub fn is_loopback(&self) -> bool {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_is_loopback(self.as_ptr()) }
    }

    /// Returns true if the device carries Ethernet frames.
    pub fn is_ethernet(&self) -> bool {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_is_ethernet(self.as_ptr()) }
    }

    /// Returns true if the device is up and has a carrier.
    pub fn is_up(&self) -> bool {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_is_up(self.as_ptr()) }
    }

    /// Returns true for a bond or a team, or a port of one.
    pub fn is_aggregate(&self) -> bool {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_dev_is_aggregate(self.as_ptr()) }
    }

    /// Returns the speed in Mbit/s, 0 if unknown.
    ///
    /// # Context
    ///
    /// Process context; takes the RTNL lock.
    pub fn speed(&self) -> u32 {
        // SAFETY: As in `namespace`.
        unsafe { bindings::rxe_rs_netdev_speed(self.as_ptr()) }
    }

    /// Returns the current name.
    pub fn name(&self) -> DevName {
        let mut name = [0; 16];
        // SAFETY: As in `namespace`; `IFNAMSIZ` (16) bytes are written.
        unsafe { bindings::rxe_rs_dev_name(self.as_ptr(), name.as_mut_ptr()) };
        DevName(name)
    }
}

impl Clone for NetDev {
    fn clone(&self) -> Self {
        // SAFETY: `self` keeps the device alive.
        unsafe { Self::get(self.0) }
    }
}

impl PartialEq for NetDev {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for NetDev {}

impl Drop for NetDev {
    fn drop(&mut self) {
        // SAFETY: Gives up the reference of `self`.
        unsafe { bindings::rxe_rs_dev_put(self.as_ptr()) };
    }
}

/// The name of a network device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DevName([u8; 16]);

impl DevName {
    /// The bytes of the name, without a terminator.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|&b| b == 0).next().unwrap_or(&[])
    }
}

impl kernel::fmt::Display for DevName {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        kernel::fmt::Display::fmt(kernel::str::BStr::from_bytes(self.as_bytes()), f)
    }
}
