// SPDX-License-Identifier: GPL-2.0
/*
 * Address vectors: conversion between the core's attributes and paths, which have no pointers to
 * objects of the core. GIDs likewise.
 */
#include "bindings_helper.h"

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
 * rxe_rs_gid_netdev() - return where the network device of a GID is
 * @attr: entry of the GID table that the core adds or removes
 * @net_id: receives the identity of its network namespace, or 0 if it is going
 *
 * Context: Any context.
 * Return: Its index, or 0 if it is going.
 */
u32 rxe_rs_gid_netdev(const struct ib_gid_attr *attr, u64 *net_id)
{
	const struct net_device *ndev;
	u32 ifindex = 0;

	*net_id = 0;
	rcu_read_lock();
	ndev = rcu_dereference(attr->ndev);
	if (ndev) {
		*net_id = dev_net_rcu(ndev)->net_cookie;
		ifindex = READ_ONCE(ndev->ifindex);
	}
	rcu_read_unlock();
	return ifindex;
}
