// SPDX-License-Identifier: GPL-2.0
/* Begin and end of a measurement, and functions that post requests. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/ktime.h>
#include "kbench.h"

/* Longer than any measurement takes. */
#define PATIENCE (120 * HZ)

static struct {
	ktime_t start;
	/* The first status or error number that is not success. */
	int error;
	struct completion done;
} run_state;

void run_begin(void)
{
	run_state.error = 0;
	init_completion(&run_state.done);
	run_state.start = ktime_get();
}

void run_end(int error)
{
	if (error && !run_state.error)
		run_state.error = error;
	complete(&run_state.done);
}

s64 run_result(int error, u32 count)
{
	s64 took;

	if (!error && !wait_for_completion_timeout(&run_state.done, PATIENCE))
		error = -ETIMEDOUT;
	took = ktime_to_ns(ktime_sub(ktime_get(), run_state.start));
	error = error ?: run_state.error;
	if (error > 0) {
		pr_info("completion status %d\n", error);
		error = -EIO;
	}
	if (error)
		return error;
	return div_u64(took, count);
}

void end_drain(struct end *e)
{
	/* A QP that was not connected has no requests, and cannot enter ERR. */
	if (!IS_ERR_OR_NULL(e->qp) && !set_state(e, IB_QPS_ERR))
		ib_drain_qp(e->qp);
}

int post_request(struct end *from, const struct end *to, enum ib_wr_opcode op, u32 size,
		 struct ib_cqe *cqe)
{
	struct ib_sge sge = {
		.addr = from->addr, .length = size, .lkey = from->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = cqe, .sg_list = &sge, .num_sge = 1, .opcode = op,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = to->addr,
		.rkey = to->pd->unsafe_global_rkey,
	};

	return ib_post_send(from->qp, &wr.wr, NULL);
}

int post_receive(struct end *e, u32 size, struct ib_cqe *cqe)
{
	struct ib_sge sge = { .addr = e->addr, .length = size, .lkey = e->pd->local_dma_lkey };
	struct ib_recv_wr wr = { .wr_cqe = cqe, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(e->qp, &wr, NULL);
}
