// SPDX-License-Identifier: GPL-2.0
//! RDMA devices.
//!
//! A driver implements [`Device`] and registers one with [`register`]. The core owns the device
//! from then on; the driver's context lives until the core has unregistered it and nobody holds
//! it any more.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::advise::advise_mr;
use super::ah::{AddressHandle, AhOps, AhShell};
use super::attr::{DeviceAttr, PortAttr};
use super::counter::{CounterOps, CounterShell, QpCounter};
use super::cq::{CompletionQueue, CqOps, CqShell};
use super::detail::DetailOps;
use super::event::PortEvent;
use super::link::NewLink;
use super::mad::{self, Answer, MAD_LEN};
use super::mr::{MemoryRegion, MrOps};
use super::mw::{MemoryWindow, MwOps, MwShell};
use super::object::Shell;
use super::pd::{self, PdOps, PdShell, ProtectionDomain};
use super::qp::{errno, QpOps, QpShell, QueuePair};
use super::segment;
use super::srq::{SharedReceiveQueue, SrqOps, SrqShell};
use super::{udata, unsupported};
use crate::bindings;
use crate::net::netdev::NetDev;
use core::ptr::NonNull;
use kernel::error::{from_result, to_result};
use kernel::ffi::{c_char, c_int};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Number of the only port.
pub const PORT: u32 = 1;

/// A GID table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The GID.
    pub gid: [u8; 16],
    /// Its index.
    pub index: u16,
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

    /// Number that ties the device to its user space provider, `enum rdma_driver_id`.
    const DRIVER_ID: u32;
    /// Version of the ABI spoken with the provider.
    const ABI_VERSION: u32;
    /// Description of the node as long as nobody sets one.
    const NODE_DESC: &'static [u8];
    /// Names of the counters of the port, in the order of [`counters`](Self::counters).
    const COUNTERS: &'static [&'static str];

    /// Limits and properties.
    fn attributes(&self) -> DeviceAttr;

    /// State of the port. Process context.
    fn port(&self) -> PortAttr;

    /// P_Key at `index`.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the table.
    fn pkey(&self, index: u16) -> Result<u16>;

    /// Sets the P_Key at `index`; 0 empties the entry. For the administrator, who writes to the
    /// device's sysfs attribute `pkey_table`. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the table or for an invalid key, `EEXIST` if another entry has the key.
    fn set_pkey(&self, index: u16, pkey: u16) -> Result;

    /// Version line for `rdma dev`, at most 31 bytes.
    fn firmware(&self) -> &'static CStr;

    /// A GID was added. Process context.
    ///
    /// # Errors
    ///
    /// Refuses the GID.
    fn add_gid(&self, gid: &GidEntry) -> Result;

    /// A GID was removed.
    fn del_gid(&self, gid: &GidEntry);

    /// Sets the Q_Key violation counter to zero.
    fn reset_qkey_violations(&self);

    /// Fills in the counters, without what is counted in a [`Counter`](Self::Counter). Process context.
    fn counters(&self, to: &mut [u64]);

    /// Answers a management datagram that came to the port, or that the core made to read the
    /// counters of sysfs. Process context. `reply` counts only if it says so.
    fn mad(&self, request: &[u8; MAD_LEN], reply: &mut [u8; MAD_LEN]) -> Answer;

    /// The core has unregistered the device: no call comes any more. Stop everything that runs
    /// on its behalf. Process context.
    fn unregistered(self: &Arc<Self>);
}

/// A counted reference to a device of the core.
///
/// # Invariants
///
/// Holds a reference on the `struct device` inside.
pub struct DeviceHandle {
    raw: NonNull<bindings::ib_device>,
}

// SAFETY: The functions used here may be called from any thread.
unsafe impl Send for DeviceHandle {}
// SAFETY: As above.
unsafe impl Sync for DeviceHandle {}

impl DeviceHandle {
    /// # Safety
    ///
    /// `raw` is alive.
    unsafe fn new(raw: NonNull<bindings::ib_device>) -> Self {
        // SAFETY: By the caller's promise.
        unsafe { bindings::get_device(raw_device(raw)) };
        // INVARIANT: The reference was just taken.
        Self { raw }
    }

    /// Says at debug level why a request of a consumer is refused, and returns the error for it,
    /// `EINVAL`. Any context.
    pub fn refuse(&self, reason: &'static CStr) -> Error {
        // SAFETY: The device is alive by the type invariant.
        unsafe { bindings::rxe_device_dbg(self.raw.as_ptr(), reason.as_char_ptr()) };
        EINVAL
    }

    /// Reports `event` of the port to all consumers. Any context.
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

    /// Starts the unregistration of the device in the background, if it is registered. Any
    /// process context, locks held or not.
    pub fn unregister(&self) {
        self.while_registered(|dev| {
            // SAFETY: The device is registered during the call, and has `dealloc_driver`.
            unsafe { bindings::ib_unregister_device_queued(dev) };
        });
    }

    fn while_registered(&self, f: impl FnOnce(*mut bindings::ib_device)) {
        let dev = self.raw.as_ptr();
        // SAFETY: The memory is alive by the type invariant.
        if unsafe { bindings::rxe_device_try_get(dev) } {
            f(dev);
            // SAFETY: Balances the successful get.
            unsafe { bindings::ib_device_put(dev) };
        }
    }
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        // SAFETY: Gives back the reference of the type invariant.
        unsafe { bindings::put_device(raw_device(self.raw)) };
    }
}

/// The `struct device` in an `ib_device`.
fn raw_device(dev: NonNull<bindings::ib_device>) -> *mut bindings::device {
    // SAFETY: Only computes the address of a field of a live object.
    unsafe { (&raw mut (*dev.as_ptr()).__bindgen_anon_1).cast() }
}

/// The object the core allocates for a device.
type DeviceShell<D> = Shell<bindings::ib_device, Option<Arc<D>>>;

/// The context of a device.
///
/// # Safety
///
/// `dev` is a device registered by [`register`] for `D`, and stays alive for `'a`.
#[inline]
pub(crate) unsafe fn ctx<'a, D: Device>(dev: *mut bindings::ib_device) -> &'a Arc<D> {
    // SAFETY: By the caller's promise; the slot is filled before the device is registered and
    // emptied when all calls are over.
    unsafe { DeviceShell::<D>::slot(dev).as_ref().unwrap_unchecked() }
}

/// Makes a device on top of a network device and registers it.
///
/// `make` is called once with a handle that may be kept in the context.
///
/// # Errors
///
/// `EEXIST` if the network device has an RDMA device of this driver id already, `ENOMEM`, or what
/// `make` or the core returns; everything is undone then.
pub fn register<D: Device>(
    link: &NewLink<'_>,
    module: &'static ThisModule,
    make: impl FnOnce(DeviceHandle) -> Result<Arc<D>>,
) -> Result {
    let ndev = link.as_ptr();
    // SAFETY: The network device is alive during the call.
    let other = unsafe { bindings::ib_device_get_by_netdev(ndev, D::DRIVER_ID) };
    if !other.is_null() {
        // SAFETY: Balances the get.
        unsafe { bindings::ib_device_put(other) };
        return Err(EEXIST);
    }
    // SAFETY: The network namespace lives as long as its device.
    let raw = unsafe {
        bindings::_ib_alloc_device(DeviceShell::<D>::SIZE, bindings::rxe_netdev_net(ndev))
    };
    let raw = NonNull::new(raw).ok_or(ENOMEM)?;
    let dev = raw.as_ptr();
    // SAFETY: A fresh device, zeroed behind the C part.
    unsafe { DeviceShell::<D>::init(dev, None) };
    // SAFETY: The function is good for all devices of this driver, which are the only ones with the
    // attribute.
    unsafe { bindings::rxe_sysfs_setup(Some(Ops::<D>::set_pkey)) };
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
        (*dev).num_comp_vectors = c_int::try_from(bindings::rxe_num_vectors()).unwrap_or(1);
        (*dev).local_dma_lkey = 0;
        (*dev).node_guid = u64::from_ne_bytes(link.guid());
        (*dev).uverbs_cmd_mask |= 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
            | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ;
        for (to, from) in (*dev).node_desc.iter_mut().zip(D::NODE_DESC) {
            *to = *from as c_char;
        }
    }
    let run = || {
        // SAFETY: The device is alive.
        let ctx = make(unsafe { DeviceHandle::new(raw) })?;
        // SAFETY: Nobody but this function knows the device yet.
        unsafe {
            drop(DeviceShell::<D>::take(dev));
            DeviceShell::<D>::init(dev, Some(ctx));
        }
        // SAFETY: Device and network device are alive; the driver unregisters the device when
        // the network device goes.
        to_result(unsafe { bindings::ib_device_set_netdev(dev, ndev, PORT) })?;
        // SAFETY: The device is complete; without a DMA device it works on kernel addresses.
        to_result(unsafe {
            bindings::ib_register_device(dev, link.name().as_char_ptr(), core::ptr::null_mut())
        })
    };
    let result = run();
    if result.is_err() {
        // SAFETY: The device is not registered; calls `dealloc_driver`.
        unsafe { bindings::ib_dealloc_device(dev) };
    }
    result
}

/// Unregisters all devices of a driver and waits until that is done. Process context.
pub fn unregister_all<D: Device>() {
    // SAFETY: All devices of this driver id have `dealloc_driver`: see `refuse_other_driver`.
    unsafe { bindings::ib_unregister_driver(D::DRIVER_ID) };
}

/// Calls `f` with the device of `module` on top of a network device, if there is one. The device
/// stays registered during the call.
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
    // A foreign driver may use the same number.
    // SAFETY: The device is registered while the reference is held.
    let ours = unsafe { (*dev).ops.owner == module.as_ptr() };
    // SAFETY: The device is of this driver, registered and alive.
    let result = ours.then(|| f(unsafe { ctx::<D>(dev) }));
    // SAFETY: Balances the get.
    unsafe { bindings::ib_device_put(dev) };
    result
}

/// The operations of a driver.
pub(crate) struct Ops<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> Ops<D> {
    const TABLE: bindings::ib_device_ops = {
        let mut ops: bindings::ib_device_ops = pin_init::zeroed();
        ops.query_device = Some(Self::query_device);
        ops.modify_device = Some(Self::modify_device);
        ops.get_dev_fw_str = Some(Self::get_dev_fw_str);
        ops.query_port = Some(Self::query_port);
        ops.modify_port = Some(Self::modify_port);
        ops.get_port_immutable = Some(Self::get_port_immutable);
        ops.get_link_layer = Some(Self::get_link_layer);
        ops.query_pkey = Some(Self::query_pkey);
        ops.device_group = &raw const bindings::rxe_sysfs_group;
        ops.add_gid = Some(Self::add_gid);
        ops.del_gid = Some(Self::del_gid);
        ops.alloc_hw_port_stats = Some(Self::alloc_hw_port_stats);
        ops.get_hw_stats = Some(Self::get_hw_stats);
        ops.process_mad = Some(mad::process_mad::<D>);
        ops.dealloc_driver = Some(Self::dealloc_driver);

        ops.alloc_ucontext = Some(pd::alloc_ucontext);
        ops.dealloc_ucontext = Some(pd::dealloc_ucontext);
        ops.disassociate_ucontext = Some(pd::disassociate_ucontext);
        ops.mmap = Some(udata::mmap_callback);
        ops.mmap_free = Some(udata::mmap_free_callback);

        ops.alloc_pd = Some(PdOps::<D>::alloc_pd);
        ops.dealloc_pd = Some(PdOps::<D>::dealloc_pd);

        ops.create_ah = Some(AhOps::<D>::create_ah);
        ops.create_user_ah = Some(AhOps::<D>::create_ah);
        ops.query_ah = Some(AhOps::<D>::query_ah);
        ops.destroy_ah = Some(AhOps::<D>::destroy_ah);

        ops.create_cq = Some(CqOps::<D>::create_cq);
        ops.resize_user_cq = Some(CqOps::<D>::resize_user_cq);
        ops.poll_cq = Some(CqOps::<D>::poll_cq);
        ops.peek_cq = Some(CqOps::<D>::peek_cq);
        ops.modify_cq = Some(CqOps::<D>::modify_cq);
        ops.req_notify_cq = Some(CqOps::<D>::req_notify_cq);
        ops.destroy_cq = Some(CqOps::<D>::destroy_cq);

        ops.create_qp = Some(QpOps::<D>::create_qp);
        ops.modify_qp = Some(QpOps::<D>::modify_qp);
        ops.query_qp = Some(QpOps::<D>::query_qp);
        ops.destroy_qp = Some(QpOps::<D>::destroy_qp);
        ops.attach_mcast = Some(QpOps::<D>::attach_mcast);
        ops.detach_mcast = Some(QpOps::<D>::detach_mcast);
        ops.post_send = Some(QpOps::<D>::post_send);
        ops.post_recv = Some(QpOps::<D>::post_recv);

        ops.create_srq = Some(SrqOps::<D>::create_srq);
        ops.modify_srq = Some(SrqOps::<D>::modify_srq);
        ops.query_srq = Some(SrqOps::<D>::query_srq);
        ops.destroy_srq = Some(SrqOps::<D>::destroy_srq);
        ops.post_srq_recv = Some(SrqOps::<D>::post_srq_recv);

        ops.reg_user_mr = Some(MrOps::<D>::reg_user_mr);
        ops.reg_user_mr_dmabuf = Some(MrOps::<D>::reg_user_mr_dmabuf);
        ops.get_dma_mr = Some(MrOps::<D>::get_dma_mr);
        ops.dereg_mr = Some(MrOps::<D>::dereg_mr);
        ops.rereg_user_mr = Some(MrOps::<D>::rereg_user_mr);
        ops.advise_mr = Some(advise_mr::<D>);
        ops.alloc_mr = Some(MrOps::<D>::alloc_mr);
        ops.map_mr_sg = Some(MrOps::<D>::map_mr_sg);

        ops.alloc_mw = Some(MwOps::<D>::alloc_mw);
        ops.dealloc_mw = Some(MwOps::<D>::dealloc_mw);

        ops.counter_init = Some(CounterOps::<D>::counter_init);
        ops.counter_alloc_stats = Some(CounterOps::<D>::counter_alloc_stats);
        ops.counter_bind_qp = Some(CounterOps::<D>::counter_bind_qp);
        ops.counter_unbind_qp = Some(CounterOps::<D>::counter_unbind_qp);
        ops.counter_dealloc = Some(CounterOps::<D>::counter_dealloc);
        ops.counter_update_stats = Some(CounterOps::<D>::counter_update_stats);
        ops.fill_res_qp_entry = Some(DetailOps::<D>::qp);
        ops.fill_res_cq_entry = Some(DetailOps::<D>::cq);
        ops.fill_res_mr_entry = Some(DetailOps::<D>::mr);

        ops.size_rdma_counter = CounterShell::<D::Counter>::SIZE;
        ops.size_ib_pd = PdShell::<D::Pd>::SIZE;
        ops.size_ib_ah = AhShell::<D::Ah>::SIZE;
        ops.size_ib_mw = MwShell::<D::Mw>::SIZE;
        ops.size_ib_cq = CqShell::<D::Cq>::SIZE;
        ops.size_ib_qp = QpShell::<D::Qp>::SIZE;
        ops.size_ib_srq = SrqShell::<D::Srq>::SIZE;
        ops.size_ib_ucontext = core::mem::size_of::<bindings::ib_ucontext>();
        ops
    };

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn query_device(
        dev: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes a live device; `udata` is null or valid.
            let (ctx, udata) = unsafe { (ctx::<D>(dev), udata.as_ref()) };
            if udata.is_some_and(|u| u.inlen != 0 || u.outlen != 0) {
                return Err(EINVAL);
            }
            // SAFETY: A valid place for the answer.
            ctx.attributes().store(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn modify_device(
        dev: *mut bindings::ib_device,
        mask: c_int,
        modify: *mut bindings::ib_device_modify,
    ) -> c_int {
        let desc = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC as c_int;
        if mask & !desc != 0 {
            return unsupported().to_errno();
        }
        if mask & desc != 0 {
            // SAFETY: Both are valid; the core serialises writers of the description.
            unsafe { (*dev).node_desc = (*modify).node_desc };
        }
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live device and room for `IB_FW_VERSION_NAME_MAX` bytes.
    unsafe extern "C" fn get_dev_fw_str(dev: *mut bindings::ib_device, to: *mut c_char) {
        // SAFETY: The core passes a live device.
        let ctx = unsafe { ctx::<D>(dev) };
        let max = bindings::IB_FW_VERSION_NAME_MAX as usize - 1;
        let bytes = ctx.firmware().to_bytes();
        let bytes = bytes.get(..max).unwrap_or(bytes);
        // SAFETY: There is room for `max` bytes and a terminator.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
            to.add(bytes.len()).write(0);
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn query_port(
        dev: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        if port != PORT {
            return EINVAL.to_errno();
        }
        // SAFETY: The core passes a live device and a valid place for the answer.
        let (ctx, attr) = unsafe { (ctx::<D>(dev), &mut *attr) };
        ctx.port().store(attr);
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn modify_port(
        dev: *mut bindings::ib_device,
        port: u32,
        mask: c_int,
        _modify: *mut bindings::ib_port_modify,
    ) -> c_int {
        let reset = bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR as c_int;
        if port != PORT {
            return EINVAL.to_errno();
        }
        if mask & !reset != 0 {
            return unsupported().to_errno();
        }
        if mask & reset != 0 {
            // SAFETY: The core passes a live device.
            unsafe { ctx::<D>(dev) }.reset_qkey_violations();
        }
        0
    }

    /// # Safety
    ///
    /// Called by the core with a device being registered.
    unsafe extern "C" fn get_port_immutable(
        dev: *mut bindings::ib_device,
        port: u32,
        immutable: *mut bindings::ib_port_immutable,
    ) -> c_int {
        if port != PORT {
            return EINVAL.to_errno();
        }
        // SAFETY: The core passes a live device and a valid place for the answer.
        let (ctx, immutable) = unsafe { (ctx::<D>(dev), &mut *immutable) };
        let attr = ctx.port();
        immutable.pkey_tbl_len = c_int::from(attr.pkey_tbl_len);
        immutable.gid_tbl_len = c_int::try_from(attr.gid_tbl_len).unwrap_or(c_int::MAX);
        immutable.core_cap_flags = bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
        immutable.max_mad_size = bindings::IB_MGMT_MAD_SIZE;
        0
    }

    /// # Safety
    ///
    /// Called by the core.
    unsafe extern "C" fn get_link_layer(
        _dev: *mut bindings::ib_device,
        _port: u32,
    ) -> bindings::rdma_link_layer {
        bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn query_pkey(
        dev: *mut bindings::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        from_result(|| {
            if port != PORT {
                return Err(EINVAL);
            }
            // SAFETY: The core passes a live device.
            let value = unsafe { ctx::<D>(dev) }.pkey(index)?;
            // SAFETY: A valid place for the answer.
            unsafe { *pkey = value };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called for the sysfs attribute of a live device.
    unsafe extern "C" fn set_pkey(dev: *mut bindings::ib_device, index: u16, pkey: u16) -> c_int {
        // SAFETY: By the caller's promise; attributes are there while the device is registered.
        errno(unsafe { ctx::<D>(dev) }.set_pkey(index, pkey))
    }

    /// # Safety
    ///
    /// Called by the core with a valid entry of a live device.
    unsafe extern "C" fn add_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut core::ffi::c_void,
    ) -> c_int {
        // SAFETY: By the caller's promise.
        let (ctx, attr) = unsafe { (ctx::<D>((*attr).device), &*attr) };
        errno(ctx.add_gid(&gid_entry(attr)))
    }

    /// # Safety
    ///
    /// Called by the core with a valid entry of a live device.
    unsafe extern "C" fn del_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut core::ffi::c_void,
    ) -> c_int {
        // SAFETY: By the caller's promise.
        let (ctx, attr) = unsafe { (ctx::<D>((*attr).device), &*attr) };
        ctx.del_gid(&gid_entry(attr));
        0
    }

    /// The names with their terminators.
    const NAMES: &'static [[u8; MAX_NAME]; MAX_COUNTERS] = &{
        assert!(D::COUNTERS.len() <= MAX_COUNTERS);
        let mut names = [[0; MAX_NAME]; MAX_COUNTERS];
        let mut i = 0;
        while i < D::COUNTERS.len() {
            let name = D::COUNTERS[i].as_bytes();
            assert!(name.len() < MAX_NAME);
            let mut k = 0;
            while k < name.len() {
                names[i][k] = name[k];
                k += 1;
            }
            i += 1;
        }
        names
    };

    const DESCS: &'static [bindings::rdma_stat_desc; MAX_COUNTERS] = &{
        let mut descs = [EMPTY_DESC; MAX_COUNTERS];
        let mut i = 0;
        while i < D::COUNTERS.len() {
            descs[i].name = Self::NAMES[i].as_ptr().cast();
            i += 1;
        }
        descs
    };

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn alloc_hw_port_stats(
        _dev: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        Self::new_stats()
    }

    /// Room for the values of all counters; null without memory.
    pub(crate) fn new_stats() -> *mut bindings::rdma_hw_stats {
        // SAFETY: The descriptions are static and at least as many as stated.
        unsafe {
            bindings::rdma_alloc_hw_stats_struct(
                Self::DESCS.as_ptr(),
                D::COUNTERS.len() as c_int,
                STATS_LIFESPAN_MS,
            )
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live device and its statistics, which are locked.
    unsafe extern "C" fn get_hw_stats(
        dev: *mut bindings::ib_device,
        stats: *mut bindings::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        if port != PORT || stats.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: The core passes a live device; the values were allocated for this many
        // counters, and the core holds their lock.
        let (ctx, values) = unsafe {
            let values = bindings::rxe_hw_stats_values(stats);
            (
                ctx::<D>(dev),
                core::slice::from_raw_parts_mut(values, D::COUNTERS.len()),
            )
        };
        ctx.counters(values);
        D::COUNTERS.len() as c_int
    }

    /// # Safety
    ///
    /// Called by the core once, when no other operation runs or will run.
    unsafe extern "C" fn dealloc_driver(dev: *mut bindings::ib_device) {
        // SAFETY: The last use of the slot.
        if let Some(ctx) = unsafe { DeviceShell::<D>::take(dev) } {
            ctx.unregistered();
        }
    }
}

/// How long the core may show cached counters, in milliseconds.
const STATS_LIFESPAN_MS: usize = 10;

/// Most counters of a device.
const MAX_COUNTERS: usize = 96;

/// Room for the name of a counter and its terminator.
const MAX_NAME: usize = 48;

const EMPTY_DESC: bindings::rdma_stat_desc = bindings::rdma_stat_desc {
    name: core::ptr::null(),
    flags: 0,
    priv_: core::ptr::null(),
};

fn gid_entry(attr: &bindings::ib_gid_attr) -> GidEntry {
    // SAFETY: All members of the union are plain bytes.
    let gid = unsafe { *attr.gid.raw.as_ref() };
    GidEntry {
        gid,
        index: attr.index,
    }
}
