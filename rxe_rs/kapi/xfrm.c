// SPDX-License-Identifier: GPL-2.0
/*
 * IPsec overhead of packets.
 */
#include "bindings_helper.h"
#include <linux/inetdevice.h>
#include <net/addrconf.h>
#include <net/xfrm.h>

#ifdef CONFIG_XFRM
/* Arguments and result of a walk over the IPsec policies of a network namespace. */
struct rxe_rs_xfrm_query {
	struct net_device *dev;
	__be16 port;
	u32 per_transform;
	u32 per_tunnel;
	u32 overhead;		/* maximum over the policies that apply */
};

static bool rxe_rs_xfrm_is_source4(const struct net_device *dev, const struct xfrm_selector *sel)
{
	const struct in_device *in_dev = __in_dev_get_rcu(dev);
	const struct in_ifaddr *ifa;

	if (!in_dev)
		return false;
	in_dev_for_each_ifa_rcu(ifa, in_dev) {
		if (addr4_match(ifa->ifa_local, sel->saddr.a4, sel->prefixlen_s))
			return true;
	}
	return false;
}

static bool rxe_rs_xfrm_is_source6(const struct net_device *dev, const struct xfrm_selector *sel)
{
	const struct inet6_dev *idev = __in6_dev_get(dev);
	const struct inet6_ifaddr *ifa;

	if (!idev)
		return false;
	list_for_each_entry_rcu(ifa, &idev->addr_list, if_list) {
		if (addr_match(&ifa->addr, &sel->saddr, sel->prefixlen_s))
			return true;
	}
	return false;
}

/* A selector, and the namespace of the policy that it belongs to. */
struct rxe_rs_xfrm_selector {
	const struct xfrm_selector *sel;
	const struct net *net;
};

/*
 * Returns 1 if a selector can match datagrams that leave by a device from one of its addresses,
 * which the device has in the namespace of the policy.
 */
static int rxe_rs_xfrm_is_of(struct net_device *dev, struct netdev_nested_priv *priv)
{
	const struct rxe_rs_xfrm_selector *of = priv->data;
	const struct xfrm_selector *sel = of->sel;

	if (!net_eq(dev_net_rcu(dev), of->net) ||
	    (sel->ifindex && sel->ifindex != READ_ONCE(dev->ifindex)))
		return 0;
	if (!sel->prefixlen_s)
		return 1;
	return sel->family == AF_INET ? rxe_rs_xfrm_is_source4(dev, sel) :
					rxe_rs_xfrm_is_source6(dev, sel);
}

/*
 * Returns true if a selector can match datagrams to the port from an address of the device, or of
 * one above it: these are GIDs of the link as well.
 */
static bool rxe_rs_xfrm_matches(const struct rxe_rs_xfrm_query *query,
				const struct xfrm_selector *sel)
{
	struct rxe_rs_xfrm_selector of = {
		.sel = sel,
		.net = dev_net_rcu(query->dev),
	};
	struct netdev_nested_priv priv = {
		.data = &of,
	};

	if ((sel->proto && sel->proto != IPPROTO_UDP) ||
	    ((query->port ^ sel->dport) & sel->dport_mask))
		return false;
	return rxe_rs_xfrm_is_of(query->dev, &priv) ||
	       netdev_walk_all_upper_dev_rcu(query->dev, rxe_rs_xfrm_is_of, &priv);
}

/* Called by xfrm_policy_walk() for each policy. */
static int rxe_rs_xfrm_policy(struct xfrm_policy *policy, int dir, int count, void *data)
{
	struct rxe_rs_xfrm_query *query = data;
	u32 sum = 0;
	int i;

	if (dir != XFRM_POLICY_OUT || policy->action != XFRM_POLICY_ALLOW ||
	    !rxe_rs_xfrm_matches(query, &policy->selector))
		return 0;
	for (i = 0; i < policy->xfrm_nr; i++) {
		sum += query->per_transform;
		if (policy->xfrm_vec[i].mode != XFRM_MODE_TRANSPORT)
			sum += query->per_tunnel;
	}
	query->overhead = max(query->overhead, sum);
	return 0;
}

/**
 * rxe_rs_dev_ipsec_overhead() - return the maximum overhead of IPsec
 * @dev: network device that the datagrams leave by, or below those that they leave by
 * @port: UDP destination port of the datagrams
 * @per_transform: bytes for each transformation of a policy
 * @per_tunnel: additional bytes for each tunnel
 *
 * The overhead depends on the policies and not on the states: keys are replaced, and their
 * algorithms with them.
 *
 * Context: Process context.
 * Return: The number of bytes that the IPsec policies of the namespace of @dev can add to a
 * datagram, 0 if no policy matches.
 */
u32 rxe_rs_dev_ipsec_overhead(struct net_device *dev, u16 port, u32 per_transform, u32 per_tunnel)
{
	struct rxe_rs_xfrm_query query = {
		.dev = dev,
		.port = htons(port),
		.per_transform = per_transform,
		.per_tunnel = per_tunnel,
	};
	struct xfrm_policy_walk walk;
	struct net *net;

	rcu_read_lock();
	net = dev_net_rcu(dev);
	if (READ_ONCE(net->xfrm.policy_count[XFRM_POLICY_OUT])) {
		xfrm_policy_walk_init(&walk, XFRM_POLICY_TYPE_MAIN);
		xfrm_policy_walk(net, &walk, rxe_rs_xfrm_policy, &query);
		xfrm_policy_walk_done(&walk, net);
	}
	rcu_read_unlock();
	return query.overhead;
}

/* Returns true if the namespace of the device has IPsec policies for packets that are sent. */
static bool rxe_rs_dev_has_policies(const struct net_device *dev)
{
	bool any;

	rcu_read_lock();
	any = READ_ONCE(dev_net_rcu(dev)->xfrm.policy_count[XFRM_POLICY_OUT]);
	rcu_read_unlock();
	return any;
}
#else
u32 rxe_rs_dev_ipsec_overhead(struct net_device *dev, u16 port, u32 per_transform, u32 per_tunnel)
{
	return 0;
}

static bool rxe_rs_dev_has_policies(const struct net_device *dev)
{
	return false;
}
#endif

/**
 * rxe_rs_flow_ipsec_mtu() - return the path MTU of a flow that IPsec protects
 * @flow: flow
 *
 * Context: Any context that may take softirq locks.
 * Return: The size of the largest IP packet, or 0 if IPsec does not protect the flow, there is no
 * route, or the states (keys) of a policy do not exist yet.
 */
u32 rxe_rs_flow_ipsec_mtu(struct rxe_rs_flow *flow)
{
	struct dst_entry *dst;
	u32 mtu;

	if (!rxe_rs_dev_has_policies(rxe_rs_flow_dev(flow)))
		return 0;
	dst = rxe_rs_flow_route(flow);
	if (IS_ERR(dst))
		return 0;
	mtu = dst_xfrm(dst) ? dst_mtu(dst) : 0;
	dst_release(dst);
	return mtu;
}
