// SPDX-License-Identifier: GPL-2.0
/*
 * Packets of several requests leave in one buffer, and an ACK with the reply, where the
 * consumer works in the handlers of completions. The network device counts buffers.
 */
#include <linux/netdevice.h>
#include <rdma/ib_cache.h>
#include "kverbs.h"

#define REQUESTS 1000
#define IN_FLIGHT 16
/* Fewer than after which ACKs wait for replies of any consumer. */
#define REPLIES 12
#define LEN 64

/* A consumer that posts a request from each handler. */
struct consumer {
	struct ib_cqe sent;
	struct ib_cqe received;
	struct end *e;
	const struct end *peer;
	/* Requests that it has still to post. */
	int left;
	/* Completions of requests and of receives. */
	atomic_t sends;
	atomic_t receives;
	/* The first error. */
	int status;
};

/* Returns how many buffers the network device of the end has sent. */
static u64 buffers(const struct end *e)
{
	struct rtnl_link_stats64 stats = {};
	struct net_device *ndev;

	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(e->gid);
	if (!IS_ERR(ndev))
		dev_get_stats(ndev, &stats);
	rcu_read_unlock();
	return stats.tx_packets;
}

static void note(struct consumer *c, int status)
{
	if (status && !c->status)
		c->status = status;
}

/* Posts the next request, a SEND or a WRITE. */
static int post_next(struct consumer *c, enum ib_wr_opcode op)
{
	struct ib_sge sge = {
		.addr = c->e->addr,
		.length = LEN,
		.lkey = c->e->pd->local_dma_lkey,
	};
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = &c->sent,
			.opcode = op,
			.sg_list = &sge,
			.num_sge = 1,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = c->peer->addr,
		.rkey = c->peer->pd->unsafe_global_rkey,
	};

	c->left--;
	return ib_post_send(c->e->qp, &wr.wr, NULL);
}

static int post_next_recv(struct consumer *c)
{
	struct ib_sge sge = {
		.addr = c->e->addr,
		.length = LEN,
		.lkey = c->e->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_cqe = &c->received, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(c->e->qp, &wr, NULL);
}

static void on_written(struct ib_cq *cq, struct ib_wc *wc)
{
	struct consumer *c = container_of(wc->wr_cqe, struct consumer, sent);

	note(c, wc->status);
	if (!wc->status && c->left > 0)
		note(c, post_next(c, IB_WR_RDMA_WRITE));
	atomic_inc(&c->sends);
}

static void on_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct consumer *c = container_of(wc->wr_cqe, struct consumer, sent);

	note(c, wc->status);
	atomic_inc(&c->sends);
}

static void on_received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct consumer *c = container_of(wc->wr_cqe, struct consumer, received);

	note(c, wc->status);
	/* Nothing is posted behind the request by which end() finds that all have been flushed. */
	if (wc->status)
		return;
	if (atomic_inc_return(&c->receives) < REPLIES)
		note(c, post_next_recv(c));
	if (c->left > 0)
		note(c, post_next(c, IB_WR_SEND));
}

/*
 * No handler uses the consumers any more. The second time is for what a handler posted while the
 * first one began.
 */
static void end(struct pair *p)
{
	int i;

	for (i = 0; i < 2; i++) {
		ib_drain_qp(p->a.qp);
		ib_drain_qp(p->b.qp);
	}
}

/* Each handler posts one request; those of a round of handlers share buffers. */
static void posts_of_handlers(struct pair *p)
{
	struct consumer c = {
		.sent = { on_written }, .e = &p->a, .peer = &p->b, .left = REQUESTS,
	};
	u64 before = buffers(&p->a);
	int i;

	/* None of them completes before the last one has been posted. */
	local_bh_disable();
	for (i = 0; i < IN_FLIGHT; i++)
		is("post_send", post_next(&c, IB_WR_RDMA_WRITE), 0);
	local_bh_enable();
	await("completions", &c.sends, REQUESTS);
	before = buffers(&p->a) - before;
	end(p);
	is("status", c.status, IB_WC_SUCCESS);
	pr_info("%llu buffers for %d requests\n", before, REQUESTS);
	is("half as many buffers as requests", before <= REQUESTS / 2, true);
}

/* An echo: the ACK of each message leaves with the reply. */
static void replies_of_handlers(struct pair *p)
{
	struct consumer a = {
		.sent = { on_sent },
		.received = { on_received },
		.e = &p->a,
		.peer = &p->b,
		.left = REPLIES,
	};
	struct consumer b = {
		.sent = { on_sent },
		.received = { on_received },
		.e = &p->b,
		.peer = &p->a,
		.left = REPLIES,
	};
	u64 before = buffers(&p->a) + buffers(&p->b);

	is("post_recv", post_next_recv(&a), 0);
	is("post_recv", post_next_recv(&b), 0);
	is("post_send", post_next(&a, IB_WR_SEND), 0);
	await("messages", &b.receives, REPLIES);
	await("replies", &a.receives, REPLIES);
	await("completions of messages", &a.sends, REPLIES);
	await("completions of replies", &b.sends, REPLIES);
	before = buffers(&p->a) + buffers(&p->b) - before;
	end(p);
	is("status of a", a.status, 0);
	is("status of b", b.status, 0);
	pr_info("%llu buffers for %d messages\n", before, 2 * REPLIES);
	/* The last ACK has no reply, and others may be late. */
	is("about one buffer for each message", before <= 3 * REPLIES, true);
}

const struct test batching_tests[] = {
	{ "posts_of_handlers", posts_of_handlers,
	  { .context = IB_POLL_SOFTIRQ, .global_rkey = true } },
	{ "replies_of_handlers", replies_of_handlers, { .context = IB_POLL_SOFTIRQ } },
	{}
};
