/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions of the kapi crate for the RDMA part: inline functions of kernel headers that Rust
 * cannot call, logic that is written in C, and the table of structure layouts. bindgen reads this
 * file too, so C and Rust share the prototypes.
 */
#ifndef RXE_RS_KAPI_H
#define RXE_RS_KAPI_H

#include <linux/llist.h>
#include <linux/types.h>

struct attribute_group;
struct ib_device;
struct ib_mr;
struct ib_qp;
struct ib_ucontext;
struct ib_udata;
struct mem_cgroup;
struct mm_struct;
struct net;
struct net_device;
struct rdma_ah_attr;
struct rdma_hw_stats;
struct rxe_rs_mr_add;
struct rxe_rs_mr_remove;
struct rxe_rs_mr_state;
struct rxe_rs_mr_tie;
struct scatterlist;
struct uapi_definition;
struct vm_area_struct;
struct work_struct;
struct workqueue_struct;

/* The size of a structure or the offset of a field, as the C compiler sees it (layout.c). */
struct rxe_rs_layout_entry {
	const char *name;
	size_t value;
};

extern const struct rxe_rs_layout_entry rxe_rs_layout[];
extern const size_t rxe_rs_layout_len;

/* Who may see the PSNs of a queue pair (qp_query.c). */
bool rxe_rs_qp_query_allowed(const struct ib_qp *qp);

/* A resolved address vector, without pointers to objects of the core (path.c). */
struct rxe_rs_path {
	u32 port;		/* from 1 */
	u32 flow_label;
	u32 ifindex;		/* of the source GID's network device; 0 if that was removed */
	u8 sl;
	u8 static_rate;		/* enum ib_rate */
	u8 sgid_index;
	u8 traffic_class;
	u8 hop_limit;
	u8 ipv6;		/* 0 for IPv4 */
	u8 sgid[16];		/* IPv4 addresses in their IPv4-mapped form */
	u8 dgid[16];
	u8 dmac[6];
};

int rxe_rs_path_from_attr(const struct rdma_ah_attr *attr, struct rxe_rs_path *path);
void rxe_rs_path_to_attr(struct rdma_ah_attr *attr, const struct rxe_rs_path *path);
u32 rxe_rs_gid_netdev(const struct ib_gid_attr *attr, u64 *net_id);

struct ib_ucontext *rxe_rs_udata_ucontext(struct ib_udata *udata);
int rxe_rs_copy_from_udata(struct ib_udata *udata, void *dst, size_t len);
int rxe_rs_copy_to_udata(struct ib_udata *udata, const void *src, size_t len);

/* Freeing in process context (free.c). */
struct rxe_rs_free {
	/* Among those to be freed. */
	struct llist_node node;
	void (*free)(struct rxe_rs_free *item);
};

void rxe_rs_free(struct rxe_rs_free *item);
void rxe_rs_free_flush(void);

/* Rings that processes map (ring.c). */
struct rxe_rs_ring {
	refcount_t users;
	struct rxe_rs_free later;	/* frees it in process context */
	void *addr;			/* first of the zeroed pages */
	size_t len;			/* bytes, a multiple of PAGE_SIZE */
	size_t pages;			/* number of pages of a lazy ring, else 0 */
	void *page[];			/* addresses of those, NULL if not allocated */
};

struct rxe_rs_ring *rxe_rs_ring_alloc(size_t len);
struct rxe_rs_ring *rxe_rs_ring_alloc_lazy(size_t len);
void *rxe_rs_ring_page(const struct rxe_rs_ring *ring, size_t n);
void *rxe_rs_ring_provide(struct rxe_rs_ring *ring, size_t n);
void rxe_rs_ring_get(struct rxe_rs_ring *ring);
void rxe_rs_ring_put(struct rxe_rs_ring *ring);

/* Mappings of rings (ring_mmap.c). */
int rxe_rs_ring_mmap(struct vm_area_struct *vma, struct rxe_rs_ring *ring);
void rxe_rs_ring_detach_all(void);

/* Pinned memory (pin.c). */
int rxe_rs_pin_charge(u64 pages, struct mm_struct **mm);
void rxe_rs_pin_uncharge(struct mm_struct *mm, u64 pages);
int rxe_rs_pin_pages(u64 addr, u32 count, bool write, void **out);
void rxe_rs_unpin_range(void *addr, u64 len, bool dirty, u64 *done);

/* On-demand paging (odp.c). */

/* Flags in the entry of a page, which is its kernel address, or 0 if it is not present. */
#define RXE_RS_ODP_PRESENT 1
#define RXE_RS_ODP_WRITABLE 2

/* Flags of rxe_rs_odp_chunk_fault(). */
#define RXE_RS_ODP_FAULT 1	/* fault in pages that are not present */
#define RXE_RS_ODP_WRITE 2	/* the pages will be written to */
#define RXE_RS_ODP_AHEAD 4	/* not needed yet: fault in only what takes limited time */

struct rxe_rs_odp_chunk;

struct mm_struct *rxe_rs_mm_grab(void);
void rxe_rs_mm_drop(struct mm_struct *mm);
bool rxe_rs_mm_is_current(const struct mm_struct *mm);
bool rxe_rs_mm_get(struct mm_struct *mm);
void rxe_rs_mm_put(struct mm_struct *mm);
struct mem_cgroup *rxe_rs_mm_charge(struct mm_struct *mm);
void rxe_rs_mm_uncharge(struct mem_cgroup *before);
struct rxe_rs_odp_chunk *rxe_rs_odp_chunk_new(struct mm_struct *mm, u64 start, u32 pages);
void rxe_rs_odp_chunk_free(struct rxe_rs_odp_chunk *chunk);
int rxe_rs_odp_chunk_fault(struct rxe_rs_odp_chunk *chunk, u32 first, u32 count, u32 flags);
u32 rxe_rs_odp_chunk_present(const struct rxe_rs_odp_chunk *chunk);
const u64 *rxe_rs_odp_chunk_lock(struct rxe_rs_odp_chunk *chunk);
void rxe_rs_odp_chunk_unlock(struct rxe_rs_odp_chunk *chunk);

/* DMA buffers of other drivers (dmabuf.c). */
struct rxe_rs_dmabuf;

struct rxe_rs_dmabuf *rxe_rs_dmabuf_get(struct ib_device *dev, int fd, u64 offset, u64 len,
					void **addr, const char **reason);
void rxe_rs_dmabuf_put(struct rxe_rs_dmabuf *this);

/* Which kind of memory is at a kernel address (mem_kind.c). */
bool rxe_rs_linear_range(u64 addr, size_t len);
bool rxe_rs_is_pmem(void *addr, size_t len);

/* Persistent memory. */
bool rxe_rs_pmem_supported(void);
bool rxe_rs_pmem_write_back(void *addr, size_t len);
void rxe_rs_pmem_fence(void);

/* Prefetching (prefetch.c). */
void rxe_rs_prefetch(const void *start, size_t len);

/* Accesses that may fail (copy.c); they return false if the memory cannot be accessed. */
bool rxe_rs_copy(void *dst, const void *src, size_t len);
bool rxe_rs_readable(const void *page);
bool rxe_rs_fetch_add(u64 *p, u64 add, u64 *old);
bool rxe_rs_cmpxchg(u64 *p, u64 expected, u64 new, u64 *old);
bool rxe_rs_store(u64 *p, u64 value);

/* Devices. */
struct rxe_rs_device_ref;

struct rxe_rs_device_ref *rxe_rs_device_ref_get(struct ib_device *dev);
void rxe_rs_device_ref_put(struct rxe_rs_device_ref *ref);
void rxe_rs_device_dbg(const struct ib_device *dev, const char *reason);
void rxe_rs_device_dbg_error(const struct ib_device *dev, const char *operation, int error);
int rxe_rs_device_checked(const struct ib_device *dev, const char *operation, int error);
void rxe_rs_link_dbg_error(const struct net_device *ndev, const char *name, int error);
void rxe_rs_device_dbg_wc(const struct ib_device *dev, u32 qpn, const char *queue, u32 status);
bool rxe_rs_device_try_get(struct ib_device *dev);
unsigned int rxe_rs_num_vectors(void);
unsigned int rxe_rs_this_cpu(void);

/* The message about packets that do not match a connection (log.c). */
void rxe_rs_device_suspect(const struct ib_device *dev, u32 qpn, const char *counter);

/* Work queues, and the CPUs that work items run on (work.c). */
#define RXE_RS_WORK_SOFTIRQ 0	/* WQ_BH */
#define RXE_RS_WORK_LOCAL 1	/* WQ_PERCPU */
#define RXE_RS_WORK_UNBOUND 2	/* WQ_UNBOUND */

struct workqueue_struct *rxe_rs_workqueue_new(const char *name, u32 kind, int max_active);
bool rxe_rs_queue_on(unsigned int cpu, struct workqueue_struct *wq, struct work_struct *work);
bool rxe_rs_queue_bh_elsewhere(unsigned int cpu, struct work_struct *work);
unsigned int rxe_rs_vector_cpu(unsigned int vector);

bool rxe_rs_module_get(void);
void rxe_rs_module_put(void);

void rxe_rs_netdev_guid(const struct net_device *ndev, u8 *guid);
struct nlattr *rxe_rs_details_start(struct sk_buff *msg);
void rxe_rs_details_end(struct sk_buff *msg, struct nlattr *nest);
void rxe_rs_details_cancel(struct sk_buff *msg, struct nlattr *nest);
u64 *rxe_rs_hw_stats_values(struct rdma_hw_stats *stats);
bool rxe_rs_dev_is_aggregate(const struct net_device *ndev);

/* Network namespace and speed of a network device (netdev.c). */
bool rxe_rs_netdev_is_in(const struct net_device *ndev, u64 net_id);
u32 rxe_rs_netdev_speed(struct net_device *ndev);

/* Attributes of a device in sysfs, and its place there (sysfs.c). */
extern const struct attribute_group rxe_rs_sysfs_group;
void rxe_rs_sysfs_setup(int (*set_pkey)(struct ib_device *dev, int index, u16 pkey));
void rxe_rs_device_set_parent(struct ib_device *dev, const struct net_device *ndev);

/*
 * Driver-specific methods of the uverbs ioctl (uverbs.c). The functions return 0 or a negative
 * error.
 */
struct rxe_rs_mr_methods {
	int (*add)(struct ib_mr *mr, const struct rxe_rs_mr_add *request,
		   struct rxe_rs_mr_state *state);
	int (*remove)(struct ib_mr *mr, const struct rxe_rs_mr_remove *request,
		      struct rxe_rs_mr_state *state);
	int (*tie)(struct ib_mr *mr, struct ib_qp *qp, const struct rxe_rs_mr_tie *request);
};

extern const struct uapi_definition rxe_rs_uverbs_methods[];
void rxe_rs_uverbs_setup(const struct rxe_rs_mr_methods *methods);

/*
 * Type of a region with segments of a kernel consumer, for ib_alloc_mr(). It is none of
 * enum ib_mr_type. Such a region has no memory until its first segment is set.
 */
#define RXE_RS_MR_TYPE_SEGMENTS 0x7278

/*
 * Segments of regions for kernel consumers (segments.c). The functions return 0 or a negative
 * error.
 */
struct rxe_rs_segment_ops {
	int (*fill)(struct ib_mr *mr, struct scatterlist *sg, int nents, u64 iova, int access,
		    struct rxe_rs_mr_state *state);
	int (*add)(struct ib_mr *mr, struct scatterlist *sg, int nents, u64 iova,
		   struct rxe_rs_mr_state *state);
	int (*remove)(struct ib_mr *mr, const struct rxe_rs_mr_remove *request,
		      struct rxe_rs_mr_state *state);
	int (*move)(struct ib_mr *mr, u64 handle, u64 iova, struct rxe_rs_mr_state *state);
};

void rxe_rs_segments_setup(const struct rxe_rs_segment_ops *ops);

/* Contiguous kernel addresses, @offset bytes from the start of a memory. */
struct rxe_rs_extent {
	u64 offset;
	void *addr;
};

u64 rxe_rs_sg_extents(struct scatterlist *sg, u32 nents, struct rxe_rs_extent *to);

/* Mutual exclusion with rdma_rxe (exclusion.c). */
int rxe_rs_exclusion_start(void);
int rxe_rs_exclusion_check(void);
void rxe_rs_exclusion_stop(void);

#endif /* RXE_RS_KAPI_H */
