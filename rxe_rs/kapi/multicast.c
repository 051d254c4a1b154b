// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: membership of a network device in IP multicast groups.
 *
 * Membership of the device as a whole, as the kernel's own protocols have it: the device's filter
 * lets the frames in, IGMP and MLD report the group to switches and routers, and the IP layer
 * delivers datagrams to this host. No socket is a member, so no limit of sockets applies.
 */
#include "bindings_helper.h"
#include <linux/igmp.h>

int rxe_rs_dev_join(struct net_device *dev, const u8 *group)
{
	struct in6_addr addr;
	struct in_device *in_dev;
	int err = -ENODEV;

	memcpy(&addr, group, sizeof(addr));
	rtnl_lock();
	if (READ_ONCE(dev->reg_state) != NETREG_REGISTERED)
		goto out;
	if (!ipv6_addr_v4mapped(&addr)) {
		err = ipv6_dev_mc_inc(dev, &addr);
		goto out;
	}
	in_dev = __in_dev_get_rtnl(dev);
	if (in_dev) {
		ip_mc_inc_group(in_dev, addr.s6_addr32[3]);
		err = 0;
	}
out:
	rtnl_unlock();
	return err;
}

/* The device forgets its groups by itself when it loses its addresses for good. */
void rxe_rs_dev_leave(struct net_device *dev, const u8 *group)
{
	struct in6_addr addr;
	struct in_device *in_dev;

	memcpy(&addr, group, sizeof(addr));
	rtnl_lock();
	if (!ipv6_addr_v4mapped(&addr)) {
		ipv6_dev_mc_dec(dev, &addr);
	} else {
		in_dev = __in_dev_get_rtnl(dev);
		if (in_dev)
			ip_mc_dec_group(in_dev, addr.s6_addr32[3]);
	}
	rtnl_unlock();
}
