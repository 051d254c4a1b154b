/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tests of RDMA verbs as users in the kernel call them, between two devices.
 *
 * A test is a script: it goes on after a failure, of which the first counts, and nothing waits long any more then.
 */
#ifndef KVERBS_H
#define KVERBS_H

#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>

/* Bytes of the linear buffer of each end. */
#define BUF_LEN (256u << 10)

/* For setup.context: the CQ is the test's own to poll. */
#define POLLED (-1)

/* One side of a connection. */
struct end {
	struct ib_device *dev;
	const struct ib_gid_attr *gid;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_srq *srq;
	struct ib_qp *qp;
	/* Memory that every test has; its address for the device. */
	void *buf;
	u64 addr;
	/* Calls of the completion handler; events of the SRQ and the QP. */
	atomic_t told;
	/* Calls of it in process context, as from a verb that the same task has called. */
	atomic_t told_in_task;
	atomic_t srq_limits;
	atomic_t last_wqes;
	struct ib_qp_init_attr qp_attr;
};

struct pair {
	struct end a;
	struct end b;
};

/* What a test wants made for it. */
struct setup {
	/* Requests of each queue, SGEs of each request; 0: 32 and 2. */
	u32 depth;
	u32 sges;
	/* An enum ib_poll_context, or POLLED. */
	int context;
	/* b receives from an SRQ. */
	bool srq;
};

struct test {
	const char *name;
	void (*run)(struct pair *p);
	struct setup setup;
};

/* main.c */
/* Notes a failure if the numbers differ; returns whether they are equal. */
bool is(const char *what, long long got, long long wanted);
/* Whether the running test has failed. */
bool failed(void);

/* pair.c */
int pair_open(struct pair *p, const struct setup *setup);
void pair_close(struct pair *p);
/* Takes both QPs to RTS, through RESET; completions waiting are thrown away. */
int pair_connect(struct pair *p);
int set_state(struct end *e, enum ib_qp_state state);
int to_init(struct end *e);
/* Fills in what a user in the kernel must find out by itself: the peer's Ethernet address. */
int address_of(const struct end *from, const struct end *to, struct rdma_ah_attr *ah);
/* Makes a QP in place of one that was destroyed. */
int qp_make(struct end *e);
/* Waits until the counter has the value, or for long. */
void await(const char *what, atomic_t *counter, int value);
/* The next completion, waiting for it; 0 or -ETIMEDOUT. */
int take(struct end *e, struct ib_wc *wc);
/* Posts one signalled request and waits for its completion: its status, or an error number. */
int run(struct end *e, struct ib_send_wr *wr);
/* RDMA between the buffer of e, from `at`, and what its peer's key stands for. */
int rdma(struct end *e, enum ib_wr_opcode op, u32 at, u32 len, u64 remote, u32 rkey);
/* Posts RDMA WRITEs of no bytes, signalled, with wr_id from `first` on. */
int post_empty(struct end *e, u64 first, u32 count);
/* Posts a receive request for the whole buffer. */
int post_recv(struct end *e, u64 wr_id);
/* The word at an index of a pattern. */
u32 pattern(u32 seed, u32 index);
void fill(u32 *to, u32 words, u32 seed, u32 first);
bool matches(const u32 *words, u32 count, u32 seed, u32 first);

/* area.c */
/* Memory in pieces of one size that do not follow each other. */
struct area {
	struct ib_device *dev;
	struct scatterlist *sg;
	u32 count;
	u32 order;
	bool mapped;
};

bool area_make(struct area *area, struct end *e, u32 count, u32 order);
void area_free(struct area *area);
/* Words of the page of an entry, whatever part of it the entry names. */
u32 *words_of(const struct area *area, u32 i);
void area_fill(const struct area *area, u32 seed);
bool area_matches(const struct area *area, u32 seed);

extern const struct test reg_tests[];
extern const struct test segment_tests[];
extern const struct test queue_tests[];
extern const struct test post_tests[];
extern const struct test path_tests[];

#endif
