// SPDX-License-Identifier: GPL-2.0
/* The devices of both sides, by name. */
#include "kverbs.h"

struct devices devices;

static const char *name_a, *name_b;

static int add_device(struct ib_device *dev)
{
	struct ib_device **place;

	if (!strcmp(dev_name(&dev->dev), name_a))
		place = &devices.a;
	else if (!strcmp(dev_name(&dev->dev), name_b))
		place = &devices.b;
	else
		return -EOPNOTSUPP;
	if (*place || !ib_device_try_get(dev))
		return -EOPNOTSUPP;
	*place = dev;
	return 0;
}

static void remove_device(struct ib_device *dev, void *data)
{
}

static struct ib_client client = {
	.name = KBUILD_MODNAME,
	.add = add_device,
	.remove = remove_device,
};

int devices_get(const char *a, const char *b)
{
	int ret;

	name_a = a;
	name_b = b;
	ret = ib_register_client(&client);
	if (ret)
		return ret;
	if (devices.a && devices.b)
		return 0;
	devices_put();
	return -ENODEV;
}

void devices_put(void)
{
	/* Who removes a device waits for these. */
	if (devices.a)
		ib_device_put(devices.a);
	if (devices.b)
		ib_device_put(devices.b);
	ib_unregister_client(&client);
}
