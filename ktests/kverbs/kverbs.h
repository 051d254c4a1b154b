/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tests of RDMA verbs as kernel consumers call them, between two devices.
 *
 * A test continues after a failure, without long waits; the first failure is reported.
 */
#ifndef KVERBS_H
#define KVERBS_H

#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>

/* Length of the linear buffer of each end in bytes. */
#ifndef BUF_LEN
#define BUF_LEN (256u << 10)
#endif

/* For setup.context: the test polls the CQ. */
#define POLLED (-1)

/* One side of a connection. */
struct end {
	struct ib_device *dev;
	const struct ib_gid_attr *gid;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_srq *srq;
	struct ib_qp *qp;
	/* The buffer of tests, and its DMA address. */
	void *buf;
	u64 addr;
	/* Calls of the completion handler; those in process context, as from a verb. */
	atomic_t cq_calls;
	atomic_t cq_calls_in_task;
	/* The CPU of the last call. */
	int cq_cpu;
	/* Events of the SRQ and the QP. */
	atomic_t srq_limits;
	atomic_t last_wqes;
	struct ib_qp_init_attr qp_attr;
};

struct pair {
	struct end a;
	struct end b;
};

/* Objects that a test needs. */
struct setup {
	/* Requests per queue and SGEs per request; 0 for the defaults 32 and 2. */
	u32 depth;
	u32 sges;
	/* An enum ib_poll_context, or POLLED. */
	int context;
	/* b uses an SRQ. */
	bool srq;
	/* The protection domains have a key for all memory. */
	bool global_rkey;
	/* The completion vector of the CQs of polled consumers; that of the others is 0. */
	u32 vector;
};

struct test {
	const char *name;
	void (*run)(struct pair *p);
	struct setup setup;
};

/* main.c */
/* Records a failure if the numbers differ; returns true if they are equal. */
bool is(const char *what, long long got, long long wanted);
/* Returns true if the running test has failed. */
bool failed(void);

/* devices.c */
/* The devices of both sides, each with a reference. */
extern struct devices {
	struct ib_device *a, *b;
} devices;

/* Takes references to the devices with these names; 0 or an error number. */
int devices_get(const char *a, const char *b);
void devices_put(void);

/* pair.c */
int pair_open(struct pair *p, const struct setup *setup);
void pair_close(struct pair *p);
/* Moves both QPs to RTS through RESET; discards pending completions. */
int pair_connect(struct pair *p);
int set_state(struct end *e, enum ib_qp_state state);
int to_init(struct end *e);
/* From RESET, connected to the other end. */
int to_rtr(struct end *e, struct end *to);
/* Sets the peer's Ethernet address, which a kernel consumer has to resolve itself. */
int address_of(const struct end *from, const struct end *to, struct rdma_ah_attr *ah);
/* Creates a QP in place of one that has been destroyed. */
int qp_make(struct end *e);
/* Waits until the counter has the value, or for a timeout. */
void await(const char *what, atomic_t *counter, int value);
/* Waits for the next completion; returns 0 or -ETIMEDOUT. */
int take(struct end *e, struct ib_wc *wc);
/* Posts a signaled request and waits for it; returns its status or a negative error. */
int run(struct end *e, struct ib_send_wr *wr);
/* RDMA between the buffer of e, from offset @at, and memory of its peer. */
int rdma(struct end *e, enum ib_wr_opcode op, u32 at, u32 len, u64 remote, u32 rkey);
/* Posts signaled RDMA WRITEs of length 0, with ascending wr_id from @first. */
int post_empty(struct end *e, u64 first, u32 count);
/* Posts a receive request for the whole buffer. */
int post_recv(struct end *e, u64 wr_id);
/* Returns the word at an index of a pattern. */
u32 pattern(u32 seed, u32 index);
void fill(u32 *to, u32 words, u32 seed, u32 first);
bool matches(const u32 *words, u32 count, u32 seed, u32 first);

/* area.c */
/* Chunks of memory of the same size that are not contiguous. */
struct area {
	struct ib_device *dev;
	struct scatterlist *sg;
	u32 count;
	u32 order;
	bool mapped;
};

bool area_make(struct area *area, struct end *e, u32 count, u32 order);
void area_free(struct area *area);
/* The page of an entry as words, whichever part of it the entry covers. */
u32 *words_of(const struct area *area, u32 i);
void area_fill(const struct area *area, u32 seed);
bool area_matches(const struct area *area, u32 seed);

extern const struct test reg_tests[];
extern const struct test segment_tests[];
extern const struct test queue_tests[];
extern const struct test post_tests[];
extern const struct test batching_tests[];
extern const struct test path_tests[];

#endif
