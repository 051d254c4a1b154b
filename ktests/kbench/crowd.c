// SPDX-License-Identifier: GPL-2.0
/* Many connections that share completion queues and buffers, and their cost when they are idle. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kernel_stat.h>
#include <linux/slab.h>
#include "kbench.h"

/* The time in which softirqs are counted, in milliseconds. */
#define COUNTED 2000

void crowd_close(struct pair *pairs, u32 count)
{
	u32 i;

	/* If the run has ended with an error, handlers may still post, to any of the pairs. */
	stream_stop();
	for (i = 0; i < count; i++) {
		end_drain(&pairs[i].a);
		cond_resched();
	}
	for (i = 0; i < count; i++) {
		if (!IS_ERR_OR_NULL(pairs[i].a.qp))
			ib_destroy_qp(pairs[i].a.qp);
		if (!IS_ERR_OR_NULL(pairs[i].b.qp))
			ib_destroy_qp(pairs[i].b.qp);
		cond_resched();
	}
	kvfree(pairs);
}

struct pair *crowd_open(const struct pair *like, u32 count, u32 depth)
{
	struct pair *pairs = kvcalloc(count, sizeof(*pairs), GFP_KERNEL);
	int ret = 0;
	u32 i;

	if (!pairs)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < count && !ret; i++) {
		struct pair *p = pairs + i;

		*p = *like;
		p->a.qp = NULL;
		p->b.qp = NULL;
		/* More than the average, because some QPs are served later than others. */
		p->a.qp_attr.cap.max_send_wr = DIV_ROUND_UP(depth, count) + 7;
		/* For ib_drain_qp(). */
		p->a.qp_attr.cap.max_recv_wr = 1;
		p->b.qp_attr.cap = p->a.qp_attr.cap;
		ret = qp_make(&p->a) ?: qp_make(&p->b) ?: pair_connect(p);
		cond_resched();
	}
	if (!ret)
		return pairs;
	crowd_close(pairs, count);
	return ERR_PTR(ret);
}

/* Softirqs of timers, packets and deferred work, but not those of the scheduler and of RCU. */
static u64 softirqs(void)
{
	static const unsigned int kinds[] = {
		TIMER_SOFTIRQ, HRTIMER_SOFTIRQ, NET_TX_SOFTIRQ, NET_RX_SOFTIRQ, TASKLET_SOFTIRQ,
	};
	u64 sum = 0;
	int cpu, i;

	for_each_online_cpu(cpu)
		for (i = 0; i < ARRAY_SIZE(kinds); i++)
			sum += kstat_softirqs_cpu(kinds[i], cpu);
	return sum;
}

static u64 softirqs_per_second(void)
{
	u64 before = softirqs();

	msleep(COUNTED);
	return div_u64((softirqs() - before) * 1000, COUNTED);
}

int measure_idle(struct pair *p, u32 count, const struct measure *m)
{
	/* Each queue pair is used once, so that it has armed its timers. */
	struct measure once = { .size = m->size, .depth = m->depth, .count = count };
	u64 without, with;
	struct pair *pairs;
	s64 ret;

	without = softirqs_per_second();
	pairs = crowd_open(p, count, m->depth);
	if (IS_ERR(pairs))
		return PTR_ERR(pairs);
	ret = stream(pairs, count, IB_WR_RDMA_WRITE, &once);
	if (ret > 0) {
		/* Timers of completed requests may still expire. */
		msleep(COUNTED);
		with = softirqs_per_second();
		pr_info("softirqs %llu\n", with > without ? with - without : 0);
	}
	crowd_close(pairs, count);
	return ret < 0 ? ret : 0;
}
