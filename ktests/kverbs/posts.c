// SPDX-License-Identifier: GPL-2.0
/* Invalid requests, posting in wrong states and contexts, and destruction of objects in use. */
#include <linux/delay.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include "kverbs.h"

/* More than twice the size of the queues. */
#define MANY 200

/*
 * An opcode that kernel consumers cannot use, in the middle of a chain: requests before it are
 * executed, requests after it are not.
 */
static void opcodes(struct pair *p)
{
	const enum ib_wr_opcode ops[] = {
		IB_WR_RDMA_READ_WITH_INV, IB_WR_MASKED_ATOMIC_CMP_AND_SWP,
		IB_WR_MASKED_ATOMIC_FETCH_AND_ADD, IB_WR_LSO, IB_WR_BIND_MW, IB_WR_FLUSH,
		IB_WR_ATOMIC_WRITE, IB_WR_REG_MR_INTEGRITY, IB_WR_RESERVED1,
	};
	struct ib_rdma_wr chain[3] = {};
	const struct ib_send_wr *bad;
	struct ib_wc wc;
	int i, n;

	for (n = 0; n < 3; n++) {
		chain[n].wr.next = n < 2 ? &chain[n + 1].wr : NULL;
		chain[n].wr.wr_id = n;
		chain[n].wr.opcode = IB_WR_RDMA_WRITE;
		chain[n].wr.send_flags = IB_SEND_SIGNALED;
	}
	for (i = 0; i < ARRAY_SIZE(ops); i++) {
		bad = NULL;
		chain[1].wr.opcode = ops[i];
		if (!is("post_send", ib_post_send(p->a.qp, &chain[0].wr, &bad), -EINVAL))
			pr_info("# opcode %d\n", ops[i]);
		is("bad_wr", bad == &chain[1].wr, true);
		is("post_send", post_empty(&p->a, 9, 1), 0);
		is("completion", take(&p->a, &wc), 0);
		is("request before it", wc.wr_id, 0);
		is("status", wc.status, IB_WC_SUCCESS);
		is("completion", take(&p->a, &wc), 0);
		is("request posted afterwards", wc.wr_id, 9);
		is("status", wc.status, IB_WC_SUCCESS);
	}
}

static void too_many_sges(struct pair *p)
{
	struct ib_sge *sges = kcalloc(64, sizeof(*sges), GFP_KERNEL);
	const int counts[] = { 3, 32, 33, 64 };
	const struct ib_recv_wr *bad_recv;
	const struct ib_send_wr *bad_send;
	struct ib_recv_wr recv = { .sg_list = sges };
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .sg_list = sges };
	int i;

	if (!is("memory", !sges, 0))
		return;
	for (i = 0; i < ARRAY_SIZE(counts); i++) {
		recv.num_sge = counts[i];
		send.num_sge = counts[i];
		bad_recv = NULL;
		bad_send = NULL;
		is("post_recv", ib_post_recv(p->b.qp, &recv, &bad_recv), -EINVAL);
		is("bad_wr", bad_recv == &recv, true);
		is("post_send", ib_post_send(p->a.qp, &send, &bad_send), -EINVAL);
		is("bad_wr", bad_send == &send, true);
	}
	/* The QP has two SGEs. */
	recv.num_sge = 2;
	send.num_sge = 2;
	is("post_recv", ib_post_recv(p->b.qp, &recv, NULL), 0);
	is("SEND", run(&p->a, &send), IB_WC_SUCCESS);
	kfree(sges);
}

struct odd {
	char first;
	struct ib_sge sges[2];
} __packed;

/* A misaligned SGE list: the iSER initiator has those of its receives in packed descriptors. */
static void packed(struct pair *p)
{
	struct odd *odd = kcalloc(2, sizeof(*odd), GFP_KERNEL);
	struct ib_recv_wr recv = { .num_sge = 2 };
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .num_sge = 2 };
	struct end *ends[] = { &p->a, &p->b };
	struct ib_wc wc;
	int i, n;

	if (!is("memory", !odd, 0))
		return;
	for (i = 0; i < 2; i++) {
		for (n = 0; n < 2; n++) {
			odd[i].sges[n].addr = ends[i]->addr + 4096 * n;
			odd[i].sges[n].length = 4000;
			odd[i].sges[n].lkey = ends[i]->pd->local_dma_lkey;
		}
	}
	send.sg_list = (void *)&odd[0].sges;
	recv.sg_list = (void *)&odd[1].sges;
	fill(p->a.buf, 1000, 7, 0);
	fill(p->a.buf + 4096, 1000, 7, 1000);
	is("post_recv", ib_post_recv(p->b.qp, &recv, NULL), 0);
	is("SEND", run(&p->a, &send), IB_WC_SUCCESS);
	is("completion", take(&p->b, &wc), 0);
	is("bytes", wc.byte_len, 8000);
	is("first part", matches(p->b.buf, 1000, 7, 0), true);
	is("second part", matches(p->b.buf + 4096, 1000, 7, 1000), true);
	kfree(odd);
}

/* Requests are flushed in the order in which they were posted. */
static void expect_flushed(struct end *e, u32 count)
{
	struct ib_wc wc;
	u32 i;

	for (i = 0; i < count; i++) {
		if (!is("flushed", take(e, &wc), 0))
			return;
		is("status", wc.status, IB_WC_WR_FLUSH_ERR);
		is("order", wc.wr_id, i);
	}
	is("no more", ib_poll_cq(e->cq, 1, &wc), 0);
}

static void full_queues(struct pair *p)
{
	struct ib_send_wr *sends = kcalloc(MANY, sizeof(*sends), GFP_KERNEL);
	struct ib_recv_wr *recvs = kcalloc(MANY, sizeof(*recvs), GFP_KERNEL);
	const struct ib_send_wr *bad_send = NULL;
	const struct ib_recv_wr *bad_recv = NULL;
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	int i, posted;

	if (!is("memory", !sends || !recvs, 0))
		goto free;
	for (i = 0; i < MANY; i++) {
		sends[i].wr_id = i;
		sends[i].opcode = IB_WR_SEND;
		recvs[i].wr_id = i;
		if (i) {
			sends[i - 1].next = &sends[i];
			recvs[i - 1].next = &recvs[i];
		}
	}
	is("query_qp", ib_query_qp(p->a.qp, &attr, IB_QP_CAP, &init), 0);
	is("max_send_wr", attr.cap.max_send_wr >= 32, true);
	is("max_recv_wr", attr.cap.max_recv_wr >= 32, true);

	is("post_recv", ib_post_recv(p->a.qp, recvs, &bad_recv), -ENOMEM);
	posted = bad_recv ? bad_recv - recvs : 0;
	is("receives posted", posted, attr.cap.max_recv_wr);
	is("ERR", set_state(&p->a, IB_QPS_ERR), 0);
	expect_flushed(&p->a, posted);

	is("connecting again", pair_connect(p), 0);
	/* The peer has no receives. The queue may be larger than requested, but it is finite. */
	is("post_send", ib_post_send(p->a.qp, sends, &bad_send), -ENOMEM);
	posted = bad_send ? bad_send - sends : 0;
	is("sends posted", posted >= attr.cap.max_send_wr, true);
	is("ERR", set_state(&p->a, IB_QPS_ERR), 0);
	expect_flushed(&p->a, posted);
free:
	kfree(recvs);
	kfree(sends);
}

static void states(struct pair *p)
{
	struct ib_send_wr send = {
		.opcode = IB_WR_SEND,
		.wr_id = 1,
		.send_flags = IB_SEND_SIGNALED,
	};
	struct ib_recv_wr recv = { .wr_id = 2 };
	const struct ib_send_wr *bad_send = NULL;
	const struct ib_recv_wr *bad_recv = NULL;
	struct ib_wc wc;

	is("RESET", set_state(&p->a, IB_QPS_RESET), 0);
	is("post_send in RESET", ib_post_send(p->a.qp, &send, &bad_send), -EINVAL);
	is("bad_wr", bad_send == &send, true);
	is("post_recv in RESET", ib_post_recv(p->a.qp, &recv, &bad_recv), -EINVAL);
	is("bad_wr", bad_recv == &recv, true);
	is("INIT", to_init(&p->a), 0);
	bad_send = NULL;
	is("post_send in INIT", ib_post_send(p->a.qp, &send, &bad_send), -EINVAL);
	is("bad_wr", bad_send == &send, true);
	is("post_recv in INIT", ib_post_recv(p->a.qp, &recv, NULL), 0);
	is("completions in INIT", ib_poll_cq(p->a.cq, 1, &wc), 0);
	is("ERR", set_state(&p->a, IB_QPS_ERR), 0);
	is("flush of the receive posted in INIT", take(&p->a, &wc), 0);
	is("wr_id", wc.wr_id, 2);
	is("status", wc.status, IB_WC_WR_FLUSH_ERR);
	is("post_send in ERR", ib_post_send(p->a.qp, &send, NULL), 0);
	is("flush", take(&p->a, &wc), 0);
	is("wr_id", wc.wr_id, 1);
	is("status", wc.status, IB_WC_WR_FLUSH_ERR);
	is("post_recv in ERR", ib_post_recv(p->a.qp, &recv, NULL), 0);
	is("flush", take(&p->a, &wc), 0);
	is("wr_id", wc.wr_id, 2);
	is("status", wc.status, IB_WC_WR_FLUSH_ERR);
	/* Refused requests are not executed later. */
	is("connecting again", pair_connect(p), 0);
	is("post_send", post_empty(&p->a, 3, 1), 0);
	is("completion", take(&p->a, &wc), 0);
	is("wr_id", wc.wr_id, 3);
	is("status", wc.status, IB_WC_SUCCESS);
}

/* A QP that fails before it is ready to send flushes what is posted afterwards, as any other. */
static void fails_in_rtr(struct pair *p)
{
	is("RESET", set_state(&p->b, IB_QPS_RESET), 0);
	is("RTR", to_rtr(&p->b, &p->a), 0);
	is("post_send in RTR", post_empty(&p->b, 0, 1), -EINVAL);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 8, 0, 1), IB_WC_REM_ACCESS_ERR);
	is("post_send", post_empty(&p->b, 0, 5), 0);
	expect_flushed(&p->b, 5);
	is("connecting again", pair_connect(p), 0);
	is("WRITE", rdma(&p->b, IB_WR_RDMA_WRITE, 0, 0, 0, 0), IB_WC_SUCCESS);
}

/*
 * A verb does not call the completion handler of its caller, which may hold a lock that the handler
 * takes (Documentation/infiniband/core_locking.rst). That applies to modify_qp, which flushes, and
 * to posts that are flushed immediately. The CQ has vector 0: another one could have another CPU,
 * where each call is made in softirq.
 */
static void calls_nobody(struct pair *p)
{
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED };
	struct ib_wc wc;
	int round;

	is("post_recv", post_recv(&p->a, 0), 0);
	for (round = 0; round < 3 && !failed(); round++) {
		is("arming",
		   ib_req_notify_cq(p->a.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS), 0);
		switch (round) {
		case 0:
			is("ERR", set_state(&p->a, IB_QPS_ERR), 0);
			break;
		case 1:
			is("post_send in ERR", ib_post_send(p->a.qp, &send, NULL), 0);
			break;
		default:
			is("post_recv in ERR", post_recv(&p->a, 0), 0);
		}
		await("calls", &p->a.cq_calls, round + 1);
		is("calls in process context", atomic_read(&p->a.cq_calls_in_task), 0);
		is("flush", take(&p->a, &wc), 0);
		is("status", wc.status, IB_WC_WR_FLUSH_ERR);
	}
}

/*
 * Verbs that may be called in any context, with interrupts disabled and a lock held
 * (Documentation/infiniband/core_locking.rst).
 */
static void interrupts_off(struct pair *p)
{
	static DEFINE_SPINLOCK(lock);
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED };
	struct ib_wc wc;
	unsigned long flags;
	int i, posted, polled;

	for (i = 0; i < 200 && !failed(); i++) {
		spin_lock_irqsave(&lock, flags);
		posted = post_recv(&p->b, i) ?: ib_post_send(p->a.qp, &send, NULL);
		ib_req_notify_cq(p->a.cq, IB_CQ_NEXT_COMP);
		polled = ib_poll_cq(p->b.cq, 1, &wc);
		spin_unlock_irqrestore(&lock, flags);
		is("posted", posted, 0);
		is("receive", polled ? 0 : take(&p->b, &wc), 0);
		is("status", wc.status, IB_WC_SUCCESS);
		is("order", wc.wr_id, i);
		is("SEND", take(&p->a, &wc), 0);
		is("status", wc.status, IB_WC_SUCCESS);
	}
	is("ERR", set_state(&p->a, IB_QPS_ERR), 0);
	spin_lock_irqsave(&lock, flags);
	posted = post_recv(&p->a, 1) ?: ib_post_send(p->a.qp, &send, NULL);
	spin_unlock_irqrestore(&lock, flags);
	is("posted in ERR", posted, 0);
	is("flush", take(&p->a, &wc), 0);
	is("status", wc.status, IB_WC_WR_FLUSH_ERR);
	is("flush", take(&p->a, &wc), 0);
	is("status", wc.status, IB_WC_WR_FLUSH_ERR);
}

/* After a QP has been destroyed, its requests do not complete, and its CQEs have been removed. */
static void destroy_busy(struct pair *p)
{
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED };
	struct ib_wc wc;
	int i;

	is("post_send", post_empty(&p->a, 0, 4), 0);
	for (i = 0; i < 8; i++) {
		is("post_recv", post_recv(&p->a, i), 0);
		is("post_send", ib_post_send(p->a.qp, &send, NULL), 0);
	}
	is("one completion", take(&p->a, &wc), 0);
	is("destroy_qp", ib_destroy_qp(p->a.qp), 0);
	p->a.qp = NULL;
	is("completions of a destroyed QP", ib_poll_cq(p->a.cq, 1, &wc), 0);
	/* Longer than a retransmission timeout. */
	msleep(200);
	is("completions later", ib_poll_cq(p->a.cq, 1, &wc), 0);
	if (!is("a QP in its place", qp_make(&p->a), 0))
		return;
	is("connecting", pair_connect(p), 0);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0, 0, 0), IB_WC_SUCCESS);
}

/* Sends until a post fails. */
struct sender {
	struct work_struct work;
	struct end *e;
	atomic_t sent;
	int status;
};

static void send_on(struct work_struct *work)
{
	struct sender *s = container_of(work, struct sender, work);
	struct ib_sge sge = {
		.addr = s->e->addr,
		.length = 8192,
		.lkey = s->e->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.opcode = IB_WR_SEND,
		.sg_list = &sge,
		.num_sge = 1,
		.send_flags = IB_SEND_SIGNALED,
	};
	struct ib_wc wc;
	int i, waiting = 0;

	/* 16 requests are always in flight. */
	for (i = 0; i < 1000000; i++) {
		s->status = ib_post_send(s->e->qp, &wr, NULL);
		if (s->status)
			return;
		if (++waiting < 16)
			continue;
		s->status = take(s->e, &wc) ?: wc.status;
		waiting--;
		if (s->status)
			return;
		atomic_inc(&s->sent);
	}
}

/* Destroys the receiver in process context while packets arrive. */
static void destroy_under_traffic(struct pair *p)
{
	struct sender s = { .e = &p->a };
	struct ib_wc wc;
	u64 id = 0;
	int round, i;

	INIT_WORK_ONSTACK(&s.work, send_on);
	for (round = 0; round < 6 && !failed(); round++) {
		atomic_set(&s.sent, 0);
		for (i = 0; i < 24; i++)
			is("post_recv", post_recv(&p->b, id++), 0);
		queue_work(system_dfl_wq, &s.work);
		/* Each round ends at a different packet. */
		while (atomic_read(&s.sent) < 20 * (round + 1) && !failed())
			if (is("receive", take(&p->b, &wc), 0) &&
			    is("status", wc.status, IB_WC_SUCCESS))
				is("post_recv", post_recv(&p->b, id++), 0);
		is("destroy_qp", ib_destroy_qp(p->b.qp), 0);
		p->b.qp = NULL;
		flush_work(&s.work);
		is("status of the sender", s.status, IB_WC_RETRY_EXC_ERR);
		is("completions of a destroyed QP", ib_poll_cq(p->b.cq, 1, &wc), 0);
		if (is("a QP in its place", qp_make(&p->b), 0))
			is("connecting", pair_connect(p), 0);
	}
	destroy_work_on_stack(&s.work);
}

const struct test post_tests[] = {
	{ "post_opcodes", opcodes, { .context = POLLED } },
	{ "post_too_many_sges", too_many_sges, { .context = POLLED } },
	{ "post_packed", packed, { .context = POLLED } },
	{ "post_full_queues", full_queues, { .context = POLLED } },
	{ "post_states", states, { .context = POLLED } },
	{ "post_fails_in_rtr", fails_in_rtr, { .context = POLLED } },
	{ "post_calls_nobody", calls_nobody, { .context = POLLED } },
	{ "post_interrupts_off", interrupts_off, { .context = POLLED } },
	{ "destroy_busy", destroy_busy, { .context = POLLED } },
	{ "destroy_under_traffic", destroy_under_traffic, { .context = POLLED } },
	{}
};
