// SPDX-License-Identifier: GPL-2.0
//! RDMA devices.
//!
//! A driver implements [`Device`] and registers one with [`register`]. The core then owns the
//! device; the driver's context is freed after the core has unregistered it and the last reference
//! has been dropped.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod ops;
mod stats;

use super::{
    ah::AddressHandle,
    attr::{
        DeviceAttr,
        PortAttr, //
    },
    counter::QpCounter,
    cq::CompletionQueue,
    event::PortEvent,
    link::NewLink,
    mad::{
        MadResult,
        MAD_LEN, //
    },
    mr::{
        MemoryRegion,
        LOCAL_DMA_LKEY, //
    },
    mw::MemoryWindow,
    object::CoreObject,
    pd::ProtectionDomain,
    qp::QueuePair,
    segment,
    srq::SharedReceiveQueue, //
};
use crate::{
    bindings,
    net::netdev::{
        NetDev,
        NetId, //
    },
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*,
    sync::Arc, //
};
pub(crate) use ops::Ops;

/// Number of the only port.
pub const PORT: u32 = 1;

/// A GID table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The GID.
    pub gid: [u8; 16],
    /// Its index.
    pub index: u16,
    /// Interface index of its network device, which may be above that of the port; 0 if that goes.
    pub ifindex: u32,
    /// The namespace of that device, which need not be that of the port.
    pub net: NetId,
}

/// An RDMA device of a driver with one RoCEv2 port.
pub trait Device: Sized + Send + Sync + 'static {
    /// Protection domains.
    type Pd: ProtectionDomain<Device = Self>;
    /// Address handles.
    type Ah: AddressHandle<Device = Self>;
    /// Completion queues.
    type Cq: CompletionQueue<Device = Self>;
    /// Queue pairs.
    type Qp: QueuePair<Device = Self>;
    /// Shared receive queues.
    type Srq: SharedReceiveQueue<Device = Self>;
    /// Counters that queue pairs can be bound to.
    type Counter: QpCounter<Device = Self>;
    /// Memory regions.
    type Mr: MemoryRegion<Device = Self>;
    /// Memory windows.
    type Mw: MemoryWindow<Device = Self>;

    /// ID that selects the user space provider, `enum rdma_driver_id`.
    const DRIVER_ID: u32;
    /// Version of the ABI with the provider.
    const ABI_VERSION: u32;
    /// Default description of the node.
    const NODE_DESC: &'static [u8];
    /// Names of the counters of the port, in the order of [`counters`](Self::counters).
    const COUNTERS: &'static [&'static str];

    /// Returns limits and properties.
    ///
    /// # Context
    ///
    /// Process context.
    fn attributes(&self) -> DeviceAttr;

    /// Returns the state of the port.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn port(&self) -> PortAttr;

    /// Returns the P_Key at `index`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the table.
    fn pkey(&self, index: u16) -> Result<u16>;

    /// Sets the P_Key at `index`, or in the first entry that is not in use; 0 clears the entry
    /// `index`. For the administrator, who writes to the device's sysfs attribute `pkey_table`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the table or for an invalid key, `EEXIST` if another entry has the key,
    /// `EBUSY` for the last valid entry, `ENOSPC` if no entry is free.
    fn set_pkey(&self, index: Option<u16>, pkey: u16) -> Result;

    /// Sets the system image GUID, in wire order.
    ///
    /// # Context
    ///
    /// Process context.
    fn set_system_image(&self, guid: [u8; 8]);

    /// Returns the version string for `rdma dev`, at most 31 bytes.
    ///
    /// # Context
    ///
    /// Process context.
    fn firmware(&self) -> &'static CStr;

    /// Adds an entry of the GID table.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// The GID is rejected.
    fn add_gid(self: &Arc<Self>, gid: &GidEntry) -> Result;

    /// Removes an entry of the GID table.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn del_gid(self: &Arc<Self>, gid: &GidEntry);

    /// Resets the Q_Key violation counter.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn reset_qkey_violations(&self);

    /// Reads the counters, without what is counted in a [`Counter`](Self::Counter).
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn counters(&self, to: &mut [u64]);

    /// Processes a MAD received on the port, or created by the core to read the counters of sysfs.
    /// `reply` is valid only if the result says so.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn mad(&self, request: &[u8; MAD_LEN], reply: &mut [u8; MAD_LEN]) -> MadResult;

    /// Called before the core shows the device to its clients: when it is registered, and after
    /// each move to another namespace of the core. Until then [`with_netdev`] does not find it, so
    /// the events of its network device have to be made up for.
    ///
    /// # Context
    ///
    /// Process context; may sleep. The core's list of devices is locked.
    ///
    /// # Errors
    ///
    /// What the registration, or the move, fails with. The device stays registered after a move.
    fn enable(self: &Arc<Self>) -> Result;

    /// Called after the core has unregistered the device, when no other call follows. Must stop
    /// everything that runs on its behalf.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    fn unregistered(self: &Arc<Self>);
}

/// A counted reference to a device of the core.
///
/// # Invariants
///
/// `reference` is to the device `raw`.
pub struct DeviceHandle {
    raw: NonNull<bindings::ib_device>,
    reference: NonNull<bindings::rxe_rs_device_ref>,
}

// SAFETY: The functions used here may be called from any thread.
unsafe impl Send for DeviceHandle {}
// SAFETY: As above.
unsafe impl Sync for DeviceHandle {}

impl DeviceHandle {
    /// # Safety
    ///
    /// `raw` is alive.
    unsafe fn new(raw: NonNull<bindings::ib_device>) -> Result<Self> {
        // SAFETY: By the caller's guarantee.
        let reference = unsafe { bindings::rxe_rs_device_ref_get(raw.as_ptr()) };
        // INVARIANT: The reference was just taken.
        Ok(Self {
            raw,
            reference: NonNull::new(reference).ok_or(ENOMEM)?,
        })
    }

    /// Logs at debug level why a request of a consumer is refused, and returns the error for it,
    /// `EINVAL`.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn refuse(&self, reason: &CStr) -> Error {
        self.refuse_with(EINVAL, reason)
    }

    /// As [`refuse`](Self::refuse), with an error of the caller's choice.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn refuse_with(&self, error: Error, reason: &CStr) -> Error {
        // SAFETY: The device is alive by the type invariant.
        unsafe { bindings::rxe_rs_device_dbg(self.raw.as_ptr(), reason.as_char_ptr()) };
        error
    }

    /// Logs at debug level that a request of `queue` ("send" or "receive") of queue pair `qpn`
    /// completed with `status` (`enum ib_wc_status`).
    ///
    /// # Context
    ///
    /// Any context.
    pub fn failed(&self, qpn: u32, queue: &'static CStr, status: u32) {
        let queue = queue.as_char_ptr();
        // SAFETY: The device is alive by the type invariant, and the name is a C string.
        unsafe { bindings::rxe_rs_device_dbg_wc(self.raw.as_ptr(), qpn, queue, status) };
    }

    /// Logs that queue pair `qpn` receives packets which do not fit its connection, at most once a
    /// minute.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn suspect(&self, qpn: u32, counter: &'static CStr) {
        // SAFETY: The device is alive by the type invariant, and the name is a C string.
        unsafe { bindings::rxe_rs_device_suspect(self.raw.as_ptr(), qpn, counter.as_char_ptr()) };
    }

    /// Dispatches `event` of the port to all consumers.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn dispatch(&self, event: PortEvent) {
        let mut raw: bindings::ib_event = pin_init::zeroed();
        raw.device = self.raw.as_ptr();
        // SAFETY: Writing a plain union field.
        unsafe { *raw.element.port_num.as_mut() = PORT };
        raw.event = event.raw();
        self.while_registered(|dev| {
            // SAFETY: The device is registered during the call.
            unsafe { bindings::ib_dispatch_event(&raw) };
            let _ = dev;
        });
    }

    /// Dispatches an event of the port, whose network device is `netdev`, if that went up or down
    /// since the last one. The core calls the same function for network devices that are neither
    /// bonds nor teams, nor ports of one, and remembers the state: a device may become such a port.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn dispatch_state(&self, netdev: &NetDev) {
        self.while_registered(|dev| {
            // SAFETY: The device is registered during the call, and the reference keeps the network
            // device alive.
            unsafe { bindings::ib_dispatch_port_state_event(dev, netdev.as_ptr()) };
        });
    }

    /// Starts unregistration of the device in the background, if it is registered.
    ///
    /// # Context
    ///
    /// Process context, locks held or not.
    pub fn unregister(&self) {
        self.while_registered(|dev| {
            // SAFETY: The device is registered during the call, and has `dealloc_driver`.
            unsafe { bindings::ib_unregister_device_queued(dev) };
        });
    }

    fn while_registered(&self, f: impl FnOnce(*mut bindings::ib_device)) {
        let dev = self.raw.as_ptr();
        // SAFETY: The memory is alive by the type invariant.
        if unsafe { bindings::rxe_rs_device_try_get(dev) } {
            f(dev);
            // SAFETY: Balances the successful get.
            unsafe { bindings::ib_device_put(dev) };
        }
    }
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        // SAFETY: Drops the reference of the type invariant; may be called in softirq context.
        unsafe { bindings::rxe_rs_device_ref_put(self.reference.as_ptr()) };
    }
}

/// The object that the core allocates for a device.
type DeviceObject<D> = CoreObject<bindings::ib_device, Option<Arc<D>>>;

/// Returns the context of a device.
///
/// # Safety
///
/// `dev` is a device registered by [`register`] for `D`, and stays alive for `'a`.
#[inline]
pub(crate) unsafe fn ctx<'a, D: Device>(dev: *mut bindings::ib_device) -> &'a Arc<D> {
    // SAFETY: By the caller's guarantee; the slot is set before the device is registered and
    // cleared after all calls have ended.
    unsafe { DeviceObject::<D>::slot(dev).as_ref().unwrap_unchecked() }
}

/// Creates a device on top of a network device and registers it.
///
/// `make` is called once with a handle that may be stored in the context. With `under_hardware` the
/// device is below the hardware of the network device in sysfs, if that has any: the context must
/// then keep a [`NetDev`] of it, for the driver of the hardware waits until that is dropped, before
/// its device goes.
///
/// # Context
///
/// Process context; sleeps.
///
/// # Errors
///
/// `EEXIST` if the network device has an RDMA device of this driver id already, `ENODEV` if it
/// leaves its namespace meanwhile, `ENOMEM`, or what `make` or the core returns; everything is
/// undone then.
pub fn register<D: Device>(
    link: &NewLink<'_>,
    module: &'static ThisModule,
    under_hardware: bool,
    make: impl FnOnce(DeviceHandle) -> Result<Arc<D>>,
) -> Result {
    let ndev = link.netdev().as_ptr();
    // SAFETY: The network device is alive during the call.
    let other = unsafe { bindings::ib_device_get_by_netdev(ndev, D::DRIVER_ID) };
    if !other.is_null() {
        // SAFETY: Balances the get.
        unsafe { bindings::ib_device_put(other) };
        return Err(EEXIST);
    }
    // SAFETY: The network namespace is alive during the call. The core moves devices out of a
    // namespace that ends.
    let raw = unsafe { bindings::_ib_alloc_device(DeviceObject::<D>::SIZE, link.net().as_ptr()) };
    let raw = NonNull::new(raw).ok_or(ENOMEM)?;
    let dev = raw.as_ptr();
    // SAFETY: A fresh device, zeroed behind the C part.
    unsafe { DeviceObject::<D>::init(dev, None) };
    // SAFETY: The function is good for all devices of this driver, which are the only ones with the
    // attribute.
    unsafe { bindings::rxe_rs_sysfs_setup(Some(Ops::<D>::set_pkey_callback)) };
    segment::setup::<D>();
    // SAFETY: A fresh device that nobody knows; the operations are static.
    unsafe {
        bindings::ib_set_device_ops(dev, &Ops::<D>::TABLE);
        (*dev).ops.owner = module.as_ptr();
        (*dev).ops.driver_id = D::DRIVER_ID;
        (*dev).ops.uverbs_abi_ver = D::ABI_VERSION;
        (*dev).driver_def = segment::methods();
        (*dev).node_type = bindings::RDMA_NODE_IB_CA as u8;
        (*dev).phys_port_cnt = PORT;
        (*dev).num_comp_vectors = c_int::try_from(bindings::rxe_rs_num_vectors()).unwrap_or(1);
        (*dev).local_dma_lkey = LOCAL_DMA_LKEY;
        (*dev).node_guid = u64::from_ne_bytes(link.guid());
        (*dev).uverbs_cmd_mask |= 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
            | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;
        for (to, from) in (*dev).node_desc.iter_mut().zip(D::NODE_DESC) {
            *to = *from as c_char;
        }
    }
    if under_hardware {
        // SAFETY: A fresh device. Its registration takes a reference to the parent, which the
        // reference to the network device keeps until then: it is that of the device or above it.
        unsafe { bindings::rxe_rs_device_set_parent(dev, ndev) };
    }
    let run = || -> Result {
        // SAFETY: The device is alive.
        let ctx = make(unsafe { DeviceHandle::new(raw)? })?;
        // SAFETY: Nobody but this function knows the device yet.
        unsafe {
            drop(DeviceObject::<D>::take(dev));
            DeviceObject::<D>::init(dev, Some(ctx));
        }
        // SAFETY: Device and network device are alive; the driver unregisters the device when
        // the network device goes.
        to_result(unsafe { bindings::ib_device_set_netdev(dev, ndev, PORT) })?;
        // SAFETY: The device is complete; without a DMA device it works on kernel addresses.
        to_result(unsafe {
            bindings::ib_register_device(dev, link.name().as_char_ptr(), core::ptr::null_mut())
        })
    };
    run().inspect_err(|_| {
        // SAFETY: The device is not registered; calls `dealloc_driver`.
        unsafe { bindings::ib_dealloc_device(dev) };
    })
}

/// Unregisters all devices of a driver id and waits until that has finished.
///
/// Those of `rdma_rxe` have the same one. Both modules are loaded only if that has happened at the
/// same moment, and its links go with this module then.
///
/// # Context
///
/// Process context; sleeps.
pub fn unregister_all<D: Device>() {
    // SAFETY: All devices of this driver id have `dealloc_driver`, those of `rdma_rxe` too.
    unsafe { bindings::ib_unregister_driver(D::DRIVER_ID) };
}

/// Calls `f` with the device of `module` on top of a network device, if there is one. The device
/// stays registered during the call.
///
/// # Context
///
/// Process context; `f` may sleep, for a reference keeps the device and no lock is held.
pub fn with_netdev<D: Device, R>(
    module: &'static ThisModule,
    ndev: &NetDev,
    f: impl FnOnce(&Arc<D>) -> R,
) -> Option<R> {
    // SAFETY: The network device is alive.
    let dev = unsafe { bindings::ib_device_get_by_netdev(ndev.as_ptr(), D::DRIVER_ID) };
    if dev.is_null() {
        return None;
    }
    // A foreign driver may use the same ID.
    // SAFETY: The device is registered while the reference is held.
    let ours = unsafe { (*dev).ops.owner == module.as_ptr() };
    // SAFETY: The device is of this driver, registered and alive.
    let result = ours.then(|| f(unsafe { ctx::<D>(dev) }));
    // SAFETY: Balances the get.
    unsafe { bindings::ib_device_put(dev) };
    result
}
