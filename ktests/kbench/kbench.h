/* SPDX-License-Identifier: GPL-2.0 */
/* Measures verbs as users in the kernel call them, between two devices. */
#ifndef KBENCH_H
#define KBENCH_H

#include <kverbs.h>

/* What to measure: the parameters of the module. */
struct measure {
	/* Bytes of each message, at most BUF_LEN. */
	u32 size;
	/* Requests in flight, at least 1. */
	u32 depth;
	/* Operations in all. */
	u32 count;
};

/* run.c: one measurement at a time. */
void run_begin(void);
/* From a completion handler: all is done, or failed with a completion status or error number. */
void run_end(int error);
/* Waits for the end, unless there is an error already: ns per operation, or an error number. */
s64 run_result(int error, u32 count);
/* Posts a signalled request for the first `size` bytes of both buffers. */
int post_request(struct end *from, const struct end *to, enum ib_wr_opcode op, u32 size,
		 struct ib_cqe *cqe);
int post_receive(struct end *e, u32 size, struct ib_cqe *cqe);

/* Each measures one thing and returns nanoseconds per operation, or an error number. */

/*
 * Requests in flight all the time; each completion posts the next, from the completion handler.
 * With `count` pairs each of them has its turn; these may not be SENDs then.
 */
s64 stream(struct pair *pairs, u32 count, enum ib_wr_opcode op, const struct measure *m);
/* The same in two steps: run_result() waits for the end, which stream_stop() brings about. */
int stream_begin(struct pair *pairs, u32 count, enum ib_wr_opcode op, const struct measure *m);
void stream_stop(void);
/* SENDs back and forth, each answered from the completion handler: half of a round trip. */
s64 pingpong(struct pair *p, const struct measure *m);

/*
 * crowd.c: `count` connected pairs with the buffers and completion queues of another, which
 * together have `depth` requests in flight.
 */
struct pair *crowd_open(const struct pair *like, u32 count, u32 depth);
void crowd_close(struct pair *pairs, u32 count);
/* Prints how many more softirqs a second there are with `count` idle pairs than without. */
int measure_idle(struct pair *p, u32 count, const struct measure *m);

/*
 * beside.c: sends `m->count` messages of an idle pair, one at a time, beside `qps` pairs which have
 * `m->depth` WRITEs of `m->size` bytes in flight; prints the median and the 99th percentile.
 */
int measure_beside(struct pair *load, u32 qps, const struct measure *m);

/* Makes and destroys `count` objects; prints both. */
struct object {
	const char *name;
	int (*make)(struct end *e, void **object);
	void (*destroy)(void *object);
};

extern const struct object objects[];
int measure_object(struct pair *p, const struct object *object, const struct measure *m);

#endif
