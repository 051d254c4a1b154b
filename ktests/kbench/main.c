// SPDX-License-Identifier: GPL-2.0
/*
 * Runs one measurement when the module is loaded and prints the result to the kernel log, in
 * nanoseconds per operation: "kbench: write 4213", or an error number: "kbench: write: error -5".
 * Loading succeeds in both cases.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include "kbench.h"

/* More than a device supports. */
#define MAX_QPS 1000000

static char *a = "rxe_a";
module_param(a, charp, 0444);
MODULE_PARM_DESC(a, "RDMA device of one side");

static char *b = "rxe_b";
module_param(b, charp, 0444);
MODULE_PARM_DESC(b, "RDMA device of the other side");

static char *what = "write";
module_param(what, charp, 0444);
MODULE_PARM_DESC(what,
		 "send, write, read, pingpong, qps, idle, beside, or an object: pd, cq, qp, mr, ah");

static struct measure measure = { .size = 4096, .depth = 32, .count = 10000 };
module_param_named(size, measure.size, uint, 0444);
MODULE_PARM_DESC(size, "bytes of each message");
module_param_named(depth, measure.depth, uint, 0444);
MODULE_PARM_DESC(depth, "requests in flight");
module_param_named(count, measure.count, uint, 0444);
MODULE_PARM_DESC(count, "number of operations");

static uint qps = 1;
module_param(qps, uint, 0444);
MODULE_PARM_DESC(qps, "number of connections that take turns, are idle or are the load (beside)");

/* Set if a function of the tests of kernel verbs has reported a failure. */
static bool bad;

bool is(const char *thing, long long got, long long wanted)
{
	if (got == wanted)
		return true;
	pr_info("%s: got %lld, expected %lld\n", thing, got, wanted);
	bad = true;
	return false;
}

bool failed(void)
{
	return bad;
}

/* WRITEs by all queue pairs in turn. */
static s64 round_robin(struct pair *p)
{
	struct pair *pairs = crowd_open(p, qps, measure.depth);
	s64 ret;

	if (IS_ERR(pairs))
		return PTR_ERR(pairs);
	ret = stream(pairs, qps, IB_WR_RDMA_WRITE, &measure);
	crowd_close(pairs, qps);
	return ret;
}

static s64 operation(struct pair *p)
{
	static const struct {
		const char *name;
		enum ib_wr_opcode op;
	} streams[] = {
		{ "send", IB_WR_SEND },
		{ "write", IB_WR_RDMA_WRITE },
		{ "read", IB_WR_RDMA_READ },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(streams); i++)
		if (!strcmp(what, streams[i].name))
			return stream(p, 1, streams[i].op, &measure);
	if (!strcmp(what, "pingpong"))
		return pingpong(p, &measure);
	if (!strcmp(what, "beside"))
		return measure_beside(p, qps, &measure);
	if (!strcmp(what, "qps") && qps)
		return round_robin(p);
	if (!strcmp(what, "idle") && qps)
		return measure_idle(p, qps, &measure);
	return -EINVAL;
}

static void run_one(void)
{
	/* stream() posts twice as many receives as requests are in flight. */
	struct setup setup = {
		.depth = 2 * measure.depth, .sges = 1, .context = IB_POLL_SOFTIRQ,
		.global_rkey = true,
	};
	struct pair pair = { .a.dev = devices.a, .b.dev = devices.b };
	const struct object *object;
	s64 ret;

	ret = pair_open(&pair, &setup);
	if (!ret) {
		for (object = objects; object->name; object++)
			if (!strcmp(what, object->name))
				break;
		ret = pair_connect(&pair);
		if (!ret)
			ret = object->name ? measure_object(&pair, object, &measure) :
					     operation(&pair);
		end_drain(&pair.a);
		end_drain(&pair.b);
		pair_close(&pair);
	}
	if (ret < 0)
		pr_info("%s: error %lld\n", what, ret);
	else if (ret)
		pr_info("%s %lld\n", what, ret);
}

static int __init kbench_init(void)
{
	int ret;

	if (!measure.count || !measure.depth || measure.depth > 1024 || measure.size > BUF_LEN ||
	    qps > MAX_QPS)
		return -EINVAL;
	ret = devices_get(a, b);
	if (ret)
		return ret;
	run_one();
	devices_put();
	return 0;
}

/* Empty, but a module without an exit function cannot be unloaded. */
static void __exit kbench_exit(void)
{
}

module_init(kbench_init);
module_exit(kbench_exit);
MODULE_DESCRIPTION("Benchmark of kernel verbs");
MODULE_LICENSE("GPL");
