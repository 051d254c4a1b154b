// SPDX-License-Identifier: GPL-2.0
/*
 * Membership of network devices in IP multicast groups.
 *
 * The device as a whole is the member, as for protocols of the kernel: its filter accepts the
 * frames, IGMP or MLD reports the group to switches and routers, and the IP layer delivers the
 * datagrams locally. No socket is a member, so the limits on memberships of sockets do not apply.
 */
#include "bindings_helper.h"
#include <linux/igmp.h>

/**
 * rxe_rs_dev_join() - join a multicast group
 * @port: network device of a port
 * @ifindex: index of the network device that joins, in the namespace of @port
 * @group: group address, 16 bytes; an IPv4 address in its IPv4-mapped form
 *
 * The kernel counts memberships, so those of other users of the group are not affected.
 *
 * Context: Process context. Takes the RTNL lock.
 * Return: The IPv4 or IPv6 configuration that has the membership, to be passed to
 * rxe_rs_dev_leave() once; it holds a reference to the device. ERR_PTR(-ENODEV) if there is no such
 * device, if it is being unregistered or has no IPv4 configuration, ERR_PTR(-EINVAL) if it has no
 * IPv6 configuration, ERR_PTR(-ENOMEM).
 */
void *rxe_rs_dev_join(const struct net_device *port, u32 ifindex, const u8 *group)
{
	struct in6_addr addr;
	struct in_device *in_dev;
	struct net_device *dev;
	void *config = ERR_PTR(-ENODEV);

	memcpy(&addr, group, sizeof(addr));
	rtnl_lock();
	dev = __dev_get_by_index(dev_net(port), ifindex);
	if (!dev || READ_ONCE(dev->reg_state) != NETREG_REGISTERED)
		goto out;
	if (!ipv6_addr_v4mapped(&addr)) {
		int err = ipv6_dev_mc_inc(dev, &addr);

		config = err ? ERR_PTR(err) : in6_dev_get(dev);
		goto out;
	}
	in_dev = __in_dev_get_rtnl(dev);
	if (in_dev) {
		ip_mc_inc_group(in_dev, addr.s6_addr32[3]);
		in_dev_hold(in_dev);
		config = in_dev;
	}
out:
	rtnl_unlock();
	return config;
}

/**
 * rxe_rs_dev_leave() - undo rxe_rs_dev_join()
 * @group: group address, 16 bytes
 * @config: what rxe_rs_dev_join() has returned
 *
 * A device loses its IPv4 or IPv6 configuration, and all memberships with it, while its MTU is too
 * small. A configuration that it has got since may have memberships of others in the group, so
 * nothing happens then.
 *
 * Context: Process context. Takes the RTNL lock.
 */
void rxe_rs_dev_leave(const u8 *group, void *config)
{
	struct in6_addr addr;

	memcpy(&addr, group, sizeof(addr));
	rtnl_lock();
	if (!ipv6_addr_v4mapped(&addr)) {
		struct inet6_dev *idev = config;

		if (idev == __in6_dev_get(idev->dev))
			ipv6_dev_mc_dec(idev->dev, &addr);
		in6_dev_put(idev);
	} else {
		struct in_device *in_dev = config;

		if (in_dev == __in_dev_get_rtnl(in_dev->dev))
			ip_mc_dec_group(in_dev, addr.s6_addr32[3]);
		in_dev_put(in_dev);
	}
	rtnl_unlock();
}
