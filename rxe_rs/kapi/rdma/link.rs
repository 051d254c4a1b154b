// SPDX-License-Identifier: GPL-2.0
//! `rdma link add`: making devices on request.
//!
//! C header: [`include/rdma/rdma_netlink.h`](srctree/include/rdma/rdma_netlink.h)

use super::qp::errno;
use crate::bindings;
use kernel::ffi::{c_char, c_int};
use core::marker::{PhantomData, PhantomPinned};
use kernel::prelude::*;
use kernel::types::Opaque;

/// A request to put an RDMA device on a network device.
///
/// # Invariants
///
/// The network device is alive for `'a`.
pub struct NewLink<'a> {
    name: &'a CStr,
    ndev: *mut bindings::net_device,
}

impl NewLink<'_> {
    /// Name of the device to make.
    pub fn name(&self) -> &CStr {
        self.name
    }

    /// The network device.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        self.ndev
    }

    /// Globally unique identifier made from the Ethernet address.
    pub fn guid(&self) -> [u8; 8] {
        let mut guid = [0; 8];
        // SAFETY: The network device is alive by the type invariant; there is room for 8 bytes.
        unsafe { bindings::rxe_netdev_guid(self.ndev, guid.as_mut_ptr()) };
        guid
    }
}

/// A kind of link.
pub trait Link: 'static {
    /// Name of the kind, for `rdma link add … type`.
    const TYPE: &'static CStr;

    /// Makes a device.
    ///
    /// # Errors
    ///
    /// Whatever the user should see.
    fn new_link(link: &NewLink<'_>) -> Result;
}

/// The registration of a kind of link; requests come until it is dropped.
#[pin_data(PinnedDrop)]
pub struct Registration<T: Link> {
    #[pin]
    ops: Opaque<bindings::rdma_link_ops>,
    #[pin]
    _pin: PhantomPinned,
    _link: PhantomData<T>,
}

// SAFETY: The core locks its list; nothing else is accessed.
unsafe impl<T: Link> Send for Registration<T> {}
// SAFETY: As above.
unsafe impl<T: Link> Sync for Registration<T> {}

impl<T: Link> Registration<T> {
    /// Registers.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            ops <- Opaque::ffi_init(|slot: *mut bindings::rdma_link_ops| {
                let mut ops: bindings::rdma_link_ops = pin_init::zeroed();
                ops.type_ = T::TYPE.as_char_ptr();
                ops.newlink = Some(Self::newlink);
                // SAFETY: The slot is pinned, valid for writes and lives until `drop`
                // unregisters it.
                unsafe {
                    slot.write(ops);
                    bindings::rdma_link_register(slot);
                }
            }),
            _pin: PhantomPinned,
            _link: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Called by the core with a string and a live network device.
    unsafe extern "C" fn newlink(name: *const c_char, ndev: *mut bindings::net_device) -> c_int {
        // SAFETY: By the caller's promise.
        // INVARIANT: The core holds a reference during the call.
        let link = NewLink { name: unsafe { CStr::from_char_ptr(name) }, ndev };
        errno(T::new_link(&link))
    }
}

#[pinned_drop]
impl<T: Link> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered in `new`; waits for running requests.
        unsafe { bindings::rdma_link_unregister(self.ops.get()) };
    }
}
