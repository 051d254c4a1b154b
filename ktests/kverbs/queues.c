// SPDX-License-Identifier: GPL-2.0
/* Completion queues and shared receive queues of kernel consumers, and draining of queues. */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/hardirq.h>
#include <linux/kthread.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include "kverbs.h"

/* Receives the completions of a CQ that the core polls. */
struct counted {
	struct ib_cqe cqe;
	atomic_t good;
	atomic_t flushed;
	atomic_t other;
	/* Number of completions in softirq. */
	atomic_t softirq;
};

static void on_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct counted *c = container_of(wc->wr_cqe, struct counted, cqe);

	if (in_serving_softirq())
		atomic_inc(&c->softirq);
	if (wc->status == IB_WC_SUCCESS)
		atomic_inc(&c->good);
	else if (wc->status == IB_WC_WR_FLUSH_ERR)
		atomic_inc(&c->flushed);
	else
		atomic_inc(&c->other);
}

static int sum(struct counted *c)
{
	return atomic_read(&c->good) + atomic_read(&c->flushed) + atomic_read(&c->other);
}

static int peek(struct end *e, int count)
{
	/* The core has no wrapper for the operation. */
	return e->dev->ops.peek_cq ? e->dev->ops.peek_cq(e->cq, count) : -EOPNOTSUPP;
}

/* Waits until the CQ has a number of CQEs. */
static void await_held(struct end *e, int count)
{
	int i;

	for (i = 0; i < (failed() ? 100 : 20000) && peek(e, count) < count; i++)
		usleep_range(500, 1000);
	is("completions held", peek(e, count), count);
}

static void poll_queue(struct pair *p)
{
	const int wanted[] = { 4, 4, 2, 0 };
	struct ib_wc wc[4];
	int i, n, id = 100;

	is("peek of an empty queue", peek(&p->a, 16), 0);
	is("poll of an empty queue", ib_poll_cq(p->a.cq, 4, wc), 0);
	is("post_send", post_empty(&p->a, 100, 10), 0);
	await_held(&p->a, 10);
	is("peek", peek(&p->a, 16), 10);
	is("peek for four", peek(&p->a, 4), 4);
	is("poll for none", ib_poll_cq(p->a.cq, 0, wc), 0);
	for (i = 0; i < ARRAY_SIZE(wanted); i++) {
		if (!is("ib_poll_cq", ib_poll_cq(p->a.cq, 4, wc), wanted[i]))
			return;
		for (n = 0; n < wanted[i]; n++) {
			is("order", wc[n].wr_id, id++);
			is("status", wc[n].status, IB_WC_SUCCESS);
			is("opcode", wc[n].opcode, IB_WC_RDMA_WRITE);
			is("QP", wc[n].qp == p->a.qp, true);
		}
	}
	is("peek afterwards", peek(&p->a, 16), 0);
}

static void notify(struct pair *p)
{
	const enum ib_cq_notify_flags next = IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS;
	struct ib_send_wr send = { .opcode = IB_WR_SEND };
	struct ib_wc wc;

	is("arming an empty queue", ib_req_notify_cq(p->a.cq, next), 0);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0, 0, 0), IB_WC_SUCCESS);
	await("calls once armed", &p->a.cq_calls, 1);
	is("post_send", post_empty(&p->a, 1, 2), 0);
	await_held(&p->a, 2);
	is("calls when not armed", atomic_read(&p->a.cq_calls), 1);
	is("missed events", ib_req_notify_cq(p->a.cq, next) > 0, true);
	is("not asked for missed events", ib_req_notify_cq(p->a.cq, IB_CQ_NEXT_COMP), 0);
	is("first", take(&p->a, &wc), 0);
	is("one is still there", ib_req_notify_cq(p->a.cq, next) > 0, true);
	is("second", take(&p->a, &wc), 0);
	is("nothing is there", ib_req_notify_cq(p->a.cq, next), 0);
	is("no call meanwhile", atomic_read(&p->a.cq_calls), 1);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0, 0, 0), IB_WC_SUCCESS);
	await("calls once armed again", &p->a.cq_calls, 2);

	is("arming for solicited completions",
	   ib_req_notify_cq(p->b.cq, IB_CQ_SOLICITED | IB_CQ_REPORT_MISSED_EVENTS), 0);
	is("post_recv", post_recv(&p->b, 1), 0);
	is("post_recv", post_recv(&p->b, 2), 0);
	is("SEND", run(&p->a, &send), IB_WC_SUCCESS);
	is("receive", take(&p->b, &wc), 0);
	is("calls for an unsolicited completion", atomic_read(&p->b.cq_calls), 0);
	send.send_flags |= IB_SEND_SOLICITED;
	is("solicited SEND", run(&p->a, &send), IB_WC_SUCCESS);
	await("calls for a solicited completion", &p->b.cq_calls, 1);

	/* Both flags, as SMC sets them, stand for all completions. */
	is("receive", take(&p->b, &wc), 0);
	is("arming for both", ib_req_notify_cq(p->b.cq, IB_CQ_SOLICITED_MASK), 0);
	is("post_recv", post_recv(&p->b, 3), 0);
	send.send_flags = 0;
	is("SEND", run(&p->a, &send), IB_WC_SUCCESS);
	await("calls for either", &p->b.cq_calls, 2);
	is("arming for none", ib_req_notify_cq(p->b.cq, IB_CQ_REPORT_MISSED_EVENTS), -EINVAL);
}

/* Requests with CQs that the core polls, as most kernel consumers have; then drains all queues. */
static void polled_by_core(struct pair *p)
{
	const int count = 16;
	bool softirq = p->a.cq->poll_ctx == IB_POLL_SOFTIRQ;
	struct counted sends = { .cqe.done = on_done }, receives = { .cqe.done = on_done };
	struct ib_recv_wr recv = { .wr_cqe = &receives.cqe };
	struct ib_send_wr send = {
		.wr_cqe = &sends.cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};
	int i;

	for (i = 0; i < count; i++)
		is("post_recv", ib_post_recv(p->b.qp, &recv, NULL), 0);
	for (i = 0; i < count; i++)
		is("post_send", ib_post_send(p->a.qp, &send, NULL), 0);
	await("sends", &sends.good, count);
	await("receives", &receives.good, count);
	is("sends completed in softirq", atomic_read(&sends.softirq), softirq ? count : 0);
	is("receives completed in softirq", atomic_read(&receives.softirq), softirq ? count : 0);
	ib_drain_qp(p->a.qp);
	ib_drain_qp(p->b.qp);
	is("sends afterwards", sum(&sends), count);
	is("receives afterwards", sum(&receives), count);
}

/*
 * All requests have completed when ib_drain_qp() returns: those in progress, those that wait, and
 * those posted in ERR.
 */
static void drain(struct pair *p)
{
	const int count = 8;
	struct counted sends = { .cqe.done = on_done }, receives = { .cqe.done = on_done };
	struct ib_recv_wr recv = { .wr_cqe = &receives.cqe };
	struct ib_sge sge = {
		.addr = p->a.addr,
		.length = BUF_LEN,
		.lkey = p->a.pd->local_dma_lkey,
	};
	/* The peer has no receive for the SEND. */
	struct ib_send_wr send = {
		.wr_cqe = &sends.cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
	};
	int i, round;

	for (round = 1; round <= 2; round++) {
		for (i = 0; i < count; i++) {
			is("post_recv", ib_post_recv(p->a.qp, &recv, NULL), 0);
			is("post_send", ib_post_send(p->a.qp, &send, NULL), 0);
		}
		ib_drain_qp(p->a.qp);
		is("sends drained", atomic_read(&sends.flushed), 2 * count * round - count);
		is("receives drained", atomic_read(&receives.flushed), 2 * count * round - count);
		/* The QP is in ERR. */
		for (i = 0; i < count; i++) {
			is("post_recv in ERR", ib_post_recv(p->a.qp, &recv, NULL), 0);
			is("post_send in ERR", ib_post_send(p->a.qp, &send, NULL), 0);
		}
		ib_drain_qp(p->a.qp);
		is("sends drained in ERR", atomic_read(&sends.flushed), 2 * count * round);
		is("receives drained in ERR", atomic_read(&receives.flushed), 2 * count * round);
		is("connecting again", pair_connect(p), 0);
	}
	is("other statuses", sum(&sends) + sum(&receives), 8 * count);
	ib_drain_qp(p->b.qp);
}

/* Posts requests to one queue of a QP without a pause. */
struct poster {
	struct ib_qp *qp;
	bool receives;
	/* How many it has posted; no more than the CQ has room for are in progress. */
	int posted;
	struct counted *completed;
	int error;
};

static int post_until_stopped(void *context)
{
	struct poster *poster = context;
	struct ib_recv_wr recv = { .wr_cqe = &poster->completed->cqe };
	struct ib_send_wr send = {
		.wr_cqe = &poster->completed->cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};
	unsigned long flags = 0;
	int i, ret;

	for (i = 0; !kthread_should_stop(); i++) {
		if (poster->posted - sum(poster->completed) >= 32) {
			usleep_range(10, 50);
			continue;
		}
		/* Consumers may post with interrupts disabled. */
		if (i & 1)
			local_irq_save(flags);
		ret = poster->receives ? ib_post_recv(poster->qp, &recv, NULL) :
					 ib_post_send(poster->qp, &send, NULL);
		if (i & 1)
			local_irq_restore(flags);
		if (!ret)
			poster->posted++;
		else if (!poster->error)
			poster->error = ret;
		if (!(i & 15))
			cond_resched();
	}
	return 0;
}

/*
 * Each request completes once, whenever it is posted: before the change to ERR, at the same time on
 * another CPU, or afterwards. So consumers that stop to post and then drain the queues know that
 * nothing is left.
 */
static void flush_races(struct pair *p)
{
	struct counted counts[2][2] = {};
	struct poster posters[2][2] = {};
	struct task_struct *threads[2][2];
	struct end *ends[] = { &p->a, &p->b };
	int round, end, queue;

	for (round = 0; round < 16 && !failed(); round++) {
		for (end = 0; end < 2; end++) {
			for (queue = 0; queue < 2; queue++) {
				struct counted *c = &counts[end][queue];
				struct poster *poster = &posters[end][queue];

				c->cqe.done = on_done;
				poster->qp = ends[end]->qp;
				poster->receives = queue;
				poster->completed = c;
				threads[end][queue] =
					kthread_run(post_until_stopped, poster, "kverbs_post");
			}
		}
		usleep_range(200, 200 + get_random_u32_below(2000));
		is("ERR", set_state(&p->a, IB_QPS_ERR), 0);
		usleep_range(100, 100 + get_random_u32_below(500));
		is("ERR of the peer", set_state(&p->b, IB_QPS_ERR), 0);
		usleep_range(100, 200);
		for (end = 0; end < 2; end++) {
			for (queue = 0; queue < 2; queue++) {
				if (!IS_ERR(threads[end][queue]))
					kthread_stop(threads[end][queue]);
				is("posting", posters[end][queue].error, 0);
			}
		}
		for (end = 0; end < 2; end++) {
			ib_drain_qp(ends[end]->qp);
			is("sends completed", sum(&counts[end][0]), posters[end][0].posted);
			is("receives completed", sum(&counts[end][1]), posters[end][1].posted);
		}
		is("connecting again", pair_connect(p), 0);
	}
	is("some have succeeded", atomic_read(&counts[0][0].good) > 0, true);
	ib_drain_qp(p->a.qp);
	ib_drain_qp(p->b.qp);
}

static void drain_shared(struct pair *p)
{
	unsigned long begun = jiffies;
	struct counted receives = { .cqe.done = on_done };
	struct ib_recv_wr recv = { .wr_cqe = &receives.cqe };

	is("post_srq_recv", ib_post_srq_recv(p->b.srq, &recv, NULL), 0);
	ib_drain_qp(p->b.qp);
	/* The core waits for a minute if there is no LAST_WQE_REACHED event. */
	is("drained soon", time_before(jiffies, begun + 30 * HZ), true);
	is("requests stay with the SRQ", sum(&receives), 0);
	await("LAST_WQE_REACHED", &p->b.last_wqes, 1);
}

static void srq_receives(struct pair *p)
{
	struct ib_send_wr send = { .opcode = IB_WR_SEND_WITH_IMM };
	struct ib_recv_wr recv = {};
	struct ib_srq_attr attr;
	struct ib_wc wc;
	int i;

	is("query_srq", ib_query_srq(p->b.srq, &attr), 0);
	is("max_wr", attr.max_wr >= 32, true);
	is("max_sge", attr.max_sge, 2);
	is("limit", attr.srq_limit, 0);
	is("post_recv on the QP", ib_post_recv(p->b.qp, &recv, NULL), -EINVAL);
	is("destroying it in use", ib_destroy_srq_user(p->b.srq, NULL), -EBUSY);
	for (i = 0; i < 8; i++)
		is("post_srq_recv", post_recv(&p->b, 50 + i), 0);
	/* Armed after the first ones: fewer than four are left after the fifth. */
	attr.srq_limit = 4;
	is("setting the limit", ib_modify_srq(p->b.srq, &attr, IB_SRQ_LIMIT), 0);
	for (i = 0; i < 8; i++) {
		send.ex.imm_data = cpu_to_be32(i);
		is("SEND", run(&p->a, &send), IB_WC_SUCCESS);
		if (!is("receive", take(&p->b, &wc), 0))
			break;
		is("status", wc.status, IB_WC_SUCCESS);
		is("wr_id", wc.wr_id, 50 + i);
		is("IB_WC_WITH_IMM", wc.wc_flags & IB_WC_WITH_IMM, IB_WC_WITH_IMM);
		is("immediate data", be32_to_cpu(wc.ex.imm_data), i);
		if (i == 3)
			is("limit events above the limit", atomic_read(&p->b.srq_limits), 0);
		if (i == 4)
			await("limit events", &p->b.srq_limits, 1);
	}
	is("limit events afterwards", atomic_read(&p->b.srq_limits), 1);
	is("query_srq", ib_query_srq(p->b.srq, &attr), 0);
	is("limit afterwards", attr.srq_limit, 0);
}

static void srq_full(struct pair *p)
{
	const struct ib_recv_wr *bad = NULL;
	struct ib_sge sges[3] = {};
	struct ib_recv_wr chain[2] = {
		{ .next = &chain[1], .wr_id = 1 },
		{ .wr_id = 2, .sg_list = sges, .num_sge = ARRAY_SIZE(sges) },
	};
	struct ib_srq_attr attr;
	u32 room, i;

	is("too many SGEs", ib_post_srq_recv(p->b.srq, &chain[0], &bad), -EINVAL);
	is("bad_wr", bad == &chain[1], true);
	is("query_srq", ib_query_srq(p->b.srq, &attr), 0);
	room = attr.max_wr;
	for (i = 1; i < room; i++)
		is("post_srq_recv", post_recv(&p->b, i), 0);
	is("post_srq_recv to a full queue", post_recv(&p->b, 0), -ENOMEM);
	chain[0].next = NULL;
	is("the same", ib_post_srq_recv(p->b.srq, &chain[0], &bad), -ENOMEM);
	is("bad_wr", bad == &chain[0], true);
	attr.max_wr = 4 * room;
	is("growing", ib_modify_srq(p->b.srq, &attr, IB_SRQ_MAX_WR), 0);
	is("query_srq", ib_query_srq(p->b.srq, &attr), 0);
	is("max_wr", attr.max_wr >= 4 * room, true);
	is("post_srq_recv", post_recv(&p->b, i), 0);
	attr.max_wr = 8;
	is("shrinking below posted requests", ib_modify_srq(p->b.srq, &attr, IB_SRQ_MAX_WR),
	   -EINVAL);
}

/* Sends a message from a CPU; returns the CPU on which the receiver was notified. */
static int notified_on(struct pair *p, unsigned int cpu)
{
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED };
	int calls = atomic_read(&p->b.cq_calls);
	struct ib_wc wc;

	is("binding to a CPU", set_cpus_allowed_ptr(current, cpumask_of(cpu)), 0);
	is("post_recv", post_recv(&p->b, cpu), 0);
	is("arming", ib_req_notify_cq(p->b.cq, IB_CQ_NEXT_COMP), 0);
	is("post_send", ib_post_send(p->a.qp, &send, NULL), 0);
	await("calls", &p->b.cq_calls, calls + 1);
	is("receive", take(&p->b, &wc), 0);
	is("status", wc.status, IB_WC_SUCCESS);
	is("SEND", take(&p->a, &wc), 0);
	return READ_ONCE(p->b.cq_cpu);
}

/* Vector 0 stands for the CPU that the packet was received on: with veth, that of the sender. */
static void vector_0(struct pair *p)
{
	unsigned int cpu;

	for_each_online_cpu(cpu)
		is("CPU of the notification", notified_on(p, cpu), cpu);
}

static void vector_1(struct pair *p)
{
	unsigned int second = cpumask_nth(1 % num_online_cpus(), cpu_online_mask);
	unsigned int cpu;

	for_each_online_cpu(cpu)
		is("CPU of the notification", notified_on(p, cpu), second);
}

const struct test queue_tests[] = {
	{ "cq_poll", poll_queue, { .context = POLLED } },
	{ "cq_notify", notify, { .context = POLLED } },
	{ "cq_softirq", polled_by_core, { .context = IB_POLL_SOFTIRQ } },
	{ "cq_vector_0", vector_0, { .context = POLLED } },
	{ "cq_vector_1", vector_1, { .context = POLLED, .vector = 1 } },
	{ "cq_workqueue", polled_by_core, { .context = IB_POLL_WORKQUEUE } },
	{ "drain_softirq", drain, { .context = IB_POLL_SOFTIRQ } },
	{ "drain_workqueue", drain, { .context = IB_POLL_WORKQUEUE } },
	{ "drain_direct", drain, { .context = IB_POLL_DIRECT } },
	{ "flush_races_softirq", flush_races, { .context = IB_POLL_SOFTIRQ } },
	{ "flush_races_workqueue", flush_races, { .context = IB_POLL_WORKQUEUE } },
	{ "drain_shared", drain_shared, { .context = IB_POLL_WORKQUEUE, .srq = true } },
	{ "srq_receives", srq_receives, { .context = POLLED, .srq = true } },
	{ "srq_full", srq_full, { .context = POLLED, .srq = true } },
	{}
};
