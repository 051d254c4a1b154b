// SPDX-License-Identifier: GPL-2.0
/*
 * Measures time and memory of verbs objects of a process, for qemu/bench.
 *
 * objects DEVICE GID-INDEX PEER time	time to create, change and destroy objects of each kind; of
 *					an empty doorbell, which each request costs in any driver;
 *					to arm a CQ; and from a process to one that it wakes up
 * objects DEVICE GID-INDEX PEER memory	memory of an object of each kind
 *
 * PEER is the IPv4 address of another device, to which queue pairs send without a response. Each
 * result is a line: "create_mr.4K 103211" in nanoseconds, "memory_qp.16 28600" in bytes, or an
 * error and the number of objects before it: "mw error 95 after 0". Times are medians of several
 * rounds. Exit status: 0, 1 if the device cannot be opened, 2 if the arguments are wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>

#define GIB (1024ul * 1024 * 1024)
#define MOST 16000
/* A QPN that the peer does not use: packets to it get no response. */
#define NOBODY 0xfffff1
#define MESSAGE 64
#define DOORBELLS 20000
#define WAKEUPS 5000
/* Rounds of creating, changing and destroying objects of a kind; odd, because of the median. */
#define ROUNDS 5
/* Changes of the machine's free memory up to this number of bytes are ignored. */
#define SETTLED (128 << 10)

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	union ibv_gid peer;
	int gid_index;
	enum ibv_mtu mtu;
	/* Memory to be registered. */
	void *area;
} global;

/* A kind of object; `detail` is its size or depth, and part of its name if it is not 0. */
struct kind {
	const char *name;
	unsigned long detail;
	int timed;
	void *(*make)(unsigned long detail);
	int (*destroy)(void *object);
	/* Changes an object, under this name in the results, or NULL. */
	const char *changed;
	int (*change)(void *object);
	/* The number of objects whose memory is measured, or 0; fills the queues of an object. */
	int kept;
	int (*fill)(void *object, unsigned long detail);
};

static void *make_pd(unsigned long detail)
{
	return ibv_alloc_pd(global.context);
}

static int destroy_pd(void *object)
{
	return ibv_dealloc_pd(object);
}

static void *make_cq(unsigned long detail)
{
	return ibv_create_cq(global.context, detail, NULL, NULL, 0);
}

static int destroy_cq(void *object)
{
	return ibv_destroy_cq(object);
}

static void *make_qp(unsigned long detail)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = global.cq, .recv_cq = global.cq, .qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = detail, .max_recv_wr = detail,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
	};

	return ibv_create_qp(global.pd, &attr);
}

static int destroy_qp(void *object)
{
	return ibv_destroy_qp(object);
}

static void *make_mr(unsigned long detail)
{
	return ibv_reg_mr(global.pd, global.area, detail,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static int destroy_mr(void *object)
{
	return ibv_dereg_mr(object);
}

/* Passes a command of uverbs to the kernel; returns 0 or an errno. */
static int command(const void *request, size_t len)
{
	return write(global.context->cmd_fd, request, len) == (ssize_t)len ? 0 : errno;
}

/*
 * Gives a region the access rights that it has not, of two combinations, which pin its pages in the
 * same way. libibverbs does not pass the call to the driver: librxe lacks it.
 */
static int rereg_mr(void *object)
{
	static int reads;
	struct ib_uverbs_rereg_mr_resp resp;
	struct ibv_mr *mr = object;
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_rereg_mr cmd;
	} request = {
		.hdr = {
			.command = IB_USER_VERBS_CMD_REREG_MR,
			.in_words = sizeof(request) / 4, .out_words = sizeof(resp) / 4,
		},
		.cmd = {
			.response = (uintptr_t)&resp, .mr_handle = mr->handle,
			.flags = IBV_REREG_MR_CHANGE_ACCESS, .access_flags = IBV_ACCESS_LOCAL_WRITE,
		},
	};

	request.cmd.access_flags |= reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
	reads = !reads;
	return command(&request, sizeof(request));
}

static void *make_mw(unsigned long detail)
{
	return ibv_alloc_mw(global.pd, IBV_MW_TYPE_2);
}

static int destroy_mw(void *object)
{
	return ibv_dealloc_mw(object);
}

static struct ibv_ah_attr path(void)
{
	return (struct ibv_ah_attr){
		.is_global = 1, .port_num = 1,
		.grh = {
			.dgid = global.peer, .sgid_index = global.gid_index, .hop_limit = 64,
		},
	};
}

static void *make_ah(unsigned long detail)
{
	struct ibv_ah_attr attr = path();

	return ibv_create_ah(global.pd, &attr);
}

static int destroy_ah(void *object)
{
	return ibv_destroy_ah(object);
}

/* Creates a queue pair and moves it to RTS. */
static void *make_connected(unsigned long detail)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = make_qp(detail);
	int ret;

	if (!qp)
		return NULL;
	ret = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    IBV_QP_ACCESS_FLAGS);
	attr.qp_state = IBV_QPS_RTR;
	attr.ah_attr = path();
	attr.path_mtu = global.mtu;
	attr.dest_qp_num = NOBODY;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	if (!ret)
		ret = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER);
	attr.qp_state = IBV_QPS_RTS;
	/* 4.3 s: no request fails while memory is measured. */
	attr.timeout = 20;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	if (!ret)
		ret = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
				    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_MAX_QP_RD_ATOMIC);
	if (!ret)
		return qp;
	ibv_destroy_qp(qp);
	errno = ret;
	return NULL;
}

/* Fills both queues with requests. */
static int fill_qp(void *object, unsigned long detail)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)global.area, .length = MESSAGE, .lkey = global.mr->lkey,
	};
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr *bad_send;
	unsigned long i;
	int ret = 0;

	for (i = 0; i < detail && !ret; i++) {
		ret = ibv_post_recv(object, &recv, &bad_recv);
		if (!ret)
			ret = ibv_post_send(object, &send, &bad_send);
	}
	return ret;
}

static const struct kind kinds[] = {
	{ "pd", 0, 1000, make_pd, destroy_pd },
	{ "cq", 128, 1000, make_cq, destroy_cq, .kept = 3000 },
	{ "qp", 16, 1000, make_qp, destroy_qp },
	{ "mr", 4ul << 10, 1000, make_mr, destroy_mr, "rereg", rereg_mr, .kept = 16000 },
	{ "mr", 1ul << 20, 200, make_mr, destroy_mr },
	{ "mw", 0, 1000, make_mw, destroy_mw },
	{ "ah", 0, 1000, make_ah, destroy_ah },
	{ "qp", 16, 0, make_connected, destroy_qp, .kept = 2000, .fill = fill_qp },
	{ "qp", 128, 0, make_connected, destroy_qp, .kept = 1000, .fill = fill_qp },
	/* Last, because these need most of the memory of a small machine. */
	{ "mr", GIB, 5, make_mr, destroy_mr, .kept = 8 },
};

static const char *label(const struct kind *kind)
{
	static char text[64];
	unsigned long n = kind->detail;

	if (!n)
		return kind->name;
	if (n >= GIB)
		snprintf(text, sizeof(text), "%s.%luG", kind->name, n / GIB);
	else if (n >= 1 << 20)
		snprintf(text, sizeof(text), "%s.%luM", kind->name, n >> 20);
	else if (n >= 1 << 10)
		snprintf(text, sizeof(text), "%s.%luK", kind->name, n >> 10);
	else
		snprintf(text, sizeof(text), "%s.%lu", kind->name, n);
	return text;
}

static void *objects[MOST];

static int make_all(const struct kind *kind, int count)
{
	int n;

	for (n = 0; n < count; n++) {
		objects[n] = kind->make(kind->detail);
		if (!objects[n]) {
			printf("%s error %d after %d\n", label(kind), errno, n);
			break;
		}
	}
	return n;
}

static void destroy_all(const struct kind *kind, int count)
{
	while (count--)
		if (kind->destroy(objects[count]))
			printf("%s error %d\n", label(kind), errno);
}

/* Changes all objects, if the kind can be changed; returns the number of those changed. */
static int change_all(const struct kind *kind, int count)
{
	int n, ret;

	for (n = 0; n < count && kind->change; n++) {
		ret = kind->change(objects[n]);
		if (ret) {
			printf("%s %s error %d after %d\n", kind->changed, label(kind), ret, n);
			break;
		}
	}
	return n;
}

static double nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static int in_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print_median(const char *what, const struct kind *kind, double *times)
{
	qsort(times, ROUNDS, sizeof(*times), in_order);
	printf("%s_%s %.0f\n", what, label(kind), times[ROUNDS / 2]);
}

/*
 * Prints the medians of ROUNDS rounds. In the first one the machine may touch memory for the first
 * time, which the host of a virtual machine has to provide page by page.
 */
static void measure_time(const struct kind *kind)
{
	double made[ROUNDS], changed[ROUNDS], gone[ROUNDS], start, now;
	int round, n, changes = 0;

	for (round = 0; round < ROUNDS; round++) {
		start = nanoseconds();
		n = make_all(kind, kind->timed);
		now = nanoseconds();
		made[round] = (now - start) / n;
		start = now;
		changes = change_all(kind, n);
		now = nanoseconds();
		changed[round] = (now - start) / n;
		start = now;
		destroy_all(kind, n);
		gone[round] = (nanoseconds() - start) / n;
		if (n < kind->timed)
			return;
	}
	print_median("create", kind, made);
	if (changes == kind->timed)
		print_median(kind->changed, kind, changed);
	print_median("destroy", kind, gone);
}

/* Calls the kernel to send what is posted, while nothing is, as librxe does for each list. */
static void measure_doorbell(void)
{
	struct ibv_qp *qp = make_connected(16);
	struct ib_uverbs_post_send_resp resp;
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_post_send cmd;
	} request = {
		.hdr = {
			.command = IB_USER_VERBS_CMD_POST_SEND,
			.in_words = sizeof(request) / 4, .out_words = sizeof(resp) / 4,
		},
		.cmd = {
			.response = (uintptr_t)&resp, .wqe_size = sizeof(struct ib_uverbs_send_wr),
		},
	};
	double start;
	int i, ret;

	if (!qp) {
		printf("doorbell error %d\n", errno);
		return;
	}
	request.cmd.qp_handle = qp->handle;
	start = nanoseconds();
	for (i = 0; i < DOORBELLS; i++) {
		ret = command(&request, sizeof(request));
		if (ret) {
			printf("doorbell error %d after %d\n", ret, i);
			break;
		}
	}
	if (i == DOORBELLS)
		printf("doorbell %.0f\n", (nanoseconds() - start) / DOORBELLS);
	ibv_destroy_qp(qp);
}

/* Requests a completion event of a CQ, as a process does before it waits for one. */
static void measure_arm(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(global.context);
	struct ibv_cq *cq = channel ? ibv_create_cq(global.context, 16, NULL, channel, 0) : NULL;
	double start = nanoseconds();
	int i, ret = cq ? 0 : errno;

	for (i = 0; !ret && i < DOORBELLS; i++)
		ret = ibv_req_notify_cq(cq, 0);
	if (ret)
		printf("arm error %d after %d\n", ret, i);
	else
		printf("arm %.0f\n", (nanoseconds() - start) / DOORBELLS);
	if (cq)
		ibv_destroy_cq(cq);
	if (channel)
		ibv_destroy_comp_channel(channel);
}

/* Waits for events of FROM and answers them by events of TO. Returns -1 if that fails. */
static int echo(int from, int to)
{
	eventfd_t event;
	int i;

	for (i = 0; i < WAKEUPS; i++)
		if (eventfd_read(from, &event) || eventfd_write(to, event))
			return -1;
	return 0;
}

/*
 * Two processes, on two processors if there are, wake each other up by events: half of a round trip
 * is a call that wakes up, and the end of a call that waits. No device takes part. The other
 * process is a program of its own: in User Mode Linux a process stays bound to the processor on
 * which its address space was made.
 */
static void measure_wakeup(void)
{
	int out = eventfd(0, 0), in = eventfd(0, 0), i, failed = 0;
	char from[16], to[16];
	double start = 0;
	eventfd_t event;
	cpu_set_t last;
	pid_t child;

	snprintf(from, sizeof(from), "%d", out);
	snprintf(to, sizeof(to), "%d", in);
	child = out < 0 || in < 0 ? -1 : fork();
	if (!child) {
		CPU_ZERO(&last);
		CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
		sched_setaffinity(0, sizeof(last), &last);
		execl("/proc/self/exe", "objects", "echo", from, to, NULL);
		_exit(127);
	}
	/* The first round trip contains the start of the program. */
	for (i = 0; child > 0 && !failed && i < WAKEUPS; i++) {
		failed = eventfd_write(out, 1) || eventfd_read(in, &event);
		if (!i)
			start = nanoseconds();
	}
	if (child < 0 || failed)
		printf("wakeup error %d after %d\n", errno, i);
	else
		printf("wakeup %.0f\n", (nanoseconds() - start) / (WAKEUPS - 1) / 2);
	if (child > 0)
		waitpid(child, NULL, 0);
}

/* Writes a value to a file of /proc, if that exists. */
static void write_proc(const char *path, const char *value)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return;
	fputs(value, file);
	fclose(file);
}

/*
 * Returns the free memory of the machine in bytes, including droppable caches. Pages in the per-CPU
 * lists are not counted as free, so main() makes these lists short.
 */
static double available_now(void)
{
	static const char * const fields[] = { "MemFree:", "Buffers:", "Cached:", "SReclaimable:" };
	FILE *file = fopen("/proc/meminfo", "r");
	unsigned long kib, sum = 0, i;
	char line[128], name[64];

	while (file && fgets(line, sizeof(line), file))
		for (i = 0; i < sizeof(fields) / sizeof(*fields); i++)
			if (sscanf(line, "%63s %lu", name, &kib) == 2 && !strcmp(name, fields[i]))
				sum += kib;
	if (file)
		fclose(file);
	return sum * 1024.0;
}

/* Waits until that is stable, because some objects are freed late, and returns it. */
static double available(void)
{
	int calm = 0, patience = 100;
	double before, now;

	write_proc("/proc/sys/vm/drop_caches", "2");
	now = available_now();
	while (calm < 5 && patience--) {
		usleep(100000);
		before = now;
		now = available_now();
		calm = now - before < SETTLED && before - now < SETTLED ? calm + 1 : 0;
	}
	return now;
}

static void measure_memory(const struct kind *kind)
{
	double before, after;
	int n, i, ret = 0;

	/*
	 * Creates and destroys the objects once, so that memory that stays in slab caches, memory
	 * that only the first object needs, and per-CPU lists of pages do not change afterwards.
	 */
	n = make_all(kind, kind->kept);
	destroy_all(kind, n);
	if (n < kind->kept)
		return;
	before = available();
	n = make_all(kind, kind->kept);
	after = available();
	if (n == kind->kept)
		printf("memory_%s %.0f\n", label(kind), (before - after) / n);
	for (i = 0; i < n && kind->fill && !ret; i++)
		ret = kind->fill(objects[i], kind->detail);
	if (n == kind->kept && kind->fill && !ret)
		printf("full_%s %.0f\n", label(kind), (before - available()) / n);
	destroy_all(kind, n);
}

static int open_device(const char *name, const char *peer)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;
	struct in_addr address;
	int i;

	for (i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			global.context = ibv_open_device(list[i]);
	if (!global.context || ibv_query_port(global.context, 1, &port) ||
	    inet_pton(AF_INET, peer, &address) != 1)
		return -1;
	global.mtu = port.active_mtu;
	global.peer.raw[10] = 0xff;
	global.peer.raw[11] = 0xff;
	memcpy(global.peer.raw + 12, &address, sizeof(address));
	global.area = mmap(NULL, GIB, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (global.area == MAP_FAILED)
		return -1;
	memset(global.area, 1, 1 << 20);
	global.pd = ibv_alloc_pd(global.context);
	global.cq = ibv_create_cq(global.context, 1024, NULL, NULL, 0);
	if (!global.pd || !global.cq)
		return -1;
	global.mr = make_mr(1 << 20);
	return global.mr ? 0 : -1;
}

int main(int argc, char **argv)
{
	int memory, i;

	if (argc == 4 && !strcmp(argv[1], "echo"))
		return echo(atoi(argv[2]), atoi(argv[3])) ? 1 : 0;
	if (argc != 5) {
		fprintf(stderr, "usage: objects DEVICE GID-INDEX PEER time|memory\n");
		return 2;
	}
	global.gid_index = atoi(argv[2]);
	memory = !strcmp(argv[4], "memory");
	if (memory)
		write_proc("/proc/sys/vm/percpu_pagelist_high_fraction", "1000000");
	if (open_device(argv[1], argv[3])) {
		perror(argv[1]);
		return 1;
	}
	if (!memory) {
		measure_doorbell();
		measure_arm();
	}
	for (i = 0; i < (int)(sizeof(kinds) / sizeof(*kinds)); i++) {
		const struct kind *kind = &kinds[i];

		/* The time must not include the allocation of the pages. */
		if (kind->detail == GIB && madvise(global.area, GIB, MADV_POPULATE_WRITE)) {
			printf("%s error %d\n", label(kind), errno);
			continue;
		}
		if (memory && kind->kept)
			measure_memory(kind);
		if (!memory && kind->timed)
			measure_time(kind);
		fflush(stdout);
	}
	if (!memory)
		measure_wakeup();
	return 0;
}
