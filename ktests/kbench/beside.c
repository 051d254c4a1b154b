// SPDX-License-Identifier: GPL-2.0
/*
 * Latency beside load: a connection with completion queues of its own sends a message of 64 bytes
 * from time to time, which the peer answers, while other queue pairs are busy.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "kbench.h"

#define MESSAGE 64
/* Longer than any response takes under load. */
#define PATIENCE (10 * HZ)

static struct {
	struct pair *pair;
	ktime_t answered;
	int error;
	struct completion done;
} ping;

static void sent(struct ib_cq *cq, struct ib_wc *wc);
static void received(struct ib_cq *cq, struct ib_wc *wc);

static struct ib_cqe sent_cqe = { .done = sent };
static struct ib_cqe received_cqe = { .done = received };

static void sent(struct ib_cq *cq, struct ib_wc *wc)
{
	if (wc->status && wc->status != IB_WC_WR_FLUSH_ERR) {
		ping.error = -EIO;
		complete(&ping.done);
	}
}

static void received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct end *e = wc->qp == ping.pair->a.qp ? &ping.pair->a : &ping.pair->b;
	int ret = wc->status ? -EIO : 0;

	if (wc->status == IB_WC_WR_FLUSH_ERR)
		return;
	if (e == &ping.pair->a)
		ping.answered = ktime_get();
	ret = ret ?: post_receive(e, MESSAGE, &received_cqe);
	if (!ret && e == &ping.pair->b)
		ret = post_request(e, e, IB_WR_SEND, MESSAGE, &sent_cqe);
	ping.error = ping.error ?: ret;
	if (ret || e == &ping.pair->a)
		complete(&ping.done);
}

/* Returns half of a round trip time in nanoseconds, or an error number. */
static s64 ping_once(void)
{
	struct end *a = &ping.pair->a;
	ktime_t start;
	int ret;

	reinit_completion(&ping.done);
	start = ktime_get();
	ret = post_request(a, a, IB_WR_SEND, MESSAGE, &sent_cqe);
	if (ret)
		return ret;
	if (!wait_for_completion_timeout(&ping.done, PATIENCE))
		return -ETIMEDOUT;
	return ping.error ?: ktime_to_ns(ktime_sub(ping.answered, start)) / 2;
}

static int ascending(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static int ping_all(u32 count)
{
	u64 *samples = kvcalloc(count, sizeof(*samples), GFP_KERNEL);
	s64 took = 0;
	u32 i;

	if (!samples)
		return -ENOMEM;
	for (i = 0; i < count && took >= 0; i++) {
		usleep_range(200, 400);
		took = ping_once();
		samples[i] = took;
	}
	if (took >= 0) {
		sort(samples, count, sizeof(*samples), ascending, NULL);
		pr_info("p50 %llu\n", samples[count / 2]);
		pr_info("p99 %llu\n", samples[(u64)count * 99 / 100]);
	}
	kvfree(samples);
	return took < 0 ? took : 0;
}

int measure_beside(struct pair *load, u32 qps, const struct measure *m)
{
	struct setup setup = { .depth = 16, .sges = 1, .context = IB_POLL_SOFTIRQ };
	struct pair own = { .a.dev = load->a.dev, .b.dev = load->b.dev };
	struct measure endless = { .size = m->size, .depth = m->depth, .count = INT_MAX };
	struct pair *pairs;
	int ret, i, end;

	init_completion(&ping.done);
	ping.pair = &own;
	ping.error = 0;
	ret = pair_open(&own, &setup);
	if (ret)
		return ret;
	ret = pair_connect(&own);
	for (i = 0; i < 2 && !ret; i++)
		ret = post_receive(&own.a, MESSAGE, &received_cqe) ?:
		      post_receive(&own.b, MESSAGE, &received_cqe);
	pairs = ret || !qps ? NULL : crowd_open(load, qps, m->depth);
	if (IS_ERR(pairs)) {
		ret = PTR_ERR(pairs);
		pairs = NULL;
	}
	if (pairs) {
		ret = stream_begin(pairs, qps, IB_WR_RDMA_WRITE, &endless);
		ret = ret ?: ping_all(m->count);
		stream_stop();
		/* The load must have completed without an error. */
		end = run_result(ret, 1) < 0 ? -EIO : 0;
		ret = ret ?: end;
		crowd_close(pairs, qps);
	} else if (!ret) {
		ret = ping_all(m->count);
	}
	end_drain(&own.a);
	end_drain(&own.b);
	pair_close(&own);
	return ret;
}
