// SPDX-License-Identifier: GPL-2.0
/*
 * References to RDMA devices that may be dropped in softirq context.
 *
 * The last reference calls ib_device_release(), which takes locks that are not safe for softirqs.
 * It can be that of an object which an RCU callback frees.
 */
#include <linux/device.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include "bindings_helper.h"

struct rxe_rs_device_ref {
	struct rxe_rs_free later;
	struct ib_device *dev;
};

static void free_ref(struct rxe_rs_free *item)
{
	struct rxe_rs_device_ref *ref = container_of(item, struct rxe_rs_device_ref, later);

	put_device(&ref->dev->dev);
	kfree(ref);
}

/**
 * rxe_rs_device_ref_get() - take a reference to the memory of a device
 * @dev: device, whose memory is valid during the call
 *
 * Context: Process context. May sleep.
 * Return: The reference, or NULL if no memory is available.
 */
struct rxe_rs_device_ref *rxe_rs_device_ref_get(struct ib_device *dev)
{
	struct rxe_rs_device_ref *ref = kmalloc_obj(*ref);

	if (!ref)
		return NULL;
	ref->later.free = free_ref;
	ref->dev = dev;
	get_device(&dev->dev);
	return ref;
}

/**
 * rxe_rs_device_ref_put() - drop a reference
 * @ref: result of rxe_rs_device_ref_get()
 *
 * Context: Process context without locks held, or softirq context, where a work item drops the
 * reference later.
 */
void rxe_rs_device_ref_put(struct rxe_rs_device_ref *ref)
{
	rxe_rs_free(&ref->later);
}
