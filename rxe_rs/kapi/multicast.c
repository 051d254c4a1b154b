// SPDX-License-Identifier: GPL-2.0
/*
 * Membership of a network device in IP multicast groups.
 *
 * The device as a whole is the member, as for protocols of the kernel: its filter accepts the
 * frames, IGMP or MLD reports the group to switches and routers, and the IP layer delivers the
 * datagrams locally. No socket is a member, so the limits on memberships of sockets do not apply.
 */
#include "bindings_helper.h"
#include <linux/igmp.h>

/**
 * rxe_rs_dev_join() - join a multicast group
 * @dev: network device
 * @group: group address, 16 bytes; an IPv4 address in its IPv4-mapped form
 *
 * The kernel counts memberships, so those of other users of the group are not affected.
 *
 * Context: Process context. Takes the RTNL lock.
 * Return: 0, -ENODEV if the device is being unregistered or has no IPv4 configuration, -EINVAL if
 * it has no IPv6 configuration, -ENOMEM.
 */
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

/**
 * rxe_rs_dev_leave() - undo rxe_rs_dev_join()
 * @dev: network device
 * @group: group address, 16 bytes
 *
 * Does nothing if the device has lost its IPv4 or IPv6 configuration, and with it all memberships.
 *
 * Context: Process context. Takes the RTNL lock.
 */
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
