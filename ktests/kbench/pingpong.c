// SPDX-License-Identifier: GPL-2.0
/* Latency of a message that both sides send in turns. */
#include "kbench.h"

static struct {
	struct pair *pair;
	u32 size;
	atomic_t left;
} now;

static void sent(struct ib_cq *cq, struct ib_wc *wc);
static void received(struct ib_cq *cq, struct ib_wc *wc);

static struct ib_cqe sent_cqe = { .done = sent };
static struct ib_cqe received_cqe = { .done = received };

static int send_from(struct end *e)
{
	return post_request(e, e, IB_WR_SEND, now.size, &sent_cqe);
}

static void sent(struct ib_cq *cq, struct ib_wc *wc)
{
	if (wc->status && wc->status != IB_WC_WR_FLUSH_ERR)
		run_end(wc->status);
}

static void received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct end *e = wc->qp == now.pair->a.qp ? &now.pair->a : &now.pair->b;
	int ret = wc->status;

	/* Flushed when the pair is closed. */
	if (ret == IB_WC_WR_FLUSH_ERR)
		return;
	ret = ret ?: post_receive(e, now.size, &received_cqe);
	if (ret || atomic_dec_and_test(&now.left)) {
		run_end(ret);
		return;
	}
	ret = send_from(e);
	if (ret)
		run_end(ret);
}

s64 pingpong(struct pair *p, const struct measure *m)
{
	int i, ret = 0;

	now.pair = p;
	now.size = m->size;
	atomic_set(&now.left, m->count);
	for (i = 0; i < 2 && !ret; i++)
		ret = post_receive(&p->a, m->size, &received_cqe) ?:
		      post_receive(&p->b, m->size, &received_cqe);
	run_begin();
	return run_result(ret ?: send_from(&p->a), m->count);
}
