// SPDX-License-Identifier: GPL-2.0
/* Fast registration (FRWR): b registers, a is the peer that has the key. */
#include <linux/kthread.h>
#include "kverbs.h"

#define LOCAL IB_ACCESS_LOCAL_WRITE
#define REMOTE (LOCAL | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE)
#define CHUNK_WORDS (BUF_LEN / 4)

static struct ib_mr *mr_alloc(struct end *e, u32 pages)
{
	struct ib_mr *mr = ib_alloc_mr(e->pd, IB_MR_TYPE_MEM_REG, pages);

	return is("alloc_mr", PTR_ERR_OR_ZERO(mr), 0) ? mr : NULL;
}

typedef void (*body_fn)(struct pair *p, struct area *area, struct ib_mr *mr);

/*
 * Runs a test with memory of b and a region for @room chunks of it, which is not registered yet.
 * Frees both afterwards.
 */
static void with_region(struct pair *p, u32 count, u32 order, u32 room, body_fn body)
{
	struct area area;
	struct ib_mr *mr;

	if (!area_make(&area, &p->b, count, order))
		return;
	mr = mr_alloc(&p->b, room);
	if (mr) {
		body(p, &area, mr);
		is("dereg_mr", ib_dereg_mr(mr), 0);
	}
	area_free(&area);
}

/* Registers what has been mapped; returns the status of the request. */
static int reg(struct end *e, struct ib_mr *mr, int access)
{
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR,
		.mr = mr,
		.key = mr->rkey,
		.access = access,
	};

	return run(e, &wr.wr);
}

static bool map_and_reg(struct end *e, struct ib_mr *mr, struct area *area, int access)
{
	return is("entries mapped",
		  ib_map_mr_sg(mr, area->sg, area->count, NULL, PAGE_SIZE << area->order),
		  area->count) &&
	       is("REG_MR", reg(e, mr, access), IB_WC_SUCCESS);
}

static int invalidate(struct end *e, u32 key)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = key };

	return run(e, &wr);
}

/* The peer accesses one word. If the access is refused, the pair is connected again. */
static void expect(struct pair *p, const char *what, enum ib_wr_opcode op, u64 addr, u32 key,
		   int status)
{
	is(what, rdma(&p->a, op, 0, 4, addr, key), status);
	if (status != IB_WC_SUCCESS)
		is("connecting again", pair_connect(p), 0);
}

/* The peer writes and reads all memory of a long list, in messages that end within pages. */
static void long_list(struct pair *p, struct area *area, struct ib_mr *mr)
{
	u32 chunk = area->order ? CHUNK_WORDS : CHUNK_WORDS - 1;
	u32 words = area->count * ((PAGE_SIZE << area->order) / 4);
	u32 at, n;

	if (!map_and_reg(&p->b, mr, area, REMOTE))
		return;
	is("bytes registered", mr->length, 4ull * words);
	for (at = 0; at < words && !failed(); at += n) {
		n = min(chunk, words - at);
		fill(p->a.buf, n, 1, at);
		is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 4 * n, mr->iova + 4ull * at, mr->rkey),
		   IB_WC_SUCCESS);
	}
	is("data written", area_matches(area, 1), true);
	area_fill(area, 2);
	for (at = 0; at < words && !failed(); at += n) {
		n = min(chunk, words - at);
		is("READ", rdma(&p->a, IB_WR_RDMA_READ, 0, 4 * n, mr->iova + 4ull * at, mr->rkey),
		   IB_WC_SUCCESS);
		is("data read", matches(p->a.buf, n, 2, at), true);
	}
	expect(p, "last word", IB_WR_RDMA_READ, mr->iova + 4ull * words - 4, mr->rkey,
	       IB_WC_SUCCESS);
	expect(p, "behind the last word", IB_WR_RDMA_READ, mr->iova + 4ull * words - 2, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
	expect(p, "before the first word", IB_WR_RDMA_WRITE, mr->iova - 2, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
	is("data at the end", area_matches(area, 2), true);
}

static void many_pages(struct pair *p)
{
	with_region(p, 4096, 0, 4096, long_list);
}

static void most_pages(struct pair *p)
{
	u32 most = p->b.dev->attrs.max_fast_reg_page_list_len;

	/* The limit of rdma_rxe. */
	if (is("a list longer than 512 pages is offered", most > 512, true))
		with_region(p, most, 0, most, long_list);
}

static void large_pages(struct pair *p)
{
	with_region(p, 32, 4, 32, long_list);
}

/* The same region for other memory, with another key and with the same key. */
static void two_memories(struct pair *p, struct area *one, struct ib_mr *mr)
{
	struct area two;
	u32 old;

	if (!area_make(&two, &p->b, 2, 0))
		return;
	if (!map_and_reg(&p->b, mr, one, REMOTE))
		goto free;
	fill(p->a.buf, CHUNK_WORDS, 5, 0);
	is("first WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, PAGE_SIZE, mr->iova, mr->rkey),
	   IB_WC_SUCCESS);
	old = mr->rkey;
	is("LOCAL_INV", invalidate(&p->b, old), IB_WC_SUCCESS);
	area_fill(one, 7);
	ib_update_fast_reg_key(mr, ib_inc_rkey(old));
	is("another key", mr->rkey != old, true);
	if (!map_and_reg(&p->b, mr, &two, REMOTE))
		goto free;
	is("bytes registered", mr->length, 2 * PAGE_SIZE);
	is("second WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 2 * PAGE_SIZE, mr->iova, mr->rkey),
	   IB_WC_SUCCESS);
	is("new memory", area_matches(&two, 5), true);
	expect(p, "old key", IB_WR_RDMA_WRITE, mr->iova, old, IB_WC_REM_ACCESS_ERR);
	is("LOCAL_INV of the second", invalidate(&p->b, mr->rkey), IB_WC_SUCCESS);
	if (!map_and_reg(&p->b, mr, one, REMOTE))
		goto free;
	is("old memory", area_matches(one, 7), true);
	is("third WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 3 * PAGE_SIZE, mr->iova, mr->rkey),
	   IB_WC_SUCCESS);
	is("memory registered again", area_matches(one, 5), true);
	is("REG_MR of a valid region", reg(&p->b, mr, REMOTE), IB_WC_MW_BIND_ERR);
free:
	area_free(&two);
}

static void register_again(struct pair *p)
{
	with_region(p, 3, 0, 3, two_memories);
}

/* A range that starts and ends within pages: accesses outside of it fail and change nothing. */
static void part_of_pages(struct pair *p, struct area *area, struct ib_mr *mr)
{
	const u32 lead = 1000, tail = 24, count = area->count;
	u32 len = count * PAGE_SIZE - lead - tail;
	unsigned int skip = lead - 200;
	u32 i;

	/* The offset is the sum of that of the list and that of the call. */
	ib_dma_unmap_sg(area->dev, area->sg, count, DMA_BIDIRECTIONAL);
	sg_set_page(&area->sg[0], sg_page(&area->sg[0]), PAGE_SIZE - 200, 200);
	sg_set_page(&area->sg[count - 1], sg_page(&area->sg[count - 1]), PAGE_SIZE - tail, 0);
	area->mapped = ib_dma_map_sg(area->dev, area->sg, count, DMA_BIDIRECTIONAL) == count;
	area_fill(area, 3);
	is("entries mapped", ib_map_mr_sg(mr, area->sg, count, &skip, PAGE_SIZE), count);
	is("bytes registered", mr->length, len);
	is("offset in the page", mr->iova & ~PAGE_MASK, lead);
	is("REG_MR", reg(&p->b, mr, REMOTE), IB_WC_SUCCESS);
	memset(p->a.buf, 0xa5, len);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, len, mr->iova, mr->rkey), IB_WC_SUCCESS);
	is("before the range", matches(words_of(area, 0), lead / 4, 3, 0), true);
	is("behind the range",
	   matches(words_of(area, count - 1) + (PAGE_SIZE - tail) / 4, tail / 4, 3,
		   (count * PAGE_SIZE - tail) / 4), true);
	for (i = 0; i < count; i++) {
		u8 *page = (u8 *)words_of(area, i);
		u32 from = i ? 0 : lead, to = i == count - 1 ? PAGE_SIZE - tail : PAGE_SIZE;

		is("range", !memchr_inv(page + from, 0xa5, to - from), true);
	}
	/* Two bytes in each of two pages. */
	is("WRITE across pages",
	   rdma(&p->a, IB_WR_RDMA_WRITE, 0, 4, mr->iova + PAGE_SIZE - lead - 2, mr->rkey),
	   IB_WC_SUCCESS);
	expect(p, "byte before", IB_WR_RDMA_READ, mr->iova - 1, mr->rkey, IB_WC_REM_ACCESS_ERR);
	expect(p, "byte behind", IB_WR_RDMA_WRITE, mr->iova + len - 3, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
	is("behind the range", *(words_of(area, count - 1) + (PAGE_SIZE - tail) / 4),
	   pattern(3, (count * PAGE_SIZE - tail) / 4));
}

static void offsets(struct pair *p)
{
	with_region(p, 4, 0, 4, part_of_pages);
}

static void expect_no_mr(struct end *e, const char *what, enum ib_mr_type type, u32 pages,
			 int error)
{
	struct ib_mr *mr = ib_alloc_mr(e->pd, type, pages);

	is(what, PTR_ERR_OR_ZERO(mr), error);
	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
}

/* More pages than were allocated. */
static void six_of_four(struct pair *p, struct area *area, struct ib_mr *mr)
{
	is("entries mapped", ib_map_mr_sg(mr, area->sg, 6, NULL, PAGE_SIZE), 4);
	is("bytes mapped", mr->length, 4 * PAGE_SIZE);
	is("page size 3000", ib_map_mr_sg(mr, area->sg, 4, NULL, 3000) < 0, true);
	is("entries mapped", ib_map_mr_sg(mr, area->sg, 6, NULL, PAGE_SIZE), 4);
	/* A consumer that ignores the number of entries mapped. */
	mr->length = 6 * PAGE_SIZE;
	is("REG_MR of more", reg(&p->b, mr, REMOTE), IB_WC_MW_BIND_ERR);
	is("connecting again", pair_connect(p), 0);
	mr->length = 4 * PAGE_SIZE;
	is("REG_MR", reg(&p->b, mr, REMOTE), IB_WC_SUCCESS);
	expect(p, "fourth page", IB_WR_RDMA_WRITE, mr->iova + 4 * PAGE_SIZE - 4, mr->rkey,
	       IB_WC_SUCCESS);
	expect(p, "fifth page", IB_WR_RDMA_WRITE, mr->iova + 4 * PAGE_SIZE, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
}

static void too_long(struct pair *p)
{
	u32 most = p->b.dev->attrs.max_fast_reg_page_list_len;

	expect_no_mr(&p->b, "more than the device has", IB_MR_TYPE_MEM_REG, most + 1, -EINVAL);
	expect_no_mr(&p->b, "none", IB_MR_TYPE_MEM_REG, 0, -EINVAL);
	expect_no_mr(&p->b, "lists with gaps", IB_MR_TYPE_SG_GAPS, 4, -EOPNOTSUPP);
	with_region(p, 6, 0, 4, six_of_four);
}

/* No access with a key that is not registered or invalidated, or without the right. */
static void no_key(struct pair *p, struct area *area, struct ib_mr *mr)
{
	is("entries mapped", ib_map_mr_sg(mr, area->sg, 2, NULL, PAGE_SIZE), 2);
	expect(p, "READ before REG_MR", IB_WR_RDMA_READ, mr->iova, mr->rkey, IB_WC_REM_ACCESS_ERR);
	is("REG_MR for reading", reg(&p->b, mr, IB_ACCESS_REMOTE_READ), IB_WC_SUCCESS);
	expect(p, "READ", IB_WR_RDMA_READ, mr->iova, mr->rkey, IB_WC_SUCCESS);
	expect(p, "WRITE to a read-only region", IB_WR_RDMA_WRITE, mr->iova, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
	is("LOCAL_INV", invalidate(&p->b, mr->rkey), IB_WC_SUCCESS);
	is("REG_MR", reg(&p->b, mr, REMOTE), IB_WC_SUCCESS);
	area_fill(area, 9);
	is("LOCAL_INV", invalidate(&p->b, mr->rkey), IB_WC_SUCCESS);
	expect(p, "WRITE after LOCAL_INV", IB_WR_RDMA_WRITE, mr->iova, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
	expect(p, "READ after LOCAL_INV", IB_WR_RDMA_READ, mr->iova, mr->rkey,
	       IB_WC_REM_ACCESS_ERR);
	is("memory", area_matches(area, 9), true);
	is("LOCAL_INV of another key", invalidate(&p->b, mr->rkey ^ 1) != IB_WC_SUCCESS, true);
}

static void refused(struct pair *p)
{
	with_region(p, 2, 0, 2, no_key);
}

/* The peer invalidates the key by SEND with Invalidate, as storage targets do. */
static void three_rounds(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND_WITH_INV };
	struct ib_wc wc;
	int i;

	for (i = 0; i < 3 && !failed(); i++) {
		if (!map_and_reg(&p->b, mr, area, REMOTE))
			break;
		expect(p, "WRITE", IB_WR_RDMA_WRITE, mr->iova, mr->rkey, IB_WC_SUCCESS);
		is("post_recv", post_recv(&p->b, 77), 0);
		wr.ex.invalidate_rkey = mr->rkey;
		is("SEND_WITH_INV", run(&p->a, &wr), IB_WC_SUCCESS);
		is("receive completion", take(&p->b, &wc), 0);
		is("receive status", wc.status, IB_WC_SUCCESS);
		is("receive wr_id", wc.wr_id, 77);
		is("IB_WC_WITH_INVALIDATE", wc.wc_flags & IB_WC_WITH_INVALIDATE,
		   IB_WC_WITH_INVALIDATE);
		is("key invalidated", wc.ex.invalidate_rkey, mr->rkey);
		expect(p, "WRITE afterwards", IB_WR_RDMA_WRITE, mr->iova, mr->rkey,
		       IB_WC_REM_ACCESS_ERR);
		ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
	}
	/* The peer cannot invalidate a key that is not registered. */
	is("post_recv", post_recv(&p->b, 78), 0);
	wr.ex.invalidate_rkey = mr->rkey;
	is("SEND_WITH_INV of nothing", run(&p->a, &wr) != IB_WC_SUCCESS, true);
}

static void send_inv(struct pair *p)
{
	with_region(p, 2, 0, 2, three_rounds);
}

/* One chain that registers a region, uses it as local memory and invalidates it. */
static void chain(struct pair *p)
{
	struct ib_sge sge = {};
	struct ib_send_wr inv = {
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.wr_id = 3,
	};
	struct ib_rdma_wr read = {
		.wr = {
			.next = &inv,
			.opcode = IB_WR_RDMA_READ,
			.sg_list = &sge,
			.num_sge = 1,
			.wr_id = 2,
		},
	};
	struct ib_reg_wr reg_wr = {
		.wr = { .next = &read.wr, .opcode = IB_WR_REG_MR, .wr_id = 1 },
		.access = LOCAL,
	};
	struct area source, sink = {};
	struct ib_mr *from = NULL, *to = NULL;
	struct ib_wc wc;

	if (!area_make(&source, &p->b, 4, 0) || !area_make(&sink, &p->a, 4, 0))
		goto free;
	from = mr_alloc(&p->b, 4);
	to = mr_alloc(&p->a, 4);
	if (!from || !to || !map_and_reg(&p->b, from, &source, REMOTE))
		goto free;
	area_fill(&source, 11);
	is("entries mapped", ib_map_mr_sg(to, sink.sg, 4, NULL, PAGE_SIZE), 4);
	reg_wr.mr = to;
	reg_wr.key = to->rkey;
	sge = (struct ib_sge){ .addr = to->iova, .length = to->length, .lkey = to->lkey };
	read.remote_addr = from->iova;
	read.rkey = from->rkey;
	inv.ex.invalidate_rkey = to->rkey;
	/* The key must stay valid until the data has been received. */
	inv.send_flags |= IB_SEND_FENCE;
	is("post_send", ib_post_send(p->a.qp, &reg_wr.wr, NULL), 0);
	if (is("completion", take(&p->a, &wc), 0)) {
		is("status", wc.status, IB_WC_SUCCESS);
		is("wr_id", wc.wr_id, 3);
		is("opcode", wc.opcode, IB_WC_LOCAL_INV);
	}
	is("data", area_matches(&sink, 11), true);
free:
	if (to)
		is("dereg_mr", ib_dereg_mr(to), 0);
	if (from)
		is("dereg_mr", ib_dereg_mr(from), 0);
	area_free(&sink);
	area_free(&source);
}

static int atomic(struct end *e, enum ib_wr_opcode op, u64 compare_add, u64 swap, u64 remote,
		  u32 rkey)
{
	struct ib_sge sge = { .addr = e->addr, .length = 8, .lkey = e->pd->local_dma_lkey };
	struct ib_atomic_wr wr = {
		.wr = { .opcode = op, .sg_list = &sge, .num_sge = 1 },
		.remote_addr = remote,
		.compare_add = compare_add,
		.swap = swap,
		.rkey = rkey,
	};

	return run(e, &wr.wr);
}

static void last_word(struct pair *p, struct area *area, struct ib_mr *mr)
{
	u64 *word, *old = p->a.buf;

	if (!map_and_reg(&p->b, mr, area, REMOTE | IB_ACCESS_REMOTE_ATOMIC))
		return;
	/* The last word of the first page. */
	word = (u64 *)words_of(area, 0) + PAGE_SIZE / 8 - 1;
	*word = 0xffffffff;
	is("FETCH_ADD",
	   atomic(&p->a, IB_WR_ATOMIC_FETCH_AND_ADD, 7, 0, mr->iova + PAGE_SIZE - 8, mr->rkey),
	   IB_WC_SUCCESS);
	is("value before", *old, 0xffffffff);
	is("sum", *word, 0x100000006);
	is("CMP_SWP",
	   atomic(&p->a, IB_WR_ATOMIC_CMP_AND_SWP, *word, 3, mr->iova + PAGE_SIZE - 8, mr->rkey),
	   IB_WC_SUCCESS);
	is("value before", *old, 0x100000006);
	is("value swapped in", *word, 3);
	is("CMP_SWP",
	   atomic(&p->a, IB_WR_ATOMIC_CMP_AND_SWP, 4, 9, mr->iova + PAGE_SIZE - 8, mr->rkey),
	   IB_WC_SUCCESS);
	is("value before", *old, 3);
	is("value not swapped", *word, 3);
	is("in two pages",
	   atomic(&p->a, IB_WR_ATOMIC_FETCH_AND_ADD, 1, 0, mr->iova + PAGE_SIZE - 4, mr->rkey),
	   IB_WC_LOC_QP_OP_ERR);
	is("connecting again", pair_connect(p), 0);
	is("LOCAL_INV", invalidate(&p->b, mr->rkey), IB_WC_SUCCESS);
	is("REG_MR", reg(&p->b, mr, REMOTE), IB_WC_SUCCESS);
	is("without the right",
	   atomic(&p->a, IB_WR_ATOMIC_FETCH_AND_ADD, 1, 0, mr->iova + PAGE_SIZE - 8, mr->rkey),
	   IB_WC_REM_ACCESS_ERR);
	is("value at the end", *word, 3);
}

static void atomics(struct pair *p)
{
	with_region(p, 2, 0, 2, last_word);
}

/*
 * ATOMICs: the list has room for the result, of which a longer one takes 8 bytes; the word is
 * aligned. A request that fails must not have been executed.
 */
static void lists_of_atomics(struct pair *p, struct area *area, struct ib_mr *mr)
{
	static const struct {
		u32 length;
		u32 offset;
		u32 flags;
		int posted;
		int status;
	} cases[] = {
		{ 8, 0, 0, 0, IB_WC_SUCCESS },
		{ 16, 0, 0, 0, IB_WC_SUCCESS },
		{ 4, 0, 0, 0, IB_WC_LOC_LEN_ERR },
		{ 8, 4, 0, 0, IB_WC_LOC_QP_OP_ERR },
		{ 8, 0, IB_SEND_INLINE, -EINVAL, 0 },
	};
	struct ib_sge sge = { .addr = p->a.addr, .lkey = p->a.pd->local_dma_lkey };
	struct ib_atomic_wr wr = {
		.wr = { .sg_list = &sge, .num_sge = 1 },
		.compare_add = 1,
		.swap = 7,
	};
	u64 *result = p->a.buf, *word = (u64 *)words_of(area, 0);
	struct ib_wc wc;
	int i, op, done;

	if (!map_and_reg(&p->b, mr, area, REMOTE | IB_ACCESS_REMOTE_ATOMIC))
		return;
	wr.rkey = mr->rkey;
	for (op = 0; op < 2; op++) {
		wr.wr.opcode = op ? IB_WR_ATOMIC_CMP_AND_SWP : IB_WR_ATOMIC_FETCH_AND_ADD;
		for (i = 0; i < ARRAY_SIZE(cases); i++) {
			if (!is("connect", pair_connect(p), 0))
				return;
			word[0] = 1;
			word[1] = 1;
			result[0] = 5;
			result[1] = 5;
			sge.length = cases[i].length;
			wr.remote_addr = mr->iova + cases[i].offset;
			wr.wr.send_flags = IB_SEND_SIGNALED | cases[i].flags;
			if (!is("post_send", ib_post_send(p->a.qp, &wr.wr, NULL), cases[i].posted))
				pr_info("# case %d\n", i);
			done = !cases[i].posted && cases[i].status == IB_WC_SUCCESS;
			if (!cases[i].posted) {
				is("completion", take(&p->a, &wc), 0);
				if (!is("status", wc.status, cases[i].status))
					pr_info("# case %d\n", i);
				if (done)
					is("bytes", wc.byte_len, 8);
			}
			is("word", word[0], done ? (op ? 7 : 2) : 1);
			is("word behind it", word[1], 1);
			is("result", result[0], done ? 1 : 5);
			is("memory behind it", result[1], 5);
		}
	}
}

static void bad_atomics(struct pair *p)
{
	with_region(p, 1, 0, 1, lists_of_atomics);
}

/* A CPU that increments a word. */
struct adder {
	atomic64_t *word;
	u64 added;
};

static int add_until_stopped(void *context)
{
	struct adder *adder = context;
	int i;

	while (!kthread_should_stop()) {
		for (i = 0; i < 4096; i++)
			atomic64_inc(adder->word);
		adder->added += i;
		cond_resched();
	}
	return 0;
}

/* No increment is lost, neither one of the device nor one of a CPU. */
static void shared_word(struct pair *p, struct area *area, struct ib_mr *mr)
{
	struct adder adder = { .word = (atomic64_t *)words_of(area, 0) };
	struct ib_sge sge = { .addr = p->a.addr, .length = 8, .lkey = p->a.pd->local_dma_lkey };
	struct ib_atomic_wr wr = {
		.wr = { .opcode = IB_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1 },
		.compare_add = 1,
	};
	struct task_struct *thread;
	int added = 0;

	if (!map_and_reg(&p->b, mr, area, REMOTE | IB_ACCESS_REMOTE_ATOMIC))
		return;
	atomic64_set(adder.word, 0);
	thread = kthread_run(add_until_stopped, &adder, "kverbs_add");
	if (!is("starting a thread", PTR_ERR_OR_ZERO(thread), 0))
		return;
	wr.remote_addr = mr->iova;
	wr.rkey = mr->rkey;
	while (added < 8000 && !failed()) {
		/* Batches of 16; waits for the last of each. */
		wr.wr.send_flags = 0;
		for (; added % 16 != 15; added++)
			is("posting", ib_post_send(p->a.qp, &wr.wr, NULL), 0);
		is("FETCH_ADD", run(&p->a, &wr.wr), IB_WC_SUCCESS);
		added++;
	}
	kthread_stop(thread);
	is("sum", atomic64_read(adder.word), added + adder.added);
}

static void atomics_and_processors(struct pair *p)
{
	with_region(p, 1, 0, 1, shared_word);
}

/*
 * The key of local memory needs no region. It is a key for local accesses to the linear map, and
 * not for a peer, whatever it does.
 */
static void local_key(struct pair *p)
{
	struct ib_sge sge = { .addr = 0x1000, .length = 8, .lkey = p->a.pd->local_dma_lkey };
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	u64 *word = p->b.buf;

	is("a region in the domain", !!p->a.pd->__internal_mr, false);
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 0, 0, 0), IB_WC_SUCCESS);
	*word = 77;
	expect(p, "WRITE by a peer", IB_WR_RDMA_WRITE, p->b.addr, p->b.pd->local_dma_lkey,
	       IB_WC_REM_ACCESS_ERR);
	expect(p, "READ by a peer", IB_WR_RDMA_READ, p->b.addr, p->b.pd->local_dma_lkey,
	       IB_WC_REM_ACCESS_ERR);
	is("FETCH_ADD by a peer",
	   atomic(&p->a, IB_WR_ATOMIC_FETCH_AND_ADD, 7, 0, p->b.addr, p->b.pd->local_dma_lkey),
	   IB_WC_REM_ACCESS_ERR);
	is("connecting again", pair_connect(p), 0);
	is("word", *word, 77);
	is("SEND from outside the linear map", run(&p->a, &wr), IB_WC_LOC_PROT_ERR);
}

/* A key of all memory, which a consumer gives to its peer. */
static void global_key(struct pair *p)
{
	u32 key = p->b.pd->unsafe_global_rkey;
	u64 *from = p->a.buf, *to = p->b.buf;

	is("a region in the domain", !!p->b.pd->__internal_mr, true);
	*from = 77;
	*to = 0;
	is("WRITE", rdma(&p->a, IB_WR_RDMA_WRITE, 0, 8, p->b.addr, key), IB_WC_SUCCESS);
	is("word written", *to, 77);
	*to = 78;
	is("READ", rdma(&p->a, IB_WR_RDMA_READ, 0, 8, p->b.addr, key), IB_WC_SUCCESS);
	is("word read", *from, 78);
	/* There is no right to ATOMICs. */
	is("FETCH_ADD", atomic(&p->a, IB_WR_ATOMIC_FETCH_AND_ADD, 7, 0, p->b.addr, key),
	   IB_WC_REM_ACCESS_ERR);
	is("connecting again", pair_connect(p), 0);
	expect(p, "outside the linear map", IB_WR_RDMA_WRITE, 0x1000, key, IB_WC_REM_ACCESS_ERR);
	is("word at the end", *to, 78);
}

const struct test reg_tests[] = {
	{ "global_key", global_key, { .context = POLLED, .global_rkey = true } },
	{ "local_key", local_key, { .context = POLLED } },
	{ "reg_many_pages", many_pages, { .context = POLLED } },
	{ "reg_most_pages", most_pages, { .context = POLLED } },
	{ "reg_large_pages", large_pages, { .context = POLLED } },
	{ "reg_again", register_again, { .context = POLLED } },
	{ "reg_offsets", offsets, { .context = POLLED } },
	{ "reg_too_long", too_long, { .context = POLLED } },
	{ "reg_refused", refused, { .context = POLLED } },
	{ "reg_invalidated_by_peer", send_inv, { .context = POLLED } },
	{ "reg_chain", chain, { .context = POLLED } },
	{ "reg_atomics", atomics, { .context = POLLED } },
	{ "reg_bad_atomics", bad_atomics, { .context = POLLED } },
	{ "reg_atomics_and_processors", atomics_and_processors, { .context = POLLED } },
	{}
};
