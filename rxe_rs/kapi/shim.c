// SPDX-License-Identifier: GPL-2.0
/*
 * Static inlines for the kapi crate (RDMA part) and the layout table.
 */
#include "bindings_helper.h"

/*
 * The kernel was built by gcc, the bindings were made by clang: compare what matters.
 * The order is that of `layout.rs`.
 */
#define RXE_SIZE(t) { "sizeof " #t, sizeof(struct t) }
#define RXE_OFF(t, f) { #t "." #f, offsetof(struct t, f) }

const struct rxe_layout_entry rxe_layout[] = {
	RXE_SIZE(ib_device),
	RXE_OFF(ib_device, ops),
	RXE_OFF(ib_device, num_comp_vectors),
	RXE_OFF(ib_device, dev),
	RXE_OFF(ib_device, uverbs_cmd_mask),
	RXE_OFF(ib_device, node_desc),
	RXE_OFF(ib_device, node_guid),
	RXE_OFF(ib_device, local_dma_lkey),
	RXE_OFF(ib_device, node_type),
	RXE_OFF(ib_device, phys_port_cnt),
	RXE_OFF(ib_device, attrs),
	RXE_SIZE(ib_device_ops),
	RXE_OFF(ib_device_ops, post_send),
	RXE_OFF(ib_device_ops, query_device),
	RXE_OFF(ib_device_ops, create_qp),
	RXE_OFF(ib_device_ops, reg_user_mr),
	RXE_OFF(ib_device_ops, dealloc_driver),
	RXE_OFF(ib_device_ops, size_ib_ah),
	RXE_OFF(ib_device_ops, size_ib_cq),
	RXE_OFF(ib_device_ops, size_ib_pd),
	RXE_OFF(ib_device_ops, size_ib_qp),
	RXE_OFF(ib_device_ops, size_ib_ucontext),
	RXE_SIZE(ib_device_attr),
	RXE_OFF(ib_device_attr, max_pkeys),
	RXE_SIZE(ib_port_attr),
	RXE_OFF(ib_port_attr, active_speed),
	RXE_SIZE(ib_port_immutable),
	RXE_SIZE(ib_ucontext),
	RXE_SIZE(ib_pd),
	RXE_SIZE(ib_ah),
	RXE_OFF(ib_ah, pd),
	RXE_SIZE(ib_cq),
	RXE_OFF(ib_cq, comp_handler),
	RXE_OFF(ib_cq, cq_context),
	RXE_SIZE(ib_qp),
	RXE_OFF(ib_qp, uobject),
	RXE_OFF(ib_qp, event_handler),
	RXE_OFF(ib_qp, qp_num),
	RXE_OFF(ib_qp, qp_type),
	RXE_SIZE(ib_qp_init_attr),
	RXE_OFF(ib_qp_init_attr, qp_type),
	RXE_SIZE(ib_qp_attr),
	RXE_OFF(ib_qp_attr, ah_attr),
	RXE_OFF(ib_qp_attr, timeout),
	RXE_SIZE(ib_mr),
	RXE_OFF(ib_mr, lkey),
	RXE_SIZE(ib_umem),
	RXE_OFF(ib_umem, sgt_append),
	RXE_SIZE(ib_gid_attr),
	RXE_SIZE(rdma_ah_attr),
	RXE_SIZE(ib_wc),
	RXE_SIZE(ib_send_wr),
	RXE_SIZE(ib_rdma_wr),
	RXE_SIZE(ib_ud_wr),
	RXE_SIZE(ib_recv_wr),
	RXE_SIZE(ib_event),
	RXE_SIZE(ib_udata),
	RXE_SIZE(rdma_user_mmap_entry),
	RXE_SIZE(rdma_hw_stats),
	RXE_OFF(rdma_hw_stats, value),
	RXE_SIZE(rdma_link_ops),
	RXE_SIZE(scatterlist),
	RXE_SIZE(work_struct),
	RXE_SIZE(net_device),
	RXE_SIZE(sk_buff),
};

const size_t rxe_layout_len = ARRAY_SIZE(rxe_layout);
