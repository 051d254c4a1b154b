// SPDX-License-Identifier: GPL-2.0
/*
 * Regions with segments (rxe_rs/include/rdma/rxe_rs.h): b has the memory, a is the peer that has
 * the key.
 */
#include <linux/kthread.h>
#include <linux/module.h>
#include <rdma/rxe_rs.h>
#include "kverbs.h"

#define LOCAL IB_ACCESS_LOCAL_WRITE
#define REMOTE (LOCAL | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)
#define BASE 0x100000000ull
#define PAGE_WORDS (PAGE_SIZE / 4)

/* Resolved by symbol_get(), so that this module can be loaded without rxe_rs. */
static struct {
	typeof(rxe_rs_mr_reg_sg) *reg;
	typeof(rxe_rs_mr_add_sg) *add;
	typeof(rxe_rs_mr_remove) *remove;
	typeof(rxe_rs_mr_remove_range) *remove_range;
	typeof(rxe_rs_mr_move) *move;
} calls;

static void calls_put(void)
{
	if (calls.reg)
		symbol_put(rxe_rs_mr_reg_sg);
	if (calls.add)
		symbol_put(rxe_rs_mr_add_sg);
	if (calls.remove)
		symbol_put(rxe_rs_mr_remove);
	if (calls.remove_range)
		symbol_put(rxe_rs_mr_remove_range);
	if (calls.move)
		symbol_put(rxe_rs_mr_move);
}

static bool calls_get(void)
{
	calls.reg = symbol_get(rxe_rs_mr_reg_sg);
	calls.add = symbol_get(rxe_rs_mr_add_sg);
	calls.remove = symbol_get(rxe_rs_mr_remove);
	calls.remove_range = symbol_get(rxe_rs_mr_remove_range);
	calls.move = symbol_get(rxe_rs_mr_move);
	return is("all functions are exported",
		  calls.reg && calls.add && calls.remove && calls.remove_range && calls.move, true);
}

typedef void (*body_fn)(struct pair *p, struct area *area, struct ib_mr *mr);

/* Runs a test with pages of b that are not contiguous, and a region of the first four of them. */
static void with_segments(struct pair *p, u32 pages, body_fn body)
{
	struct rxe_rs_mr_state state;
	struct area area;
	struct ib_mr *mr;

	if (!area_make(&area, &p->b, pages, 0))
		return;
	if (!calls_get())
		goto put;
	mr = calls.reg(p->b.pd, area.sg, 4, BASE, REMOTE, &state);
	if (!is("mr_reg_sg", PTR_ERR_OR_ZERO(mr), 0))
		goto put;
	is("handle", state.handle, RXE_RS_FIRST_SEGMENT);
	is("start", state.start, BASE);
	is("bytes", state.bytes, 4 * PAGE_SIZE);
	is("key", state.rkey, mr->rkey);
	body(p, &area, mr);
	is("dereg_mr", ib_dereg_mr(mr), 0);
put:
	calls_put();
	area_free(&area);
}

static struct rxe_rs_mr_state add(struct ib_mr *mr, struct area *area, u32 page, u32 pages,
				  u64 iova)
{
	struct rxe_rs_mr_state state = {};

	is("mr_add_sg", calls.add(mr, area->sg + page, pages, iova, &state), 0);
	return state;
}

/* The peer writes to pages of the region, and the data is in the expected pages of b. */
static void written(struct pair *p, struct area *area, struct ib_mr *mr, u64 iova, u32 page,
		    u32 pages, u32 seed)
{
	u32 i;

	fill(p->a.buf, pages * PAGE_WORDS, seed, 0);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, pages * PAGE_SIZE, iova, mr->rkey),
	   IB_WC_SUCCESS);
	for (i = 0; i < pages; i++)
		is("data", matches(words_of(area, page + i), PAGE_WORDS, seed, i * PAGE_WORDS),
		   true);
	memset(p->a.buf, 0, pages * PAGE_SIZE);
	is("READ", rdma(&p->a, IB_WR_RDMA_READ, 0, pages * PAGE_SIZE, iova, mr->rkey),
	   IB_WC_SUCCESS);
	is("data read", matches(p->a.buf, pages * PAGE_WORDS, seed, 0), true);
}

/* An access to two bytes is a remote access error and changes no memory. */
static void refused_at(struct pair *p, struct area *area, struct ib_mr *mr, u64 iova)
{
	area_fill(area, 77);
	is("WRITE to a hole", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 2, iova, mr->rkey),
	   IB_WC_REM_ACCESS_ERR);
	is("memory", area_matches(area, 77), true);
	is("connecting again", pair_connect(p), 0);
}

static void grows(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct ib_sge sge = {
		.addr = BASE + 3 * PAGE_SIZE + 100,
		.length = 2 * PAGE_SIZE,
		.lkey = mr->lkey,
	};
	struct ib_recv_wr recv = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 };
	struct ib_send_wr send = { .opcode = IB_WR_SEND };
	struct ib_sge from = {
		.addr = p->a.addr,
		.length = 2 * PAGE_SIZE,
		.lkey = p->a.pd->local_dma_lkey,
	};
	struct rxe_rs_mr_state state;
	struct ib_wc wc;

	written(p, area, mr, BASE, 0, 4, 1);
	state = add(mr, area, 4, 4, BASE + 4 * PAGE_SIZE);
	is("run", state.run_length, 8 * PAGE_SIZE);
	is("length of the region", mr->length, 8 * PAGE_SIZE);
	written(p, area, mr, BASE, 0, 8, 2);
	/* Memory from before the first segment, at another address. */
	state = add(mr, area, 8, 2, BASE - 2 * PAGE_SIZE);
	is("start", state.start, BASE - 2 * PAGE_SIZE);
	add(mr, area, 10, 2, BASE + (1ull << 40));
	written(p, area, mr, BASE + (1ull << 40), 10, 2, 3);
	written(p, area, mr, BASE - 2 * PAGE_SIZE, 8, 2, 4);
	/* Local access across two segments. */
	fill(p->a.buf, 2 * PAGE_WORDS, 6, 0);
	is("post_recv", ib_post_recv(p->b.qp, &recv, NULL), 0);
	send.sg_list = &from;
	send.num_sge = 1;
	is("SEND", run(&p->a, &send), IB_WC_SUCCESS);
	is("receive completion", take(&p->b, &wc), 0);
	is("receive status", wc.status, IB_WC_SUCCESS);
	is("received", memcmp((u8 *)words_of(area, 3) + 100, p->a.buf, PAGE_SIZE - 100), 0);
	is("received further",
	   memcmp(words_of(area, 4), (u8 *)p->a.buf + PAGE_SIZE - 100, PAGE_SIZE), 0);
	refused_at(p, area, mr, BASE + 8 * PAGE_SIZE - 1);
	refused_at(p, area, mr, BASE - 2 * PAGE_SIZE - 1);
	refused_at(p, area, mr, BASE + (1ull << 40) + 2 * PAGE_SIZE);
}

static void shrinks(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct rxe_rs_mr_state state, second;
	u32 key = mr->rkey;

	second = add(mr, area, 4, 4, BASE + 4 * PAGE_SIZE);
	is("mr_remove_range", calls.remove_range(mr, BASE + 3 * PAGE_SIZE, 3 * PAGE_SIZE, &state),
	   0);
	is("bytes", state.bytes, 5 * PAGE_SIZE);
	is("segments", state.segments, 2);
	written(p, area, mr, BASE, 0, 3, 1);
	written(p, area, mr, BASE + 6 * PAGE_SIZE, 6, 2, 2);
	refused_at(p, area, mr, BASE + 3 * PAGE_SIZE);
	refused_at(p, area, mr, BASE + 6 * PAGE_SIZE - 1);
	is("mr_remove", calls.remove(mr, RXE_RS_FIRST_SEGMENT, &state), 0);
	is("start", state.start, BASE + 6 * PAGE_SIZE);
	is("mr_remove again", calls.remove(mr, RXE_RS_FIRST_SEGMENT, NULL), -ENOENT);
	/* The addresses can be used for other memory. */
	add(mr, area, 8, 2, BASE);
	written(p, area, mr, BASE, 8, 2, 3);
	is("mr_remove_range", calls.remove_range(mr, BASE, PAGE_SIZE, NULL), 0);
	is("mr_remove", calls.remove(mr, second.handle, NULL), 0);
	written(p, area, mr, BASE + PAGE_SIZE, 9, 1, 4);
	is("the last", calls.remove_range(mr, 0, U64_MAX, &state), 0);
	is("released", state.flags, RXE_RS_RELEASED);
	is("key", mr->rkey, 0);
	is("mr_add_sg afterwards", calls.add(mr, area->sg, 4, BASE, NULL), -ENOENT);
	area_fill(area, 9);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 4, BASE + PAGE_SIZE, key),
	   IB_WC_REM_ACCESS_ERR);
	is("memory", area_matches(area, 9), true);
}

static void moves(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct rxe_rs_mr_state second, state;

	second = add(mr, area, 4, 4, BASE + 8 * PAGE_SIZE);
	is("onto another", calls.move(mr, second.handle, BASE + 2 * PAGE_SIZE, NULL), -EEXIST);
	is("within a page", calls.move(mr, second.handle, BASE + 8, NULL), -EINVAL);
	is("beyond the end", calls.move(mr, second.handle, -PAGE_SIZE, NULL), -EINVAL);
	is("no segment", calls.move(mr, 99, BASE, NULL), -ENOENT);
	written(p, area, mr, BASE + 8 * PAGE_SIZE, 4, 4, 1);
	/* To a range that overlaps the old one, for a segment that has been cut. */
	is("mr_remove_range", calls.remove_range(mr, BASE + 9 * PAGE_SIZE, PAGE_SIZE, NULL), 0);
	is("mr_move", calls.move(mr, second.handle, BASE + 9 * PAGE_SIZE, &state), 0);
	is("handle", state.handle, second.handle);
	is("bytes", state.bytes, 7 * PAGE_SIZE);
	is("run", state.run_length, PAGE_SIZE);
	written(p, area, mr, BASE + 9 * PAGE_SIZE, 4, 1, 2);
	written(p, area, mr, BASE + 11 * PAGE_SIZE, 6, 2, 3);
	refused_at(p, area, mr, BASE + 8 * PAGE_SIZE);
	refused_at(p, area, mr, BASE + 10 * PAGE_SIZE);
	is("to the end", calls.move(mr, second.handle, BASE + 4 * PAGE_SIZE, &state), 0);
	is("run", state.run_length, 5 * PAGE_SIZE);
	written(p, area, mr, BASE, 0, 5, 4);
	written(p, area, mr, BASE + 6 * PAGE_SIZE, 6, 2, 5);
	is("before the first", calls.move(mr, second.handle, 0, &state), 0);
	is("start", state.start, 0);
	written(p, area, mr, 2 * PAGE_SIZE, 6, 2, 6);
	refused_at(p, area, mr, BASE + 4 * PAGE_SIZE);
}

/* Entries that start and end within pages. */
static void odd_entries(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct scatterlist sg[3];
	u64 *word = (u64 *)(words_of(area, 5) + 2);
	u32 i;

	sg_init_table(sg, 3);
	sg_set_page(&sg[0], sg_page(&area->sg[4]), 24, PAGE_SIZE - 24);
	sg_set_page(&sg[1], sg_page(&area->sg[5]), PAGE_SIZE - 40, 8);
	sg_set_page(&sg[2], sg_page(&area->sg[6]), 16, 100);
	is("mr_add_sg", calls.add(mr, sg, 3, BASE + 4 * PAGE_SIZE, NULL), 0);
	area_fill(area, 8);
	fill(p->a.buf, PAGE_WORDS + 1, 9, 0);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 4, PAGE_SIZE, BASE + 4 * PAGE_SIZE, mr->rkey),
	   IB_WC_SUCCESS);
	is("first entry", memcmp((u8 *)words_of(area, 4) + PAGE_SIZE - 24, (u8 *)p->a.buf + 4, 24),
	   0);
	is("second entry", memcmp((u8 *)words_of(area, 5) + 8, (u8 *)p->a.buf + 28, PAGE_SIZE - 40),
	   0);
	is("third entry",
	   memcmp((u8 *)words_of(area, 6) + 100, (u8 *)p->a.buf + 4 + PAGE_SIZE - 16, 16), 0);
	for (i = 0; i < area->count; i++) {
		u32 from = i == 6 ? (100 + 16) / 4 : i == 5 ? (8 + PAGE_SIZE - 40) / 4 : 0;
		u32 to = i == 4 ? (PAGE_SIZE - 24) / 4 : PAGE_WORDS;

		is("memory outside of the entries",
		   matches(words_of(area, i) + from, to - from, 8, i * PAGE_WORDS + from), true);
	}
	*word = 5;
	is("READ", rdma(&p->a, IB_WR_RDMA_READ, 0, 8, BASE + 4 * PAGE_SIZE + 24, mr->rkey),
	   IB_WC_SUCCESS);
	is("word", *(u64 *)p->a.buf, 5);
}

static void expect_no_region(struct ib_pd *pd, const char *what, struct scatterlist *sg, int nents,
			     u64 iova, int access, int error)
{
	struct ib_mr *mr = calls.reg(pd, sg, nents, iova, access, NULL);

	is(what, PTR_ERR_OR_ZERO(mr), error);
	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
}

/* Calls each function with the objects, which must be refused. */
static void expect_refused(struct area *area, struct ib_mr *mr, struct ib_pd *pd, const char *what,
			   int error)
{
	is(what, calls.add(mr, area->sg, 1, BASE, NULL), error);
	is(what, calls.remove(mr, RXE_RS_FIRST_SEGMENT, NULL), error);
	is(what, calls.remove_range(mr, BASE, PAGE_SIZE, NULL), error);
	is(what, calls.move(mr, RXE_RS_FIRST_SEGMENT, BASE, NULL), error);
	expect_no_region(pd, what, area->sg, 1, BASE, LOCAL, error);
}

/* Copies of a region and its domain that seem to belong to another driver or to a process. */
static void others_objects(struct pair *p, struct area *area, const struct ib_mr *mr)
{
	struct ib_device *foreign = kmemdup(mr->device, sizeof(*foreign), GFP_KERNEL);
	struct ib_uobject uobject;
	struct ib_pd pd = *p->b.pd;
	struct ib_mr copy = *mr;

	if (!is("kmemdup", !!foreign, true))
		return;
	foreign->ops.owner = THIS_MODULE;
	copy.device = foreign;
	pd.device = foreign;
	expect_refused(area, &copy, &pd, "another driver's", -EPROTONOSUPPORT);
	copy.device = mr->device;
	pd.device = mr->device;
	copy.uobject = &uobject;
	pd.uobject = &uobject;
	expect_refused(area, &copy, &pd, "a process's", -EINVAL);
	kfree(foreign);
}

static void bad_calls(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct ib_mr *fast = ib_alloc_mr(p->b.pd, IB_MR_TYPE_MEM_REG, 4);
	struct rxe_rs_mr_state state;
	struct scatterlist odd;

	is("overlap", calls.add(mr, area->sg + 4, 2, BASE + 3 * PAGE_SIZE, NULL), -EEXIST);
	is("all of it", calls.add(mr, area->sg + 4, 4, BASE, NULL), -EEXIST);
	is("address within a page", calls.add(mr, area->sg + 4, 1, BASE + 8 * PAGE_SIZE + 1, NULL),
	   -EINVAL);
	is("addresses that wrap", calls.add(mr, area->sg + 4, 1, -PAGE_SIZE, NULL), -EINVAL);
	is("no entries", calls.add(mr, area->sg + 4, 0, BASE + 8 * PAGE_SIZE, NULL), -EINVAL);
	is("fewer than none", calls.add(mr, area->sg + 4, -1, BASE + 8 * PAGE_SIZE, NULL), -EINVAL);
	is("no list", calls.add(mr, NULL, 1, BASE + 8 * PAGE_SIZE, NULL), -EINVAL);
	is("more than there are",
	   calls.add(mr, area->sg + 4, area->count, BASE + 8 * PAGE_SIZE, NULL), -EINVAL);
	sg_init_table(&odd, 1);
	is("an entry without a page", calls.add(mr, &odd, 1, BASE + 8 * PAGE_SIZE, NULL), -EINVAL);
	sg_set_page(&odd, sg_page(&area->sg[4]), PAGE_SIZE - 8, 0);
	is("part of a page", calls.add(mr, &odd, 1, BASE + 8 * PAGE_SIZE, NULL), -EINVAL);
	is("range without memory", calls.remove_range(mr, BASE + 4 * PAGE_SIZE, PAGE_SIZE, NULL),
	   -EINVAL);
	is("range within a page", calls.remove_range(mr, BASE + 4, PAGE_SIZE, NULL), -EINVAL);
	is("no segment", calls.remove(mr, 99, NULL), -ENOENT);
	expect_no_region(p->b.pd, "remote without local", area->sg, 1, BASE, IB_ACCESS_REMOTE_WRITE,
			 -EINVAL);
	expect_no_region(p->b.pd, "windows", area->sg, 1, BASE, LOCAL | IB_ACCESS_MW_BIND,
			 -EOPNOTSUPP);
	expect_no_region(p->b.pd, "on demand", area->sg, 1, BASE, LOCAL | IB_ACCESS_ON_DEMAND,
			 -EOPNOTSUPP);
	expect_no_region(p->b.pd, "persistence", area->sg, 1, BASE,
			 LOCAL | IB_ACCESS_FLUSH_PERSISTENT, -EOPNOTSUPP);
	expect_no_region(p->b.pd, "address within a page", area->sg, 1, BASE + 8, LOCAL, -EINVAL);
	expect_no_region(p->b.pd, "addresses that wrap", area->sg, 2, -PAGE_SIZE, LOCAL, -EINVAL);
	expect_no_region(p->b.pd, "no entries", area->sg, 0, BASE, LOCAL, -EINVAL);
	if (is("alloc_mr", PTR_ERR_OR_ZERO(fast), 0)) {
		is("fast registration", calls.add(fast, area->sg, 1, BASE, NULL), -EOPNOTSUPP);
		is("fast registration", calls.remove(fast, RXE_RS_FIRST_SEGMENT, NULL),
		   -EOPNOTSUPP);
		is("fast registration", calls.move(fast, RXE_RS_FIRST_SEGMENT, BASE, NULL),
		   -EOPNOTSUPP);
		ib_dereg_mr(fast);
	}
	is("map_mr_sg of such a region", ib_map_mr_sg(mr, area->sg, 1, NULL, PAGE_SIZE), -EINVAL);
	others_objects(p, area, mr);
	/* The region has not changed. */
	written(p, area, mr, BASE, 0, 4, 3);
	state = add(mr, area, 4, 4, BASE + 4 * PAGE_SIZE);
	is("handle", state.handle, RXE_RS_FIRST_SEGMENT + 1);
	written(p, area, mr, BASE, 0, 8, 4);
}

/* Moves, checks and removes one page after the other, and adds it again, until it is stopped. */
struct changer {
	struct area *area;
	struct ib_mr *mr;
	u32 rounds;
};

static int change_until_stopped(void *context)
{
	struct changer *c = context;
	struct rxe_rs_mr_state state;
	u64 handle = 0;
	u32 page = 0;

	while (!kthread_should_stop()) {
		u64 iova = BASE + (4 + page) * PAGE_SIZE;

		if (is("adding", calls.add(c->mr, c->area->sg + 4 + page, 1, iova, &state), 0))
			handle = state.handle;
		usleep_range(50, 100);
		/* To addresses that the peer does not write to. */
		is("moving", calls.move(c->mr, handle, BASE + 64 * PAGE_SIZE, NULL), 0);
		memset(words_of(c->area, 4 + page), 0, PAGE_SIZE);
		usleep_range(50, 100);
		is("written after it was moved",
		   !memchr_inv(words_of(c->area, 4 + page), 0, PAGE_SIZE), true);
		is("removing", calls.remove(c->mr, handle, NULL), 0);
		page = (page + 1) % 4;
		WRITE_ONCE(c->rounds, c->rounds + 1);
	}
	return 0;
}

/*
 * Writes to segments that remain succeed. Writes to a segment that is removed fail, and do not
 * change its memory after the removal.
 */
static void changed(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct changer changer = { .area = area, .mr = mr };
	struct task_struct *thread = kthread_run(change_until_stopped, &changer, "kverbs_segments");
	unsigned long end = jiffies + 20 * HZ;
	int i, lost = 0;

	if (!is("starting a thread", PTR_ERR_OR_ZERO(thread), 0))
		return;
	fill(p->a.buf, 8 * PAGE_WORDS, 5, 0);
	for (i = 0; (!lost || READ_ONCE(changer.rounds) < 12) && time_before(jiffies, end) &&
	     !failed(); i++) {
		u64 at = BASE + (i % 2 ? 4 + i / 2 % 4 : i / 2 % 4) * PAGE_SIZE;
		int status = rdma(&p->a, IB_WR_RDMA_WRITE, 0, PAGE_SIZE, at, mr->rkey);

		if (status == IB_WC_REM_ACCESS_ERR && i % 2) {
			lost++;
			is("connecting again", pair_connect(p), 0);
		} else {
			is("WRITE", status, IB_WC_SUCCESS);
		}
	}
	kthread_stop(thread);
	is("some were refused", lost > 0, true);
	is("rounds", changer.rounds >= 12, true);
}

static void grow(struct pair *p)
{
	with_segments(p, 12, grows);
}

static void shrink(struct pair *p)
{
	with_segments(p, 10, shrinks);
}

static void move(struct pair *p)
{
	with_segments(p, 8, moves);
}

static void odd(struct pair *p)
{
	with_segments(p, 8, odd_entries);
}

static void refused(struct pair *p)
{
	with_segments(p, 8, bad_calls);
}

static void under_traffic(struct pair *p)
{
	with_segments(p, 8, changed);
}

const struct test segment_tests[] = {
	{ "segments_grow", grow, { .context = POLLED } },
	{ "segments_shrink", shrink, { .context = POLLED } },
	{ "segments_move", move, { .context = POLLED } },
	{ "segments_odd_entries", odd, { .context = POLLED } },
	{ "segments_refused", refused, { .context = POLLED } },
	{ "segments_under_traffic", under_traffic, { .context = POLLED } },
	{}
};
