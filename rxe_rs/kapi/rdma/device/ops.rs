// SPDX-License-Identifier: GPL-2.0
//! The table of operations that the core calls, and those of them that are about the device or
//! its port.

use super::{
    ctx,
    Device,
    DeviceObject,
    GidEntry,
    PORT, //
};
use crate::{
    bindings,
    error::errno,
    net::netdev::NetId,
    rdma::{
        advise::advise_mr_callback,
        ah::{
            AhObject, //
            AhOps,
        },
        counter::{
            CounterObject, //
            CounterOps,
        },
        cq::{
            CqObject, //
            CqOps,
        },
        detail::DetailOps,
        mad,
        mr::MrOps,
        mw::{
            MwObject, //
            MwOps,
        },
        operation::Operation,
        pd::{
            self,
            PdObject, //
            PdOps,
        },
        qp::{
            QpObject, //
            QpOps,
        },
        srq::{
            SrqObject, //
            SrqOps,
        },
        udata, //
    },
    series::unsupported,
};
use kernel::{
    ffi::{
        c_char,
        c_int, //
    },
    prelude::*, //
};

/// The operations of a driver.
pub(crate) struct Ops<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> Ops<D> {
    pub(super) const TABLE: bindings::ib_device_ops = {
        let mut ops: bindings::ib_device_ops = pin_init::zeroed();
        ops.query_device = Some(Self::query_device_callback);
        ops.modify_device = Some(Self::modify_device_callback);
        ops.get_dev_fw_str = Some(Self::get_dev_fw_str_callback);
        ops.query_port = Some(Self::query_port_callback);
        ops.modify_port = Some(Self::modify_port_callback);
        ops.get_port_immutable = Some(Self::get_port_immutable_callback);
        ops.get_link_layer = Some(Self::get_link_layer_callback);
        ops.query_pkey = Some(Self::query_pkey_callback);
        ops.device_group = &raw const bindings::rxe_rs_sysfs_group;
        ops.add_gid = Some(Self::add_gid_callback);
        ops.del_gid = Some(Self::del_gid_callback);
        ops.alloc_hw_port_stats = Some(Self::alloc_hw_port_stats_callback);
        ops.get_hw_stats = Some(Self::get_hw_stats_callback);
        ops.process_mad = Some(mad::process_mad_callback::<D>);
        ops.enable_driver = Some(Self::enable_driver_callback);
        ops.dealloc_driver = Some(Self::dealloc_driver_callback);

        ops.alloc_ucontext = Some(pd::alloc_ucontext_callback);
        ops.dealloc_ucontext = Some(pd::dealloc_ucontext_callback);
        ops.disassociate_ucontext = Some(pd::disassociate_ucontext_callback);
        ops.mmap = Some(udata::mmap_callback);
        ops.mmap_free = Some(udata::mmap_free_callback);

        ops.alloc_pd = Some(PdOps::<D>::alloc_pd_callback);
        ops.dealloc_pd = Some(PdOps::<D>::dealloc_pd_callback);

        ops.create_ah = Some(AhOps::<D>::create_ah_callback);
        ops.create_user_ah = Some(AhOps::<D>::create_ah_callback);
        ops.modify_ah = Some(AhOps::<D>::modify_ah_callback);
        ops.query_ah = Some(AhOps::<D>::query_ah_callback);
        ops.destroy_ah = Some(AhOps::<D>::destroy_ah_callback);

        ops.create_cq = Some(CqOps::<D>::create_cq_callback);
        ops.resize_user_cq = Some(CqOps::<D>::resize_user_cq_callback);
        ops.poll_cq = Some(CqOps::<D>::poll_cq_callback);
        ops.peek_cq = Some(CqOps::<D>::peek_cq_callback);
        ops.modify_cq = Some(CqOps::<D>::modify_cq_callback);
        ops.req_notify_cq = Some(CqOps::<D>::req_notify_cq_callback);
        ops.destroy_cq = Some(CqOps::<D>::destroy_cq_callback);

        ops.create_qp = Some(QpOps::<D>::create_qp_callback);
        ops.modify_qp = Some(QpOps::<D>::modify_qp_callback);
        ops.query_qp = Some(QpOps::<D>::query_qp_callback);
        ops.destroy_qp = Some(QpOps::<D>::destroy_qp_callback);
        ops.attach_mcast = Some(QpOps::<D>::attach_mcast_callback);
        ops.detach_mcast = Some(QpOps::<D>::detach_mcast_callback);
        ops.post_send = Some(QpOps::<D>::post_send_callback);
        ops.post_recv = Some(QpOps::<D>::post_recv_callback);

        ops.create_srq = Some(SrqOps::<D>::create_srq_callback);
        ops.modify_srq = Some(SrqOps::<D>::modify_srq_callback);
        ops.query_srq = Some(SrqOps::<D>::query_srq_callback);
        ops.destroy_srq = Some(SrqOps::<D>::destroy_srq_callback);
        ops.post_srq_recv = Some(SrqOps::<D>::post_srq_recv_callback);

        ops.reg_user_mr = Some(MrOps::<D>::reg_user_mr_callback);
        ops.reg_user_mr_dmabuf = Some(MrOps::<D>::reg_user_mr_dmabuf_callback);
        ops.get_dma_mr = Some(MrOps::<D>::get_dma_mr_callback);
        ops.dereg_mr = Some(MrOps::<D>::dereg_mr_callback);
        ops.rereg_user_mr = Some(MrOps::<D>::rereg_user_mr_callback);
        ops.advise_mr = Some(advise_mr_callback::<D>);
        ops.alloc_mr = Some(MrOps::<D>::alloc_mr_callback);
        ops.map_mr_sg = Some(MrOps::<D>::map_mr_sg_callback);

        ops.alloc_mw = Some(MwOps::<D>::alloc_mw_callback);
        ops.dealloc_mw = Some(MwOps::<D>::dealloc_mw_callback);

        ops.counter_init = Some(CounterOps::<D>::counter_init_callback);
        ops.counter_alloc_stats = Some(CounterOps::<D>::counter_alloc_stats_callback);
        ops.counter_bind_qp = Some(CounterOps::<D>::counter_bind_qp_callback);
        ops.counter_unbind_qp = Some(CounterOps::<D>::counter_unbind_qp_callback);
        ops.counter_dealloc = Some(CounterOps::<D>::counter_dealloc_callback);
        ops.counter_update_stats = Some(CounterOps::<D>::counter_update_stats_callback);
        ops.fill_res_qp_entry = Some(DetailOps::<D>::fill_res_qp_entry_callback);
        ops.fill_res_cq_entry = Some(DetailOps::<D>::fill_res_cq_entry_callback);
        ops.fill_res_mr_entry = Some(DetailOps::<D>::fill_res_mr_entry_callback);

        ops.size_rdma_counter = CounterObject::<D::Counter>::SIZE;
        ops.size_ib_pd = PdObject::<D::Pd>::SIZE;
        ops.size_ib_ah = AhObject::<D::Ah>::SIZE;
        ops.size_ib_mw = MwObject::<D::Mw>::SIZE;
        ops.size_ib_cq = CqObject::<D::Cq>::SIZE;
        ops.size_ib_qp = QpObject::<D::Qp>::SIZE;
        ops.size_ib_srq = SrqObject::<D::Srq>::SIZE;
        ops.size_ib_ucontext = core::mem::size_of::<bindings::ib_ucontext>();
        ops
    };

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn query_device_callback(
        dev: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core passes a live device.
        let operation = unsafe { Operation::new(dev, c"query_device") };
        operation.run(|| {
            // SAFETY: The core passes a live device; `udata` is null or valid.
            let (ctx, udata) = unsafe { (ctx::<D>(dev), udata.as_ref()) };
            if udata.is_some_and(|u| u.inlen != 0 || u.outlen != 0) {
                return Err(EINVAL);
            }
            // SAFETY: A valid place for the response.
            ctx.attributes().store(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn modify_device_callback(
        dev: *mut bindings::ib_device,
        mask: c_int,
        modify: *mut bindings::ib_device_modify,
    ) -> c_int {
        let desc = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC as c_int;
        let guid = bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_SYS_IMAGE_GUID as c_int;
        if mask & !(desc | guid) != 0 {
            // SAFETY: The core passes a live device.
            return unsafe { Operation::new(dev, c"modify_device") }.errno(Err(unsupported()));
        }
        if mask & guid != 0 {
            // SAFETY: Both are valid. The core reads its copy without a lock.
            unsafe {
                let new = (*modify).sys_image_guid.to_be_bytes();
                ctx::<D>(dev).set_system_image(new);
                (*dev).attrs.sys_image_guid = u64::from_ne_bytes(new);
            }
        }
        if mask & desc != 0 {
            // SAFETY: Both are valid; the core serializes writers of the description.
            unsafe { (*dev).node_desc = (*modify).node_desc };
        }
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live device and a buffer of `IB_FW_VERSION_NAME_MAX` bytes.
    unsafe extern "C" fn get_dev_fw_str_callback(dev: *mut bindings::ib_device, to: *mut c_char) {
        // SAFETY: The core passes a live device.
        let ctx = unsafe { ctx::<D>(dev) };
        let max = bindings::IB_FW_VERSION_NAME_MAX as usize - 1;
        let bytes = ctx.firmware().to_bytes();
        let bytes = bytes.get(..max).unwrap_or(bytes);
        // SAFETY: The buffer holds `max` bytes and a terminator.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len());
            to.add(bytes.len()).write(0);
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn query_port_callback(
        dev: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        if port != PORT {
            return EINVAL.to_errno();
        }
        // SAFETY: The core passes a live device and a valid place for the response.
        let (ctx, attr) = unsafe { (ctx::<D>(dev), &mut *attr) };
        ctx.port().store(attr);
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn modify_port_callback(
        dev: *mut bindings::ib_device,
        port: u32,
        mask: c_int,
        _modify: *mut bindings::ib_port_modify,
    ) -> c_int {
        let reset = bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR as c_int;
        // SAFETY: The core passes a live device.
        let operation = unsafe { Operation::new(dev, c"modify_port") };
        if port != PORT {
            return operation.errno(Err(EINVAL));
        }
        if mask & !reset != 0 {
            return operation.errno(Err(unsupported()));
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
    unsafe extern "C" fn get_port_immutable_callback(
        dev: *mut bindings::ib_device,
        port: u32,
        immutable: *mut bindings::ib_port_immutable,
    ) -> c_int {
        if port != PORT {
            return EINVAL.to_errno();
        }
        // SAFETY: The core passes a live device and a valid place for the response.
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
    unsafe extern "C" fn get_link_layer_callback(
        _dev: *mut bindings::ib_device,
        _port: u32,
    ) -> bindings::rdma_link_layer {
        bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn query_pkey_callback(
        dev: *mut bindings::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        // SAFETY: The core passes a live device.
        let operation = unsafe { Operation::new(dev, c"query_pkey") };
        operation.run(|| {
            if port != PORT {
                return Err(EINVAL);
            }
            // SAFETY: The core passes a live device.
            let value = unsafe { ctx::<D>(dev) }.pkey(index)?;
            // SAFETY: A valid place for the response.
            unsafe { *pkey = value };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called for the sysfs attribute of a live device.
    pub(super) unsafe extern "C" fn set_pkey_callback(
        dev: *mut bindings::ib_device,
        index: c_int,
        pkey: u16,
    ) -> c_int {
        // RXE_RS_PKEY_FREE is negative.
        let index = u16::try_from(index).ok();
        // SAFETY: By the caller's guarantee; attributes are there while the device is registered.
        let operation = unsafe { Operation::new(dev, c"pkey_table") };
        // SAFETY: As above.
        operation.errno(unsafe { ctx::<D>(dev) }.set_pkey(index, pkey))
    }

    /// # Safety
    ///
    /// Called by the core with a valid entry of a live device.
    unsafe extern "C" fn add_gid_callback(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut core::ffi::c_void,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
        let (ctx, attr) = unsafe { (ctx::<D>((*attr).device), &*attr) };
        // SAFETY: As above.
        errno(ctx.add_gid(&unsafe { gid_entry(attr) }))
    }

    /// # Safety
    ///
    /// Called by the core with a valid entry of a live device.
    unsafe extern "C" fn del_gid_callback(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut core::ffi::c_void,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
        let (ctx, attr) = unsafe { (ctx::<D>((*attr).device), &*attr) };
        // SAFETY: As above.
        ctx.del_gid(&unsafe { gid_entry(attr) });
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live device.
    unsafe extern "C" fn enable_driver_callback(dev: *mut bindings::ib_device) -> c_int {
        // SAFETY: By the caller's guarantee; the slot was set before the device was registered.
        errno(unsafe { ctx::<D>(dev) }.enable())
    }

    /// # Safety
    ///
    /// Called by the core once, when no other operation runs or will run.
    unsafe extern "C" fn dealloc_driver_callback(dev: *mut bindings::ib_device) {
        // SAFETY: The last use of the slot.
        if let Some(ctx) = unsafe { DeviceObject::<D>::take(dev) } {
            ctx.unregistered();
        }
    }
}

/// # Safety
///
/// `attr` is an entry that the core adds or removes.
unsafe fn gid_entry(attr: &bindings::ib_gid_attr) -> GidEntry {
    let mut net = 0;
    // SAFETY: By the caller's guarantee; the number is ours.
    let ifindex = unsafe { bindings::rxe_rs_gid_netdev(attr, &mut net) };
    GidEntry {
        // SAFETY: All members of the union are plain bytes.
        gid: unsafe { *attr.gid.raw.as_ref() },
        index: attr.index,
        ifindex,
        net: NetId(net),
    }
}
