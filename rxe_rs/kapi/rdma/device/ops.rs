// SPDX-License-Identifier: GPL-2.0
//! The table of operations that the core calls, and those of them that are about the device or
//! its port.

use super::{
    ctx,
    Device,
    DeviceShell,
    GidEntry,
    PORT, //
};
use crate::{
    bindings,
    rdma::{
        advise::advise_mr,
        ah::{
            AhOps,
            AhShell, //
        },
        counter::{
            CounterOps,
            CounterShell, //
        },
        cq::{
            CqOps,
            CqShell, //
        },
        detail::DetailOps,
        mad,
        mr::MrOps,
        mw::{
            MwOps,
            MwShell, //
        },
        operation::Operation,
        pd::{
            self,
            PdOps,
            PdShell, //
        },
        qp::{
            errno,
            QpOps,
            QpShell, //
        },
        srq::{
            SrqOps,
            SrqShell, //
        },
        udata,
        unsupported, //
    },
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
        ops.query_device = Some(Self::query_device);
        ops.modify_device = Some(Self::modify_device);
        ops.get_dev_fw_str = Some(Self::get_dev_fw_str);
        ops.query_port = Some(Self::query_port);
        ops.modify_port = Some(Self::modify_port);
        ops.get_port_immutable = Some(Self::get_port_immutable);
        ops.get_link_layer = Some(Self::get_link_layer);
        ops.query_pkey = Some(Self::query_pkey);
        ops.device_group = &raw const bindings::rxe_rs_sysfs_group;
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
        ops.modify_ah = Some(AhOps::<D>::modify_ah);
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
    unsafe extern "C" fn modify_device(
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
            // SAFETY: Both are valid. The core's copy is read without a lock by whoever shows it.
            unsafe {
                let new = (*modify).sys_image_guid.to_be_bytes();
                ctx::<D>(dev).set_system_image(new);
                (*dev).attrs.sys_image_guid = u64::from_ne_bytes(new);
            }
        }
        if mask & desc != 0 {
            // SAFETY: Both are valid; the core serialises writers of the description.
            unsafe { (*dev).node_desc = (*modify).node_desc };
        }
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live device and a buffer of `IB_FW_VERSION_NAME_MAX` bytes.
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
        // SAFETY: The core passes a live device and a valid place for the response.
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
    unsafe extern "C" fn get_port_immutable(
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
    pub(super) unsafe extern "C" fn set_pkey(
        dev: *mut bindings::ib_device,
        index: u16,
        pkey: u16,
    ) -> c_int {
        // SAFETY: By the caller's guarantee; attributes are there while the device is registered.
        let operation = unsafe { Operation::new(dev, c"pkey_table") };
        // SAFETY: As above.
        operation.errno(unsafe { ctx::<D>(dev) }.set_pkey(index, pkey))
    }

    /// # Safety
    ///
    /// Called by the core with a valid entry of a live device.
    unsafe extern "C" fn add_gid(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut core::ffi::c_void,
    ) -> c_int {
        // SAFETY: By the caller's guarantee.
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
        // SAFETY: By the caller's guarantee.
        let (ctx, attr) = unsafe { (ctx::<D>((*attr).device), &*attr) };
        ctx.del_gid(&gid_entry(attr));
        0
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

fn gid_entry(attr: &bindings::ib_gid_attr) -> GidEntry {
    // SAFETY: All members of the union are plain bytes.
    let gid = unsafe { *attr.gid.raw.as_ref() };
    GidEntry {
        gid,
        index: attr.index,
    }
}
