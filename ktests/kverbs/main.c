// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the tests when the module is loaded, and reports each in the kernel log as "kverbs: ok NAME"
 * or "kverbs: not ok NAME: REASON".
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include "kverbs.h"

static char *a = "rxe_a";
module_param(a, charp, 0444);
MODULE_PARM_DESC(a, "RDMA device of one side");

static char *b = "rxe_b";
module_param(b, charp, 0444);
MODULE_PARM_DESC(b, "RDMA device of the other side");

static char *only;
module_param(only, charp, 0444);
MODULE_PARM_DESC(only, "name of the one test to run");

static const struct test *const groups[] = {
	reg_tests, segment_tests, queue_tests, post_tests, batching_tests, path_tests,
};

/* The first failure of the running test; empty if there is none. */
static char why[160];

bool is(const char *what, long long got, long long wanted)
{
	if (got == wanted)
		return true;
	if (!why[0])
		snprintf(why, sizeof(why), "%s: got %lld, expected %lld", what, got, wanted);
	return false;
}

bool failed(void)
{
	return why[0];
}

static void run_test(const struct test *test)
{
	struct pair pair = { .a.dev = devices.a, .b.dev = devices.b };

	why[0] = 0;
	if (is("making the pair", pair_open(&pair, &test->setup), 0)) {
		if (is("connecting", pair_connect(&pair), 0))
			test->run(&pair);
		pair_close(&pair);
	}
	if (failed())
		pr_info("not ok %s: %s\n", test->name, why);
	else
		pr_info("ok %s\n", test->name);
}

static int __init kverbs_init(void)
{
	const struct test *test;
	int i, ret;

	ret = devices_get(a, b);
	if (ret)
		return ret;
	ret = -ENOENT;
	for (i = 0; i < ARRAY_SIZE(groups); i++) {
		for (test = groups[i]; test->name; test++) {
			if (only && strcmp(only, test->name))
				continue;
			run_test(test);
			ret = 0;
		}
	}
	devices_put();
	return ret;
}

/* Empty, but a module without an exit function cannot be unloaded. */
static void __exit kverbs_exit(void)
{
}

module_init(kverbs_init);
module_exit(kverbs_exit);
MODULE_DESCRIPTION("Tests of kernel verbs");
MODULE_LICENSE("GPL");
