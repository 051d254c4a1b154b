// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of inline functions and macros that Rust cannot call: RDMA core, work queues, memory.
 * Also the table of structure layouts. Functions without a comment of their own do what the wrapped
 * function does, in its contexts.
 */
#include <linux/ioport.h>
#include <linux/libnvdimm.h>
#include "../bindings_helper.h"

/* The module! macro of the kernel crate has no field for the version. */
MODULE_VERSION(RXE_RS_VERSION);

/*
 * The kernel is compiled by gcc, and bindgen uses clang. layout.rs compares the layouts that the
 * two see; its entries are in the same order.
 */
#define RXE_RS_SIZE(t) { "sizeof " #t, sizeof(struct t) }
#define RXE_RS_OFF(t, f) { #t "." #f, offsetof(struct t, f) }

const struct rxe_rs_layout_entry rxe_rs_layout[] = {
	RXE_RS_SIZE(ib_device),
	RXE_RS_OFF(ib_device, ops),
	RXE_RS_OFF(ib_device, num_comp_vectors),
	RXE_RS_OFF(ib_device, dev),
	RXE_RS_OFF(ib_device, uverbs_cmd_mask),
	RXE_RS_OFF(ib_device, node_desc),
	RXE_RS_OFF(ib_device, node_guid),
	RXE_RS_OFF(ib_device, local_dma_lkey),
	RXE_RS_OFF(ib_device, node_type),
	RXE_RS_OFF(ib_device, phys_port_cnt),
	RXE_RS_OFF(ib_device, attrs),
	RXE_RS_OFF(ib_device, driver_def),
	RXE_RS_SIZE(ib_device_ops),
	RXE_RS_OFF(ib_device_ops, post_send),
	RXE_RS_OFF(ib_device_ops, query_device),
	RXE_RS_OFF(ib_device_ops, create_qp),
	RXE_RS_OFF(ib_device_ops, reg_user_mr),
	RXE_RS_OFF(ib_device_ops, dealloc_driver),
	RXE_RS_OFF(ib_device_ops, size_ib_ah),
	RXE_RS_OFF(ib_device_ops, size_ib_cq),
	RXE_RS_OFF(ib_device_ops, size_ib_pd),
	RXE_RS_OFF(ib_device_ops, size_ib_qp),
	RXE_RS_OFF(ib_device_ops, size_ib_ucontext),
	RXE_RS_SIZE(ib_device_attr),
	RXE_RS_OFF(ib_device_attr, max_pkeys),
	RXE_RS_SIZE(ib_port_attr),
	RXE_RS_OFF(ib_port_attr, active_speed),
	RXE_RS_SIZE(ib_port_immutable),
	RXE_RS_SIZE(ib_ucontext),
	RXE_RS_SIZE(ib_pd),
	RXE_RS_SIZE(ib_ah),
	RXE_RS_OFF(ib_ah, pd),
	RXE_RS_SIZE(ib_cq),
	RXE_RS_OFF(ib_cq, comp_handler),
	RXE_RS_OFF(ib_cq, cq_context),
	RXE_RS_SIZE(ib_qp),
	RXE_RS_OFF(ib_qp, uobject),
	RXE_RS_OFF(ib_qp, event_handler),
	RXE_RS_OFF(ib_qp, qp_num),
	RXE_RS_OFF(ib_qp, qp_type),
	RXE_RS_SIZE(ib_qp_init_attr),
	RXE_RS_OFF(ib_qp_init_attr, qp_type),
	RXE_RS_SIZE(ib_qp_attr),
	RXE_RS_OFF(ib_qp_attr, ah_attr),
	RXE_RS_OFF(ib_qp_attr, timeout),
	RXE_RS_SIZE(ib_mr),
	RXE_RS_OFF(ib_mr, lkey),
	RXE_RS_OFF(ib_mr, iova),
	RXE_RS_OFF(ib_mr, length),
	RXE_RS_OFF(ib_mr, page_size),
	RXE_RS_SIZE(ib_mw),
	RXE_RS_OFF(ib_mw, rkey),
	RXE_RS_OFF(ib_mw, type),
	RXE_RS_SIZE(ib_reg_wr),
	RXE_RS_OFF(ib_reg_wr, mr),
	RXE_RS_SIZE(ib_gid_attr),
	RXE_RS_SIZE(rdma_ah_attr),
	RXE_RS_SIZE(ib_wc),
	RXE_RS_SIZE(ib_send_wr),
	RXE_RS_SIZE(ib_rdma_wr),
	RXE_RS_SIZE(ib_ud_wr),
	RXE_RS_SIZE(ib_recv_wr),
	RXE_RS_SIZE(ib_event),
	RXE_RS_SIZE(ib_udata),
	RXE_RS_SIZE(rdma_user_mmap_entry),
	RXE_RS_SIZE(rdma_hw_stats),
	RXE_RS_OFF(rdma_hw_stats, value),
	RXE_RS_SIZE(rdma_link_ops),
	RXE_RS_SIZE(scatterlist),
	RXE_RS_SIZE(work_struct),
	RXE_RS_SIZE(sk_buff),
	RXE_RS_SIZE(rxe_rs_mr_add),
	RXE_RS_SIZE(rxe_rs_mr_remove),
	RXE_RS_SIZE(rxe_rs_mr_state),
	RXE_RS_SIZE(rxe_rs_mr_tie),
};

const size_t rxe_rs_layout_len = ARRAY_SIZE(rxe_rs_layout);

/* Address vectors. */

/**
 * rxe_rs_path_from_attr() - convert an address vector that the core has resolved
 * @attr: address handle attribute of a running verb
 * @path: receives the path
 *
 * Context: Any context.
 * Return: 0, -EINVAL if @attr has no RoCEv2 source GID or its addresses are of different families.
 */
int rxe_rs_path_from_attr(const struct rdma_ah_attr *attr, struct rxe_rs_path *path)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);
	const struct ib_gid_attr *sgid_attr;
	struct net_device *ndev;
	bool v4;

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE ||
	    !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH))
		return -EINVAL;
	sgid_attr = grh->sgid_attr;
	if (!sgid_attr || sgid_attr->gid_type != IB_GID_TYPE_ROCE_UDP_ENCAP)
		return -EINVAL;

	v4 = rdma_gid_attr_network_type(sgid_attr) == RDMA_NETWORK_IPV4;
	if (v4 != ipv6_addr_v4mapped((const struct in6_addr *)&grh->dgid))
		return -EINVAL;

	path->port = rdma_ah_get_port_num(attr);
	path->flow_label = grh->flow_label;
	path->sl = rdma_ah_get_sl(attr);
	path->static_rate = rdma_ah_get_static_rate(attr);
	path->sgid_index = grh->sgid_index;
	path->traffic_class = grh->traffic_class;
	path->hop_limit = grh->hop_limit;
	path->ipv6 = !v4;
	memcpy(path->sgid, sgid_attr->gid.raw, sizeof(path->sgid));
	memcpy(path->dgid, grh->dgid.raw, sizeof(path->dgid));
	memcpy(path->dmac, attr->roce.dmac, sizeof(path->dmac));

	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(sgid_attr);
	path->ifindex = IS_ERR_OR_NULL(ndev) ? 0 : READ_ONCE(ndev->ifindex);
	rcu_read_unlock();
	return 0;
}

/**
 * rxe_rs_path_to_attr() - undo rxe_rs_path_from_attr() for a query
 * @attr: attribute to fill in; has no reference to the source GID
 * @path: path
 *
 * Context: Any context.
 */
void rxe_rs_path_to_attr(struct rdma_ah_attr *attr, const struct rxe_rs_path *path)
{
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(attr, path->port);
	rdma_ah_set_sl(attr, path->sl);
	rdma_ah_set_static_rate(attr, path->static_rate);
	rdma_ah_set_grh(attr, NULL, path->flow_label, path->sgid_index,
			path->hop_limit, path->traffic_class);
	rdma_ah_set_dgid_raw(attr, (void *)path->dgid);
	memcpy(attr->roce.dmac, path->dmac, sizeof(attr->roce.dmac));
}

/**
 * rxe_rs_qp_query_allowed() - check whether the caller may see the PSNs of a queue pair
 * @qp: queue pair
 *
 * Context: Process context.
 * Return: true if the current process created @qp or has CAP_NET_ADMIN.
 */
bool rxe_rs_qp_query_allowed(const struct ib_qp *qp)
{
	struct task_struct *owner = qp->res.task;

	return (owner && same_thread_group(owner, current)) ||
	       ns_capable_noaudit(&init_user_ns, CAP_NET_ADMIN);
}

/* Driver data of calls from user space. */

struct ib_ucontext *rxe_rs_udata_ucontext(struct ib_udata *udata)
{
	return rdma_udata_to_uverbs_attr_bundle(udata)->context;
}

int rxe_rs_copy_from_udata(struct ib_udata *udata, void *dst, size_t len)
{
	return ib_copy_from_udata(dst, udata, len);
}

int rxe_rs_copy_to_udata(struct ib_udata *udata, const void *src, size_t len)
{
	return ib_copy_to_udata(udata, (void *)src, len);
}

/* Memory. */

/**
 * rxe_rs_linear_range() - check whether a range is in the linear map and backed by memory
 * @addr: first address
 * @len: number of bytes
 *
 * Context: Any context.
 * Return: true if all of the range is; false if it is empty or wraps.
 */
bool rxe_rs_linear_range(u64 addr, size_t len)
{
	u64 end, at;

	if (!len || check_add_overflow(addr, (u64)len - 1, &end))
		return false;
	for (at = addr & PAGE_MASK; at <= end; at += PAGE_SIZE) {
		if (!virt_addr_valid((void *)(uintptr_t)at))
			return false;
		if (at > U64_MAX - PAGE_SIZE)
			break;
	}
	return true;
}

/**
 * rxe_rs_pmem_supported() - check whether CPU caches can be written back to persistent memory
 *
 * Context: Any context.
 * Return: true if the architecture supports it.
 */
bool rxe_rs_pmem_supported(void)
{
	return IS_ENABLED(CONFIG_ARCH_HAS_PMEM_API);
}

static bool rxe_rs_region_is(phys_addr_t start, size_t len, unsigned long desc)
{
	return region_intersects(start, len, IORESOURCE_MEM, desc) == REGION_INTERSECTS;
}

/**
 * rxe_rs_is_pmem() - check whether a range is persistent memory
 * @addr: first address in the linear map
 * @len: number of bytes
 *
 * Context: Process context.
 * Return: true if all of the range is.
 */
bool rxe_rs_is_pmem(void *addr, size_t len)
{
	phys_addr_t start = virt_to_phys(addr);

	cond_resched();
	return rxe_rs_pmem_supported() &&
	       (rxe_rs_region_is(start, len, IORES_DESC_PERSISTENT_MEMORY) ||
		rxe_rs_region_is(start, len, IORES_DESC_PERSISTENT_MEMORY_LEGACY));
}

void rxe_rs_pmem_fence(void)
{
	pmem_wmb();
}

/* Devices. */

void rxe_rs_device_dbg(const struct ib_device *dev, const char *reason)
{
	ibdev_dbg(dev, "%s\n", reason);
}

void rxe_rs_device_dbg_error(const struct ib_device *dev, const char *operation, int error)
{
	ibdev_dbg(dev, "%s: %pe\n", operation, ERR_PTR(error));
}

void rxe_rs_device_dbg_wc(const struct ib_device *dev, u32 qpn, const char *queue, u32 status)
{
	ibdev_dbg(dev, "QP %u: a %s request completed in error: %s\n", qpn,
		  queue, ib_wc_status_msg(status));
}

/**
 * rxe_rs_device_suspect() - log that packets do not match a connection
 * @dev: device
 * @qpn: number of the queue pair
 * @counter: counter that has been incremented
 *
 * Attackers determine how often this is called, so the module logs at most one line in a minute.
 * The counters are complete.
 *
 * Context: Any context.
 */
void rxe_rs_device_suspect(const struct ib_device *dev, u32 qpn, const char *counter)
{
	static struct ratelimit_state limit =
		RATELIMIT_STATE_INIT_FLAGS("rxe_rs_suspect", 60 * HZ, 1, RATELIMIT_MSG_ON_RELEASE);

	if (__ratelimit(&limit))
		ibdev_notice(dev, "QP %u: packets that do not fit the connection (%s): see rxectl doctor\n",
			     qpn, counter);
}

bool rxe_rs_device_try_get(struct ib_device *dev)
{
	return ib_device_try_get(dev);
}

/* Completion vectors. */

unsigned int rxe_rs_num_vectors(void)
{
	return num_online_cpus();
}

/**
 * rxe_rs_vector_cpu() - return the CPU of a completion vector
 * @vector: completion vector
 *
 * Vectors are assigned to the CPUs that are online at the time of the call, in turn.
 *
 * Context: Process context. May sleep.
 * Return: The number of the CPU.
 */
unsigned int rxe_rs_vector_cpu(unsigned int vector)
{
	unsigned int cpu;

	cpus_read_lock();
	cpu = cpumask_nth(vector % num_online_cpus(), cpu_online_mask);
	cpus_read_unlock();
	return cpu;
}

unsigned int rxe_rs_this_cpu(void)
{
	return raw_smp_processor_id();
}

/**
 * rxe_rs_queue_bh_elsewhere() - queue a work item in the softirq of another CPU
 * @cpu: number of the CPU
 * @work: work item
 *
 * A CPU that is online cannot go offline while preemption is disabled here.
 *
 * Context: Any context.
 * Return: false if @cpu is the current one or offline; then @work is not queued.
 */
bool rxe_rs_queue_bh_elsewhere(unsigned int cpu, struct work_struct *work)
{
	bool elsewhere;

	preempt_disable();
	elsewhere = cpu != smp_processor_id() && cpu < nr_cpu_ids && cpu_online(cpu);
	if (elsewhere)
		queue_work_on(cpu, system_bh_wq, work);
	preempt_enable();
	return elsewhere;
}

/**
 * rxe_rs_workqueue_new() - create a work queue
 * @name: name, which is copied
 * @kind: RXE_RS_WORK_*
 * @max_active: maximum number of work items that run at the same time, 0 for the default
 *
 * Context: Process context. May sleep.
 * Return: The work queue, or NULL.
 */
struct workqueue_struct *rxe_rs_workqueue_new(const char *name, u32 kind, int max_active)
{
	switch (kind) {
	case RXE_RS_WORK_SOFTIRQ:
		return alloc_workqueue("%s", WQ_BH | WQ_PERCPU, 0, name);
	case RXE_RS_WORK_LOCAL:
		return alloc_workqueue("%s", WQ_PERCPU, max_active, name);
	default:
		return alloc_workqueue("%s", WQ_UNBOUND, max_active, name);
	}
}

/**
 * rxe_rs_queue_on() - queue a work item on a CPU
 * @cpu: number of the CPU; the current one is used if it is offline
 * @wq: work queue
 * @work: work item
 *
 * Context: Any context.
 * Return: false if @work was queued already.
 */
bool rxe_rs_queue_on(unsigned int cpu, struct workqueue_struct *wq, struct work_struct *work)
{
	bool queued;

	preempt_disable();
	if (cpu >= nr_cpu_ids || !cpu_online(cpu))
		cpu = smp_processor_id();
	queued = queue_work_on(cpu, wq, work);
	preempt_enable();
	return queued;
}

bool rxe_rs_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void rxe_rs_module_put(void)
{
	module_put(THIS_MODULE);
}

void rxe_rs_netdev_guid(const struct net_device *ndev, u8 *guid)
{
	addrconf_addr_eui48(guid, (const char *)ndev->dev_addr);
}

struct net *rxe_rs_netdev_net(const struct net_device *ndev)
{
	return dev_net(ndev);
}

u64 *rxe_rs_hw_stats_values(struct rdma_hw_stats *stats)
{
	return stats->value;
}

/* Driver-specific attributes of restrack entries (`rdma resource`). */

struct nlattr *rxe_rs_details_start(struct sk_buff *msg)
{
	return nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
}

void rxe_rs_details_end(struct sk_buff *msg, struct nlattr *nest, bool keep)
{
	if (keep)
		nla_nest_end(msg, nest);
	else
		nla_nest_cancel(msg, nest);
}

bool rxe_rs_dev_is_aggregate(const struct net_device *ndev)
{
	return netif_is_lag_master(ndev) || netif_is_lag_port(ndev);
}

/**
 * rxe_rs_netdev_speed() - return the speed of a network device
 * @ndev: network device
 *
 * Context: Process context. Takes the RTNL lock.
 * Return: The speed in Mbit/s, 0 if it is not known.
 */
u32 rxe_rs_netdev_speed(struct net_device *ndev)
{
	struct ethtool_link_ksettings settings = {};
	u32 speed = 0;

	rtnl_lock();
	if (READ_ONCE(ndev->reg_state) == NETREG_REGISTERED &&
	    !__ethtool_get_link_ksettings(ndev, &settings) &&
	    settings.base.speed != (u32)SPEED_UNKNOWN)
		speed = settings.base.speed;
	rtnl_unlock();
	return speed;
}
