// SPDX-License-Identifier: GPL-2.0
/*
 * Attributes of a device in sysfs, and its place there.
 */
#include "bindings_helper.h"
#include <linux/capability.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/sysfs.h>

/* Index of the first entry of the P_Key table that is not in use. */
#define RXE_RS_PKEY_FREE (-1)

static int (*rxe_rs_set_pkey)(struct ib_device *dev, int index, u16 pkey);

/**
 * rxe_rs_sysfs_setup() - set the function that changes a P_Key
 * @set_pkey: called for writes to pkey_table, with an index below 65536 or
 *	RXE_RS_PKEY_FREE; returns 0 or a negative error
 *
 * All devices of the module share the function.
 *
 * Context: Any context.
 */
void rxe_rs_sysfs_setup(int (*set_pkey)(struct ib_device *dev, int index, u16 pkey))
{
	WRITE_ONCE(rxe_rs_set_pkey, set_pkey);
}

/* Shows one line "INDEX 0xP_KEY" for each entry in use. */
static ssize_t pkey_table_show(struct device *device,
			       struct device_attribute *attr, char *buf)
{
	struct ib_device *dev = rdma_device_to_ibdev(device);
	ssize_t len = 0;
	u16 index, pkey;

	for (index = 0; !ib_query_pkey(dev, 1, index, &pkey); index++) {
		if (pkey)
			len += sysfs_emit_at(buf, len, "%u 0x%04x\n", index,
					     pkey);
	}
	return len;
}

/*
 * Takes "INDEX P_KEY"; the P_Key 0 clears the entry. "add P_KEY" sets the first
 * entry that is not in use, which only the driver can do while others write.
 */
static ssize_t pkey_table_store(struct device *device,
				struct device_attribute *attr, const char *buf,
				size_t count)
{
	struct ib_device *dev = rdma_device_to_ibdev(device);
	struct net *net = read_pnet(&dev->coredev.rdma_net);
	/* Wide enough that what is out of range does not become a number in range. */
	long long index, pkey;
	bool valid;
	int err;
	char junk;

	if (!ns_capable(net->user_ns, CAP_NET_ADMIN)) {
		rxe_rs_device_dbg(dev, "editing P_Keys takes CAP_NET_ADMIN");
		return rxe_rs_device_checked(dev, "pkey_table", -EPERM);
	}
	valid = sscanf(buf, "%lli %lli %c", &index, &pkey, &junk) == 2 && index >= 0 &&
		index <= U16_MAX;
	if (!valid && sscanf(buf, "add %lli %c", &pkey, &junk) == 1) {
		index = RXE_RS_PKEY_FREE;
		valid = true;
	}
	if (!valid || pkey < 0 || pkey > U16_MAX) {
		rxe_rs_device_dbg(dev,
				  "not \"add\" or the index of an entry, and a P_Key of 16 bits");
		return rxe_rs_device_checked(dev, "pkey_table", -EINVAL);
	}
	err = READ_ONCE(rxe_rs_set_pkey)(dev, index, pkey);
	return err ?: count;
}
static DEVICE_ATTR_RW(pkey_table);

/* Shows the name of the network device. rdma_rxe has the same attribute. */
static ssize_t parent_show(struct device *device, struct device_attribute *attr, char *buf)
{
	struct net_device *netdev = ib_device_get_netdev(rdma_device_to_ibdev(device), 1);
	ssize_t len;

	if (!netdev)
		return -ENODEV;
	len = sysfs_emit(buf, "%s\n", netdev_name(netdev));
	dev_put(netdev);
	return len;
}
static DEVICE_ATTR_RO(parent);

static struct attribute *rxe_rs_sysfs_attrs[] = {
	&dev_attr_parent.attr,
	&dev_attr_pkey_table.attr,
	NULL,
};

const struct attribute_group rxe_rs_sysfs_group = {
	.attrs = rxe_rs_sysfs_attrs,
};

/**
 * rxe_rs_device_set_parent() - put a device below the hardware of its network device
 * @dev: the device, not registered yet
 * @ndev: the network device; virtual ones have no hardware
 *
 * Programs look for the bus address and the NUMA node of an adapter at a PCI
 * device. That of a virtio or USB device is above the parent of @ndev.
 *
 * Context: Any context. The caller has a reference to @ndev.
 */
void rxe_rs_device_set_parent(struct ib_device *dev, const struct net_device *ndev)
{
	struct device *pci = ndev->dev.parent;

	while (pci && !dev_is_pci(pci))
		pci = pci->parent;
	dev->dev.parent = pci ?: ndev->dev.parent;
}
