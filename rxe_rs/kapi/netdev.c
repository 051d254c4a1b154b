// SPDX-License-Identifier: GPL-2.0
/*
 * Speed and address of a network device, which not every device has.
 */
#include "bindings_helper.h"

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

/**
 * rxe_rs_dev_mac() - return the Ethernet address of a network device
 * @dev: network device
 * @mac: receives the ETH_ALEN bytes of the address, zeros if @dev has none
 *
 * Context: Any context.
 */
void rxe_rs_dev_mac(const struct net_device *dev, u8 *mac)
{
	if (dev->addr_len == ETH_ALEN)
		memcpy(mac, dev->dev_addr, ETH_ALEN);
	else
		memset(mac, 0, ETH_ALEN);
}
