/* SPDX-License-Identifier: GPL-2.0 */
/* Measures the performance of verbs as kernel consumers call them, between two devices. */
#ifndef KBENCH_H
#define KBENCH_H

#include <kverbs.h>

/* Parameters of a measurement, from those of the module. */
struct measure {
	/* Bytes of each message, at most BUF_LEN. */
	u32 size;
	/* Requests in flight, at least 1. */
	u32 depth;
	/* Number of operations. */
	u32 count;
};

/* run.c: one measurement at a time. */
void run_begin(void);
/* Ends it, from a completion handler; error is a completion status, an error number or 0. */
void run_end(int error);
/* Waits for the end, unless error is set; returns ns per operation, or an error number. */
s64 run_result(int error, u32 count);
/*
 * Returns when no completion handler uses the QP any more. The run ends in a handler, while others
 * may still run and post requests. In ERR, what they post is flushed, and they post nothing for a
 * flushed request. If they post to several QPs, all of these must be drained before one is
 * destroyed.
 */
void end_drain(struct end *e);
/* Posts a signaled request for the first @size bytes of both buffers. */
int post_request(struct end *from, const struct end *to, enum ib_wr_opcode op, u32 size,
		 struct ib_cqe *cqe);
int post_receive(struct end *e, u32 size, struct ib_cqe *cqe);

/* These functions return nanoseconds per operation, or an error number. */

/*
 * Keeps m->depth requests in flight: the completion handler posts the next one. With more than one
 * pair they take turns, and op must not be a SEND.
 */
s64 stream(struct pair *pairs, u32 count, enum ib_wr_opcode op, const struct measure *m);
/* The same in two steps; after stream_stop() no more requests are posted, and the run ends. */
int stream_begin(struct pair *pairs, u32 count, enum ib_wr_opcode op, const struct measure *m);
void stream_stop(void);
/* SENDs in turns by both sides, from the completion handlers: half of a round trip time. */
s64 pingpong(struct pair *p, const struct measure *m);

/*
 * crowd.c: @count connected pairs with the buffers and completion queues of @like, with send queues
 * for @depth requests in all.
 */
struct pair *crowd_open(const struct pair *like, u32 count, u32 depth);
void crowd_close(struct pair *pairs, u32 count);
/* Prints the number of softirqs per second that @count idle pairs cause. */
int measure_idle(struct pair *p, u32 count, const struct measure *m);

/*
 * beside.c: sends m->count messages by a mostly idle pair, one at a time, beside @qps pairs which
 * have m->depth WRITEs of m->size bytes in flight; prints the median and the 99th percentile of
 * the latency.
 */
int measure_beside(struct pair *load, u32 qps, const struct measure *m);

/* objects.c: creates and destroys m->count objects, and prints the time of both. */
struct object {
	const char *name;
	int (*make)(struct end *e, void **object);
	void (*destroy)(void *object);
};

extern const struct object objects[];
int measure_object(struct pair *p, const struct object *object, const struct measure *m);

#endif
