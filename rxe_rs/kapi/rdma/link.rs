// SPDX-License-Identifier: GPL-2.0
//! Links: RDMA devices that are created by `rdma link add`.
//!
//! C header: [`include/rdma/rdma_netlink.h`](srctree/include/rdma/rdma_netlink.h)

use crate::{
    bindings,
    error::errno,
    net::netdev::{
        Net,
        NetDev,
        NetId, //
    },
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
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        Mutex, //
    },
    types::Opaque, //
};

/// A request to create an RDMA device on a network device.
///
/// # Context
///
/// Process context, within [`Link::new_link`].
pub struct NewLink<'a> {
    name: &'a CStr,
    netdev: NetDev,
    /// The namespace of the network device when the request was made.
    net: Net,
}

impl NewLink<'_> {
    /// Returns the name of the device to create.
    pub fn name(&self) -> &CStr {
        self.name
    }

    /// The network device.
    pub fn netdev(&self) -> &NetDev {
        &self.netdev
    }

    /// Returns the identity of its namespace when the request was made.
    pub fn net_id(&self) -> NetId {
        self.net.id()
    }

    /// That namespace, which does not end during the request.
    pub(super) fn net(&self) -> &Net {
        &self.net
    }

    /// Returns the node GUID, which is derived from the Ethernet address.
    pub fn guid(&self) -> [u8; 8] {
        let mut guid = [0; 8];
        // SAFETY: The reference keeps the network device alive; the buffer holds 8 bytes.
        unsafe { bindings::rxe_rs_netdev_guid(self.netdev.as_ptr(), guid.as_mut_ptr()) };
        guid
    }
}

/// A link type.
pub trait Link: Send + Sync + 'static {
    /// Creates a device. Requests are made one after another.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
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
    /// Held during a request. The core makes requests of several processes at the same time, and
    /// two of them may be for the same network device.
    #[pin]
    requests: Mutex<()>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The core locks its list, and `T` is `Send`.
unsafe impl<T: Link> Send for Registration<T> {}
// SAFETY: As above, and `T` is `Sync`.
unsafe impl<T: Link> Sync for Registration<T> {}

/// The registration, because the core passes no context to the operation.
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
    /// `EBUSY` if there is a registration already, or one of that name by another module.
    pub fn new(link: T, kind: &'static CStr) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            link,
            requests <- new_mutex!((), "Registration::requests"),
            _pin: PhantomPinned,
            ops <- Opaque::try_ffi_init(move |slot: *mut bindings::rdma_link_ops| {
                let this: *mut c_void = this.as_ptr().cast();
                CURRENT.cmpxchg(core::ptr::null_mut(), this, Full).map_err(|_| EBUSY)?;
                let mut ops: bindings::rdma_link_ops = pin_init::zeroed();
                ops.type_ = kind.as_char_ptr();
                ops.newlink = Some(Self::newlink_callback);
                // SAFETY: The slot is pinned, valid for writes and lives until `drop`
                // unregisters it. The fields before it are initialized. Only this context
                // accesses it if it has not been registered.
                let registered = unsafe {
                    slot.write(ops);
                    bindings::rdma_link_register(slot);
                    !(*slot).list.next.is_null()
                };
                if registered {
                    return Ok(());
                }
                // Another module has that type. The core says so by a warning only.
                CURRENT.store(core::ptr::null_mut(), Release);
                Err(EBUSY)
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
        // SAFETY: There is one registration, which is of this type, and its `drop` waits for this
        // function before the registration is dropped.
        let Some(this) = (unsafe { CURRENT.load(Acquire).cast::<Self>().as_ref() }) else {
            return ENODEV.to_errno();
        };
        // SAFETY: By the caller's guarantee, here and below.
        let name = unsafe { CStr::from_char_ptr(name) };
        // SAFETY: As above; a live device is not null.
        let netdev = unsafe { NetDev::get(NonNull::new_unchecked(ndev)) };
        errno(this.request(name, netdev).inspect_err(|error| {
            // SAFETY: As above.
            unsafe {
                bindings::rxe_rs_link_dbg_error(ndev, name.as_char_ptr(), error.to_errno());
            }
        }))
    }

    /// Handles a request to create the device `name` on `netdev`.
    fn request(&self, name: &CStr, netdev: NetDev) -> Result {
        let net = netdev.namespace().ok_or(ENODEV)?;
        let _others_wait = self.requests.lock();
        self.link.new_link(&NewLink { name, netdev, net })
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
