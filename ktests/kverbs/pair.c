// SPDX-License-Identifier: GPL-2.0
/* Two queue pairs that are connected without a connection manager. */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>
#include "kverbs.h"

#define PORT 1
/* More than the retransmission timeouts in all tests. */
#define PATIENCE (20 * HZ)

u32 pattern(u32 seed, u32 index)
{
	return (index + seed) * 2654435761u + seed;
}

void fill(u32 *to, u32 words, u32 seed, u32 first)
{
	u32 i;

	for (i = 0; i < words; i++)
		to[i] = pattern(seed, first + i);
}

bool matches(const u32 *words, u32 count, u32 seed, u32 first)
{
	u32 i;

	for (i = 0; i < count; i++)
		if (words[i] != pattern(seed, first + i))
			return false;
	return true;
}

static void on_completion(struct ib_cq *cq, void *context)
{
	struct end *e = context;

	WRITE_ONCE(e->cq_cpu, raw_smp_processor_id());
	if (in_task())
		atomic_inc(&e->cq_calls_in_task);
	/* Last, since a test waits for it. */
	smp_mb__before_atomic();
	atomic_inc(&e->cq_calls);
}

static void on_qp_event(struct ib_event *event, void *context)
{
	struct end *e = context;

	if (event->event == IB_EVENT_QP_LAST_WQE_REACHED)
		atomic_inc(&e->last_wqes);
}

static void on_srq_event(struct ib_event *event, void *context)
{
	struct end *e = context;

	if (event->event == IB_EVENT_SRQ_LIMIT_REACHED)
		atomic_inc(&e->srq_limits);
}

/* The RoCE v2 GID of an IPv4 address. */
static const struct ib_gid_attr *ipv4_gid(struct ib_device *dev)
{
	const struct ib_gid_attr *gid;
	int i;

	for (i = 0; i < 16; i++) {
		gid = rdma_get_gid_attr(dev, PORT, i);
		if (IS_ERR(gid))
			continue;
		if (gid->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP &&
		    ipv6_addr_v4mapped((const struct in6_addr *)gid->gid.raw))
			return gid;
		rdma_put_gid_attr(gid);
	}
	return ERR_PTR(-EADDRNOTAVAIL);
}

static void end_close(struct end *e)
{
	if (!IS_ERR_OR_NULL(e->qp))
		ib_destroy_qp(e->qp);
	if (!IS_ERR_OR_NULL(e->srq))
		ib_destroy_srq(e->srq);
	if (!IS_ERR_OR_NULL(e->cq)) {
		if (e->cq->cq_context == e)
			ib_destroy_cq(e->cq);
		else
			ib_free_cq(e->cq);
	}
	if (e->addr)
		ib_dma_unmap_single(e->dev, e->addr, BUF_LEN, DMA_BIDIRECTIONAL);
	kfree(e->buf);
	if (!IS_ERR_OR_NULL(e->pd))
		ib_dealloc_pd(e->pd);
	if (!IS_ERR_OR_NULL(e->gid))
		rdma_put_gid_attr(e->gid);
}

int qp_make(struct end *e)
{
	/* The device returns the granted capabilities in it. */
	struct ib_qp_init_attr attr = e->qp_attr;

	e->qp = ib_create_qp(e->pd, &attr);
	return PTR_ERR_OR_ZERO(e->qp);
}

static int end_open(struct end *e, const struct setup *setup, bool srq)
{
	u32 depth = setup->depth ?: 32, sges = setup->sges ?: 2;
	struct ib_cq_init_attr cq_attr = {
		.cqe = 8 * depth,
		.comp_vector = setup->vector % e->dev->num_comp_vectors,
	};
	struct ib_srq_init_attr srq_attr = {
		.event_handler = on_srq_event,
		.srq_context = e,
		.srq_type = IB_SRQT_BASIC,
		.attr = { .max_wr = depth, .max_sge = sges },
	};

	e->qp_attr = (struct ib_qp_init_attr){
		.event_handler = on_qp_event,
		.qp_context = e,
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			/* One more receive, for ib_drain_qp(). */
			.max_send_wr = depth, .max_recv_wr = depth + 1,
			.max_send_sge = sges, .max_recv_sge = sges,
		},
	};

	e->gid = ipv4_gid(e->dev);
	if (IS_ERR(e->gid))
		return PTR_ERR(e->gid);
	e->pd = ib_alloc_pd(e->dev, setup->global_rkey ? IB_PD_UNSAFE_GLOBAL_RKEY : 0);
	if (IS_ERR(e->pd))
		return PTR_ERR(e->pd);
	e->buf = kzalloc(BUF_LEN, GFP_KERNEL);
	if (!e->buf)
		return -ENOMEM;
	e->addr = ib_dma_map_single(e->dev, e->buf, BUF_LEN, DMA_BIDIRECTIONAL);
	if (setup->context == POLLED)
		e->cq = ib_create_cq(e->dev, on_completion, NULL, e, &cq_attr);
	else
		e->cq = ib_alloc_cq(e->dev, NULL, cq_attr.cqe, 0, setup->context);
	if (IS_ERR(e->cq))
		return PTR_ERR(e->cq);
	if (srq) {
		e->srq = ib_create_srq(e->pd, &srq_attr);
		if (IS_ERR(e->srq))
			return PTR_ERR(e->srq);
	}
	e->qp_attr.send_cq = e->cq;
	e->qp_attr.recv_cq = e->cq;
	e->qp_attr.srq = e->srq;
	return qp_make(e);
}

int pair_open(struct pair *p, const struct setup *setup)
{
	int ret = end_open(&p->a, setup, false) ?: end_open(&p->b, setup, setup->srq);

	if (ret)
		pair_close(p);
	return ret;
}

void pair_close(struct pair *p)
{
	end_close(&p->a);
	end_close(&p->b);
}

int set_state(struct end *e, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state };

	return ib_modify_qp(e->qp, &attr, IB_QP_STATE);
}

int address_of(const struct end *from, const struct end *to, struct rdma_ah_attr *ah)
{
	union ib_gid dgid = to->gid->gid;
	struct net_device *ndev;
	int ret = 0;

	ah->type = rdma_ah_find_type(from->dev, PORT);
	rdma_ah_set_port_num(ah, PORT);
	rdma_ah_set_grh(ah, &dgid, 0, from->gid->index, 64, 0);
	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(to->gid);
	if (IS_ERR(ndev))
		ret = PTR_ERR(ndev);
	else
		ether_addr_copy(ah->roce.dmac, ndev->dev_addr);
	rcu_read_unlock();
	return ret;
}

int to_init(struct end *e)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE |
				   IB_ACCESS_REMOTE_ATOMIC,
	};

	return ib_modify_qp(e->qp, &attr,
			    IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS);
}

int to_rtr(struct end *e, struct end *to)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RTR };
	struct ib_port_attr port;
	int ret;

	ret = ib_query_port(e->dev, PORT, &port) ?: to_init(e) ?: address_of(e, to, &attr.ah_attr);
	if (ret)
		return ret;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = to->qp->qp_num;
	attr.rq_psn = to->qp->qp_num ^ 0x5a5a5a;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 1;
	return ib_modify_qp(e->qp, &attr,
			    IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			    IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
}

static int connect_end(struct end *e, struct end *to)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTS,
		.sq_psn = e->qp->qp_num ^ 0x5a5a5a,
		.timeout = 14,
		.retry_cnt = 5,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};

	return to_rtr(e, to) ?:
	       ib_modify_qp(e->qp, &attr,
			    IB_QP_STATE | IB_QP_SQ_PSN | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
			    IB_QP_RNR_RETRY | IB_QP_MAX_QP_RD_ATOMIC);
}

int pair_connect(struct pair *p)
{
	struct end *ends[] = { &p->a, &p->b };
	struct ib_wc wc;
	int i, ret;

	for (i = 0; i < 2; i++) {
		ret = set_state(ends[i], IB_QPS_RESET);
		if (ret)
			return ret;
		/* The core polls CQs with a poll context. */
		if (ends[i]->cq->cq_context == ends[i])
			while (ib_poll_cq(ends[i]->cq, 1, &wc) > 0)
				;
	}
	return connect_end(&p->a, &p->b) ?: connect_end(&p->b, &p->a);
}

int take(struct end *e, struct ib_wc *wc)
{
	unsigned long end = jiffies + (failed() ? HZ / 10 : PATIENCE);

	*wc = (struct ib_wc){};
	for (;;) {
		bool late = time_after(jiffies, end);

		if (ib_poll_cq(e->cq, 1, wc) == 1)
			return 0;
		if (late)
			return -ETIMEDOUT;
		usleep_range(10, 50);
	}
}

void await(const char *what, atomic_t *counter, int value)
{
	unsigned long end = jiffies + (failed() ? HZ / 10 : PATIENCE);

	while (atomic_read(counter) != value && time_before(jiffies, end))
		usleep_range(100, 200);
	is(what, atomic_read(counter), value);
}

int run(struct end *e, struct ib_send_wr *wr)
{
	struct ib_wc wc;
	int ret;

	wr->send_flags |= IB_SEND_SIGNALED;
	ret = ib_post_send(e->qp, wr, NULL) ?: take(e, &wc);
	return ret ?: wc.status;
}

int rdma(struct end *e, enum ib_wr_opcode op, u32 at, u32 len, u64 remote, u32 rkey)
{
	struct ib_sge sge = { .addr = e->addr + at, .length = len, .lkey = e->pd->local_dma_lkey };
	struct ib_rdma_wr wr = {
		.wr = { .opcode = op, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = remote,
		.rkey = rkey,
	};

	return run(e, &wr.wr);
}

int post_empty(struct end *e, u64 first, u32 count)
{
	struct ib_rdma_wr wr = {
		.wr = { .opcode = IB_WR_RDMA_WRITE, .send_flags = IB_SEND_SIGNALED },
	};
	int ret = 0;

	for (; count && !ret; count--) {
		wr.wr.wr_id = first++;
		ret = ib_post_send(e->qp, &wr.wr, NULL);
	}
	return ret;
}

int post_recv(struct end *e, u64 wr_id)
{
	struct ib_sge sge = { .addr = e->addr, .length = BUF_LEN, .lkey = e->pd->local_dma_lkey };
	struct ib_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };

	return e->srq ? ib_post_srq_recv(e->srq, &wr, NULL) : ib_post_recv(e->qp, &wr, NULL);
}
