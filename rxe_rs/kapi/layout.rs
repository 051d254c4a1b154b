// SPDX-License-Identifier: GPL-2.0
//! Compares the layout of C structures as gcc and as bindgen see them.
//!
//! The kernel is built by gcc; the bindings come from clang's view of the same headers. The C
//! side exports a table of sizes and offsets, this file holds the Rust twin in the same order.

use crate::bindings;
use core::mem::{
    offset_of,
    size_of, //
};
use kernel::prelude::*;

macro_rules! rust_layout {
    ($($ty:ident $(. $field:ident)?),* $(,)?) => {
        [$(rust_layout!(@one $ty $($field)?)),*]
    };
    (@one $ty:ident) => { size_of::<bindings::$ty>() };
    (@one $ty:ident $field:ident) => { offset_of!(bindings::$ty, $field) };
}

const LAYOUT: &[usize] = &rust_layout![
    ib_device,
    ib_device.ops,
    ib_device.num_comp_vectors,
    ib_device.__bindgen_anon_1,
    ib_device.uverbs_cmd_mask,
    ib_device.node_desc,
    ib_device.node_guid,
    ib_device.local_dma_lkey,
    ib_device.node_type,
    ib_device.phys_port_cnt,
    ib_device.attrs,
    ib_device.driver_def,
    ib_device_ops,
    ib_device_ops.post_send,
    ib_device_ops.query_device,
    ib_device_ops.create_qp,
    ib_device_ops.reg_user_mr,
    ib_device_ops.dealloc_driver,
    ib_device_ops.size_ib_ah,
    ib_device_ops.size_ib_cq,
    ib_device_ops.size_ib_pd,
    ib_device_ops.size_ib_qp,
    ib_device_ops.size_ib_ucontext,
    ib_device_attr,
    ib_device_attr.max_pkeys,
    ib_port_attr,
    ib_port_attr.active_speed,
    ib_port_immutable,
    ib_device_modify,
    ib_ucontext,
    ib_ucontext.device,
    ib_pd,
    ib_ah,
    ib_ah.pd,
    ib_cq,
    ib_cq.comp_handler,
    ib_cq.cq_context,
    ib_cq.cqe,
    ib_cq_init_attr,
    ib_srq,
    ib_srq_init_attr,
    ib_srq_attr,
    ib_qp,
    ib_qp.uobject,
    ib_qp.event_handler,
    ib_qp.qp_num,
    ib_qp.qp_type,
    ib_qp.counter,
    rdma_counter,
    rdma_counter.id,
    ib_qp_init_attr,
    ib_qp_init_attr.qp_type,
    ib_qp_attr,
    ib_qp_attr.ah_attr,
    ib_qp_attr.timeout,
    ib_mr,
    ib_mr.lkey,
    ib_mr.iova,
    ib_mr.length,
    ib_mr.page_size,
    ib_mw,
    ib_mw.rkey,
    ib_mw.type_,
    ib_reg_wr,
    ib_reg_wr.mr,
    ib_gid_attr,
    rdma_ah_attr,
    rdma_ah_init_attr,
    ib_wc,
    ib_send_wr,
    ib_rdma_wr,
    ib_atomic_wr,
    ib_sge,
    ib_ud_wr,
    ib_recv_wr,
    ib_event,
    ib_udata,
    rdma_user_mmap_entry,
    rdma_hw_stats,
    rdma_hw_stats.value,
    rdma_link_ops,
    scatterlist,
    work_struct,
    sk_buff,
    rxe_rs_mr_add,
    rxe_rs_mr_remove,
    rxe_rs_mr_state,
    rxe_rs_mr_tie,
];

/// Checks that the structures that this crate shares with the kernel have the layout that it was
/// built with.
///
/// # Context
///
/// Process context; prints to the log.
///
/// # Errors
///
/// `EINVAL`, with one line in the log per difference: the module must not be loaded.
pub fn check() -> Result {
    // SAFETY: `rxe_rs_layout_len` is a constant of the C side.
    let c_len = unsafe { bindings::rxe_rs_layout_len };
    if c_len != LAYOUT.len() {
        pr_err!(
            "layout tables differ in length: {} and {}\n",
            c_len,
            LAYOUT.len()
        );
        return Err(EINVAL);
    }
    let mut same = true;
    for (i, &rust) in LAYOUT.iter().enumerate() {
        // SAFETY: `i` is below the length of the C array, whose names are string literals.
        let (name, c) = unsafe {
            let entry = &raw const bindings::rxe_rs_layout;
            let entry = &*entry.cast::<bindings::rxe_rs_layout_entry>().add(i);
            (CStr::from_char_ptr(entry.name), entry.value)
        };
        if c != rust {
            pr_err!("layout of {} differs: {} in C, {} here\n", name, c, rust);
            same = false;
        }
    }
    if same {
        Ok(())
    } else {
        Err(EINVAL)
    }
}
