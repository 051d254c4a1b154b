// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of inline functions and macros that Rust cannot call: RDMA core, processors, memory.
 * Functions without a comment of their own do what the wrapped function does, in its contexts.
 */
#include "../bindings_helper.h"

/* The module! macro of the kernel crate has no field for the version. */
MODULE_VERSION(RXE_RS_VERSION);

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
 * rxe_rs_pmem_supported() - check whether CPU caches can be written back to persistent memory
 *
 * Context: Any context.
 * Return: true if the architecture supports it.
 */
bool rxe_rs_pmem_supported(void)
{
	return IS_ENABLED(CONFIG_ARCH_HAS_PMEM_API);
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

bool rxe_rs_device_try_get(struct ib_device *dev)
{
	return ib_device_try_get(dev);
}

/* Processors, and the module itself. */

unsigned int rxe_rs_num_vectors(void)
{
	return num_online_cpus();
}

unsigned int rxe_rs_this_cpu(void)
{
	return raw_smp_processor_id();
}

bool rxe_rs_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void rxe_rs_module_put(void)
{
	module_put(THIS_MODULE);
}

/* Network devices and counters. */

void rxe_rs_netdev_guid(const struct net_device *ndev, u8 *guid)
{
	addrconf_addr_eui48(guid, (const char *)ndev->dev_addr);
}

bool rxe_rs_dev_is_aggregate(const struct net_device *ndev)
{
	return netif_is_lag_master(ndev) || netif_is_lag_port(ndev);
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

void rxe_rs_details_end(struct sk_buff *msg, struct nlattr *nest)
{
	nla_nest_end(msg, nest);
}

void rxe_rs_details_cancel(struct sk_buff *msg, struct nlattr *nest)
{
	nla_nest_cancel(msg, nest);
}
