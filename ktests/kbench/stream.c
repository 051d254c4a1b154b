// SPDX-License-Identifier: GPL-2.0
/*
 * A stream of requests of one kind: `depth` are in flight, and the completion handler posts the
 * next, as NVMe over Fabrics and NFS do under load. ib_core polls the queues in softirq context.
 */
#include "kbench.h"

static struct {
	struct end *from, *to;
	enum ib_wr_opcode op;
	u32 size;
	/* Requests yet to be posted, and yet to complete. */
	atomic_t unposted, left;
} now;

static void request_done(struct ib_cq *cq, struct ib_wc *wc);
static void receive_done(struct ib_cq *cq, struct ib_wc *wc);

static struct ib_cqe request_cqe = { .done = request_done };
static struct ib_cqe receive_cqe = { .done = receive_done };

static int post_next(void)
{
	return post_request(now.from, now.to, now.op, now.size, &request_cqe);
}

static void request_done(struct ib_cq *cq, struct ib_wc *wc)
{
	int ret = wc->status;

	if (!ret && atomic_dec_if_positive(&now.unposted) >= 0)
		ret = post_next();
	if (ret || atomic_dec_and_test(&now.left))
		run_end(ret);
}

static void receive_done(struct ib_cq *cq, struct ib_wc *wc)
{
	int ret = wc->status;

	/* Flushed when the pair is closed. */
	if (ret == IB_WC_WR_FLUSH_ERR)
		return;
	ret = ret ?: post_receive(now.to, now.size, &receive_cqe);
	if (ret)
		run_end(ret);
}

s64 stream(struct pair *p, enum ib_wr_opcode op, const struct measure *m)
{
	u32 i, depth = min(m->depth, m->count);
	int ret = 0;

	now.from = &p->a;
	now.to = &p->b;
	now.op = op;
	now.size = m->size;
	atomic_set(&now.unposted, m->count - depth);
	atomic_set(&now.left, m->count);
	/*
	 * Twice as many as requests in flight: the receiver may be late to take the completion of
	 * a request that has completed at the sender.
	 */
	for (i = 0; op == IB_WR_SEND && i < 2 * depth && !ret; i++)
		ret = post_receive(now.to, now.size, &receive_cqe);
	run_begin();
	for (i = 0; i < depth && !ret; i++)
		ret = post_next();
	return run_result(ret, m->count);
}
