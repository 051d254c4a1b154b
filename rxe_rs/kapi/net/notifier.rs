// SPDX-License-Identifier: GPL-2.0
//! Events of network devices.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use super::netdev::NetDev;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    ffi::{
        c_int,
        c_ulong,
        c_void, //
    },
    prelude::*,
    types::Opaque, //
};

/// An event of a network device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetdevEvent {
    /// It has been registered.
    Register,
    /// It is being unregistered or moved to another namespace: drop all references.
    Unregister,
    /// It was brought up.
    Up,
    /// It was brought down.
    Down,
    /// It is about to be brought down.
    GoingDown,
    /// Its flags or its carrier changed.
    Change,
    /// Its MTU changed.
    ChangeMtu,
    /// Its hardware address changed.
    ChangeAddr,
    /// It was renamed.
    ChangeName,
    /// Its offloads changed.
    ChangeFeatures,
    /// Its hardware type is about to change.
    PreTypeChange,
}

impl NetdevEvent {
    fn from_raw(event: c_ulong) -> Option<Self> {
        Some(match event as u32 {
            bindings::netdev_cmd_NETDEV_REGISTER => Self::Register,
            bindings::netdev_cmd_NETDEV_UNREGISTER => Self::Unregister,
            bindings::netdev_cmd_NETDEV_UP => Self::Up,
            bindings::netdev_cmd_NETDEV_DOWN => Self::Down,
            bindings::netdev_cmd_NETDEV_GOING_DOWN => Self::GoingDown,
            bindings::netdev_cmd_NETDEV_CHANGE => Self::Change,
            bindings::netdev_cmd_NETDEV_CHANGEMTU => Self::ChangeMtu,
            bindings::netdev_cmd_NETDEV_CHANGEADDR => Self::ChangeAddr,
            bindings::netdev_cmd_NETDEV_CHANGENAME => Self::ChangeName,
            bindings::netdev_cmd_NETDEV_FEAT_CHANGE => Self::ChangeFeatures,
            bindings::netdev_cmd_NETDEV_PRE_TYPE_CHANGE => Self::PreTypeChange,
            _ => return None,
        })
    }
}

/// Receives events of network devices.
pub trait NetdevEvents: Send + Sync + 'static {
    /// Called for each event of a device in any namespace. Registration replays
    /// [`NetdevEvent::Register`] and [`NetdevEvent::Up`] for existing devices; deregistration
    /// replays the reverse.
    ///
    /// # Context
    ///
    /// Process context, with the RTNL lock held.
    fn event(&self, event: NetdevEvent, dev: &NetDev);
}

/// A registered notifier; events are delivered until it is dropped.
#[pin_data(PinnedDrop)]
#[repr(C)]
pub struct NetdevNotifier<T: NetdevEvents> {
    // First, as the callback gets a pointer to it.
    #[pin]
    block: Opaque<bindings::notifier_block>,
    listener: T,
}

// SAFETY: The C part is only touched by registering and deregistering, which lock.
unsafe impl<T: NetdevEvents> Send for NetdevNotifier<T> {}
// SAFETY: As above.
unsafe impl<T: NetdevEvents> Sync for NetdevNotifier<T> {}

impl<T: NetdevEvents> NetdevNotifier<T> {
    /// Registers `listener`.
    ///
    /// # Context
    ///
    /// Process context, without the RTNL lock.
    ///
    /// # Errors
    ///
    /// What the core returns; nothing is registered then.
    pub fn register(listener: T) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            listener,
            // Last, because events are delivered before it returns.
            block <- Opaque::try_ffi_init(|block: *mut bindings::notifier_block| {
                // SAFETY: `block` is valid for writes and stays where it is until it is
                // deregistered.
                unsafe {
                    block.write(bindings::notifier_block {
                        notifier_call: Some(Self::notifier_callback),
                        next: core::ptr::null_mut(),
                        priority: 0,
                    });
                    kernel::error::to_result(bindings::register_netdevice_notifier(block))
                }
            }),
        })
    }

    /// Returns the listener.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn listener(&self) -> &T {
        &self.listener
    }

    /// # Safety
    ///
    /// Called by the netdev chain with the block of a registered `NetdevNotifier<T>`.
    unsafe extern "C" fn notifier_callback(
        block: *mut bindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        // SAFETY: The block is the first field of a registered `NetdevNotifier<T>`.
        let this = unsafe { &*block.cast::<Self>() };
        if let Some(event) = NetdevEvent::from_raw(event) {
            // SAFETY: `info` is what the netdev chain passes; its device is alive.
            let dev = unsafe { NonNull::new(bindings::rxe_rs_notifier_dev(info)) };
            if let Some(dev) = dev {
                // SAFETY: The device is alive during the call.
                this.listener.event(event, &unsafe { NetDev::get(dev) });
            }
        }
        bindings::NOTIFY_DONE as c_int
    }
}

#[pinned_drop]
impl<T: NetdevEvents> PinnedDrop for NetdevNotifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: It was registered, or it would not be.
        unsafe { bindings::unregister_netdevice_notifier(self.block.get()) };
    }
}
