// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: what IPsec adds to packets.
 */
#include "bindings_helper.h"
#include <linux/inetdevice.h>
#include <net/addrconf.h>
#include <net/xfrm.h>

#ifdef CONFIG_XFRM
struct rxe_rs_xfrm_room {
	const struct net_device *dev;
	__be16 port;
	u32 per_transform;
	u32 per_tunnel;
	u32 most;
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

/* Whether a policy may select datagrams to the port that leave by the device, from one of its addresses. */
static bool rxe_rs_xfrm_concerns(const struct rxe_rs_xfrm_room *room, const struct xfrm_selector *sel)
{
	if ((sel->proto && sel->proto != IPPROTO_UDP) ||
	    ((room->port ^ sel->dport) & sel->dport_mask) ||
	    (sel->ifindex && sel->ifindex != READ_ONCE(room->dev->ifindex)))
		return false;
	return !sel->prefixlen_s || (sel->family == AF_INET ? rxe_rs_xfrm_is_source4(room->dev, sel) :
							      rxe_rs_xfrm_is_source6(room->dev, sel));
}

static int rxe_rs_xfrm_policy(struct xfrm_policy *policy, int dir, int count, void *data)
{
	struct rxe_rs_xfrm_room *room = data;
	u32 sum = 0;
	int i;

	if (dir != XFRM_POLICY_OUT || policy->action != XFRM_POLICY_ALLOW ||
	    !rxe_rs_xfrm_concerns(room, &policy->selector))
		return 0;
	for (i = 0; i < policy->xfrm_nr; i++) {
		sum += room->per_transform;
		if (policy->xfrm_vec[i].mode != XFRM_MODE_TRANSPORT)
			sum += room->per_tunnel;
	}
	room->most = max(room->most, sum);
	return 0;
}

/*
 * The most that the IPsec policies of a device's namespace may add to a datagram to `port` that leaves by it, in bytes, with so
 * much for each transformation and for each tunnel: keys come and go, and their algorithms with them. Process context.
 */
u32 rxe_rs_dev_ipsec_room(const struct net_device *dev, u16 port, u32 per_transform, u32 per_tunnel)
{
	struct rxe_rs_xfrm_room room = {
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
		xfrm_policy_walk(net, &walk, rxe_rs_xfrm_policy, &room);
		xfrm_policy_walk_done(&walk, net);
	}
	rcu_read_unlock();
	return room.most;
}

/* Whether IPsec policies may protect what leaves by the device. */
static bool rxe_rs_dev_has_policies(const struct net_device *dev)
{
	bool any;

	rcu_read_lock();
	any = READ_ONCE(dev_net_rcu(dev)->xfrm.policy_count[XFRM_POLICY_OUT]);
	rcu_read_unlock();
	return any;
}
#else
u32 rxe_rs_dev_ipsec_room(const struct net_device *dev, u16 port, u32 per_transform, u32 per_tunnel)
{
	return 0;
}

static bool rxe_rs_dev_has_policies(const struct net_device *dev)
{
	return false;
}
#endif

/*
 * The largest IP packet that IPsec leaves room for on the flow's path; 0 if nothing protects its packets, there is no
 * route, or there are no keys yet. Any softirq-safe context.
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
