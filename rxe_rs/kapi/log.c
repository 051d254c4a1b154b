// SPDX-License-Identifier: GPL-2.0
/*
 * Messages about operations that fail and about packets that do not match a connection.
 */
#include "bindings_helper.h"

/**
 * rxe_rs_device_checked() - log a debug message if an operation fails
 * @dev: device
 * @operation: name of the operation
 * @error: its result, 0 or a negative error
 *
 * Context: Any context.
 * Return: @error.
 */
int rxe_rs_device_checked(const struct ib_device *dev, const char *operation, int error)
{
	if (error)
		rxe_rs_device_dbg_error(dev, operation, error);
	return error;
}

/**
 * rxe_rs_link_dbg_error() - log at debug level that a link is not created
 * @ndev: network device of the link
 * @name: name of the link, which is no RDMA device yet or any more
 * @error: negative error
 *
 * Context: Process context.
 */
void rxe_rs_link_dbg_error(const struct net_device *ndev, const char *name, int error)
{
	netdev_dbg(ndev, "rdma link add %s: %pe\n", name, ERR_PTR(error));
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
