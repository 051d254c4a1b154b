// SPDX-License-Identifier: GPL-2.0
/*
 * A stream of requests of one kind: a fixed number is in flight, and the completion handler posts
 * the next, as NVMe over Fabrics and NFS do under load. Several pairs take turns. ib_core polls the
 * CQs in softirq context.
 */
#include "kbench.h"

static struct {
	struct pair *pairs;
	u32 count;
	/* Index of the pair that posted last, modulo their number. */
	atomic_t turn;
	enum ib_wr_opcode op;
	u32 size;
	/* Requests yet to be posted, and posted ones yet to complete. */
	atomic_t unposted, in_flight;
} now;

static void request_done(struct ib_cq *cq, struct ib_wc *wc);
static void receive_done(struct ib_cq *cq, struct ib_wc *wc);

static struct ib_cqe request_cqe = { .done = request_done };
static struct ib_cqe receive_cqe = { .done = receive_done };

static int post_next(void)
{
	struct pair *p = now.pairs;
	int ret, tries = 16;

	if (now.count == 1)
		return post_request(&p->a, &p->b, now.op, now.size, &request_cqe);
	/* The send queue of a pair that is served late may be full when it is its turn again. */
	do {
		p = now.pairs + (u32)atomic_inc_return(&now.turn) % now.count;
		ret = post_request(&p->a, &p->b, now.op, now.size, &request_cqe);
	} while (ret == -ENOMEM && --tries);
	return ret;
}

static void request_done(struct ib_cq *cq, struct ib_wc *wc)
{
	int ret = wc->status;

	if (!ret && atomic_dec_if_positive(&now.unposted) >= 0) {
		ret = post_next();
		if (!ret)
			return;
	}
	if (ret)
		stream_stop();
	if (atomic_dec_and_test(&now.in_flight) || ret)
		run_end(ret);
}

static void receive_done(struct ib_cq *cq, struct ib_wc *wc)
{
	int ret = wc->status;

	/* Flushed when the pair is closed. */
	if (ret == IB_WC_WR_FLUSH_ERR)
		return;
	ret = ret ?: post_receive(&now.pairs->b, now.size, &receive_cqe);
	if (ret)
		run_end(ret);
}

int stream_begin(struct pair *pairs, u32 count, enum ib_wr_opcode op, const struct measure *m)
{
	u32 i, depth = min(m->depth, m->count);
	int ret = 0;

	now.pairs = pairs;
	now.count = count;
	atomic_set(&now.turn, 0);
	now.op = op;
	now.size = m->size;
	atomic_set(&now.unposted, m->count - depth);
	atomic_set(&now.in_flight, depth);
	/*
	 * Twice as many as requests are in flight, because the receiver may poll the completion of
	 * a message after the sender's request has completed. SENDs have one pair only.
	 */
	for (i = 0; op == IB_WR_SEND && i < 2 * depth && !ret; i++)
		ret = post_receive(&pairs->b, now.size, &receive_cqe);
	run_begin();
	for (i = 0; i < depth && !ret; i++)
		ret = post_next();
	return ret;
}

void stream_stop(void)
{
	atomic_set(&now.unposted, 0);
}

s64 stream(struct pair *pairs, u32 count, enum ib_wr_opcode op, const struct measure *m)
{
	return run_result(stream_begin(pairs, count, op, m), m->count);
}
