// SPDX-License-Identifier: GPL-2.0
//! Links: RDMA devices that are created by `rdma link add`.
//!
//! C header: [`include/rdma/rdma_netlink.h`](srctree/include/rdma/rdma_netlink.h)

use crate::{
    bindings,
    error::errno,
    net::netdev::NetDev, //
};
use core::{
    marker::PhantomPinned,
    ptr::NonNull, //
};
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    },
    types::Opaque, //
};

/// A request to create an RDMA device on a network device.
///
/// # Context
///
/// Process context, within [`Link::new_link`].
///
/// # Invariants
///
/// The network device is alive for `'a`.
pub struct NewLink<'a> {
    name: &'a CStr,
    ndev: *mut bindings::net_device,
}

impl NewLink<'_> {
    /// Returns the name of the device to create.
    pub fn name(&self) -> &CStr {
        self.name
    }

    /// The network device.
    pub(super) fn as_ptr(&self) -> *mut bindings::net_device {
        self.ndev
    }

    /// Returns a reference to the network device.
    pub fn netdev(&self) -> NetDev {
        // SAFETY: The device is alive by the type invariant, and so not null.
        unsafe { NetDev::get(NonNull::new_unchecked(self.ndev)) }
    }

    /// Returns the node GUID, which is derived from the Ethernet address.
    pub fn guid(&self) -> [u8; 8] {
        let mut guid = [0; 8];
        // SAFETY: The network device is alive by the type invariant; the buffer holds 8 bytes.
        unsafe { bindings::rxe_rs_netdev_guid(self.ndev, guid.as_mut_ptr()) };
        guid
    }
}

/// A link type.
pub trait Link: Send + Sync + 'static {
    /// Creates a device.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// The errno for the user.
    fn new_link(&self, link: &NewLink<'_>) -> Result;
}

/// The registration of a link type; requests are delivered until it is dropped. A module can have
/// one registration.
#[pin_data(PinnedDrop)]
pub struct Registration<T: Link> {
    #[pin]
    ops: Opaque<bindings::rdma_link_ops>,
    link: T,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The core locks its list, and `T` is `Send`.
unsafe impl<T: Link> Send for Registration<T> {}
// SAFETY: As above, and `T` is `Sync`.
unsafe impl<T: Link> Sync for Registration<T> {}

/// The `T` of the registration, because the core passes no context to the operation.
static CURRENT: Atomic<*mut c_void> = Atomic::new(core::ptr::null_mut());

impl<T: Link> Registration<T> {
    /// Registers the link type under the name `kind`, for `rdma link add … type`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is a registration already.
    pub fn new(link: T, kind: &'static CStr) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            link,
            _pin: PhantomPinned,
            ops <- Opaque::try_ffi_init(move |slot: *mut bindings::rdma_link_ops| {
                // SAFETY: `this` is the memory being initialized; only an address is taken.
                let link = unsafe { &raw mut (*this.as_ptr()).link };
                CURRENT.cmpxchg(core::ptr::null_mut(), link.cast(), Full).map_err(|_| EBUSY)?;
                let mut ops: bindings::rdma_link_ops = pin_init::zeroed();
                ops.type_ = kind.as_char_ptr();
                ops.newlink = Some(Self::newlink_callback);
                // SAFETY: The slot is pinned, valid for writes and lives until `drop`
                // unregisters it. The link before it is initialized.
                unsafe {
                    slot.write(ops);
                    bindings::rdma_link_register(slot);
                }
                Ok::<(), Error>(())
            }),
        })
    }

    /// # Safety
    ///
    /// Called by the core with a string and a live network device.
    unsafe extern "C" fn newlink_callback(
        name: *const c_char,
        ndev: *mut bindings::net_device,
    ) -> c_int {
        // SAFETY: There is one registration, which is of this type, and its `drop` waits for
        // this function before the link is dropped.
        let Some(this) = (unsafe { CURRENT.load(Acquire).cast::<T>().as_ref() }) else {
            return ENODEV.to_errno();
        };
        // SAFETY: By the caller's guarantee.
        let name = unsafe { CStr::from_char_ptr(name) };
        // INVARIANT: The core holds a reference during the call.
        let link = NewLink { name, ndev };
        errno(this.new_link(&link).inspect_err(|error| {
            // SAFETY: The network device is alive, and the name is a C string.
            unsafe {
                bindings::rxe_rs_link_dbg_error(ndev, name.as_char_ptr(), error.to_errno());
            }
        }))
    }
}

#[pinned_drop]
impl<T: Link> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered in `new`; waits for running requests.
        unsafe { bindings::rdma_link_unregister(self.ops.get()) };
        CURRENT.store(core::ptr::null_mut(), Release);
    }
}
