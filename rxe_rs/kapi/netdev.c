// SPDX-License-Identifier: GPL-2.0
/*
 * Network namespace of a network device, which may change; its speed and address, which not every
 * device has.
 */
#include "bindings_helper.h"

/**
 * rxe_rs_netdev_net_get() - return the network namespace of a network device
 * @ndev: network device
 *
 * Context: Any context.
 * Return: The namespace, with a reference; NULL if it has ended.
 */
struct net *rxe_rs_netdev_net_get(const struct net_device *ndev)
{
	struct net *net;

	rcu_read_lock();
	net = maybe_get_net(dev_net_rcu(ndev));
	rcu_read_unlock();
	return net;
}

/**
 * rxe_rs_netdev_is_in() - check whether a network device is registered in a network namespace
 * @ndev: network device
 * @net_id: identity of the network namespace
 *
 * If it is, all events of the device that move it or unregister it are yet to come.
 *
 * Context: Process context. Takes the RTNL lock.
 * Return: false if @ndev is unregistered or in another namespace.
 */
bool rxe_rs_netdev_is_in(const struct net_device *ndev, u64 net_id)
{
	bool is_in;

	rtnl_lock();
	is_in = READ_ONCE(ndev->reg_state) == NETREG_REGISTERED &&
		dev_net(ndev)->net_cookie == net_id;
	rtnl_unlock();
	return is_in;
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
