// SPDX-License-Identifier: GPL-2.0
/*
 * The message about packets that do not match a connection.
 */
#include "bindings_helper.h"

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
