// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of inline functions and macros that Rust cannot call: locks, xarray, network devices.
 * Functions without a comment of their own do what the wrapped function does, in its contexts.
 */
#include "../bindings_helper.h"

void rxe_rs_spin_lock_bh(struct spinlock *lock)
{
	spin_lock_bh(lock);
}

bool rxe_rs_spin_trylock_bh(struct spinlock *lock)
{
	return spin_trylock_bh(lock);
}

void rxe_rs_spin_unlock_bh(struct spinlock *lock)
{
	spin_unlock_bh(lock);
}

unsigned long rxe_rs_spin_lock_irqsave(struct spinlock *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool rxe_rs_spin_trylock_irqsave(struct spinlock *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

void rxe_rs_spin_unlock_irqrestore(struct spinlock *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

void rxe_rs_rwlock_init(rwlock_t *lock, const char *name, struct lock_class_key *key)
{
	rwlock_init(lock);
	/* rwlock_init() sets a lock class of its own for this line. */
	lockdep_set_class_and_name(lock, key, name);
}

bool rxe_rs_read_trylock(rwlock_t *lock)
{
	return read_trylock(lock);
}

void rxe_rs_read_unlock(rwlock_t *lock)
{
	read_unlock(lock);
}

void rxe_rs_write_lock(rwlock_t *lock)
{
	write_lock(lock);
}

void rxe_rs_write_unlock(rwlock_t *lock)
{
	write_unlock(lock);
}

void rxe_rs_local_bh_disable(void)
{
	local_bh_disable();
}

void rxe_rs_local_bh_enable(void)
{
	local_bh_enable();
}

void rxe_rs_wmb(void)
{
	/* Data written for the peer is visible before the response to it is sent. */
	wmb();
}

/**
 * rxe_rs_softirq_allowed() - check whether softirq locks may be taken
 *
 * Context: Any context.
 * Return: true unless in a hard interrupt or NMI, or with interrupts disabled.
 */
bool rxe_rs_softirq_allowed(void)
{
	return !in_hardirq() && !in_nmi() && !irqs_disabled();
}

bool rxe_rs_serving_softirq(void)
{
	return in_serving_softirq();
}

/*
 * RCU table: an xarray whose entries are inserted in any context. Insertion does not sleep. A NULL
 * entry is stored as XA_ZERO_ENTRY: look-ups return NULL, but the index is reserved.
 */

void rxe_rs_table_init(struct xarray *xa)
{
	xa_init_flags(xa, XA_FLAGS_LOCK_IRQ | XA_FLAGS_ALLOC | XA_FLAGS_ACCOUNT);
}

void *rxe_rs_table_load(struct xarray *xa, u32 index)
{
	return xa_load(xa, index);
}

/**
 * rxe_rs_table_insert() - store an entry at a free index
 * @xa: table
 * @index: index
 * @entry: entry, or NULL to reserve the index
 *
 * Context: Any context.
 * Return: 0, -EBUSY if the index is in use or reserved, -ENOMEM.
 */
int rxe_rs_table_insert(struct xarray *xa, u32 index, void *entry)
{
	unsigned long flags;
	int err;

	xa_lock_irqsave(xa, flags);
	err = __xa_insert(xa, index, entry, GFP_ATOMIC);
	xa_unlock_irqrestore(xa, flags);
	return err;
}

/**
 * rxe_rs_table_reserve() - reserve the lowest free index of a range
 * @xa: table
 * @index: receives the index
 * @first: lowest index of the range
 * @last: highest index of the range
 *
 * Context: Any context.
 * Return: 0, -EBUSY if all are in use or reserved, -ENOMEM.
 */
int rxe_rs_table_reserve(struct xarray *xa, u32 *index, u32 first, u32 last)
{
	unsigned long flags;
	int err;

	xa_lock_irqsave(xa, flags);
	err = __xa_alloc(xa, index, NULL, XA_LIMIT(first, last), GFP_ATOMIC);
	xa_unlock_irqrestore(xa, flags);
	return err;
}

/**
 * rxe_rs_table_publish() - store an entry at a reserved index
 * @xa: table
 * @index: index
 * @entry: entry
 *
 * Context: Any context.
 * Return: 0, -ENOENT if the index is not reserved.
 */
int rxe_rs_table_publish(struct xarray *xa, u32 index, void *entry)
{
	XA_STATE(xas, xa, index);
	unsigned long flags;
	int err = 0;

	xa_lock_irqsave(xa, flags);
	if (xas_load(&xas) == XA_ZERO_ENTRY) {
		xas_store(&xas, entry);
		err = xas_error(&xas);
	} else {
		err = -ENOENT;
	}
	xa_unlock_irqrestore(xa, flags);
	return err;
}

/**
 * rxe_rs_table_replace() - replace an entry
 * @xa: table
 * @index: index
 * @entry: new entry
 *
 * Does not allocate memory.
 *
 * Context: Any context.
 * Return: The old entry, or NULL if there was none; then @entry is not stored.
 */
void *rxe_rs_table_replace(struct xarray *xa, u32 index, void *entry)
{
	XA_STATE(xas, xa, index);
	unsigned long flags;
	void *old;

	xa_lock_irqsave(xa, flags);
	old = xas_load(&xas);
	if (old && !xa_is_zero(old))
		xas_store(&xas, entry);
	else
		old = NULL;
	xa_unlock_irqrestore(xa, flags);
	return old;
}

/**
 * rxe_rs_table_erase() - remove an entry or a reservation
 * @xa: table
 * @index: index
 *
 * Context: Any context.
 * Return: The entry, NULL if there was none.
 */
void *rxe_rs_table_erase(struct xarray *xa, u32 index)
{
	unsigned long flags;
	void *entry;

	xa_lock_irqsave(xa, flags);
	entry = __xa_erase(xa, index);
	xa_unlock_irqrestore(xa, flags);
	return entry;
}

/**
 * rxe_rs_table_next() - find the first entry at or after an index
 * @xa: table
 * @index: index to start at; receives that of the entry
 *
 * Context: Any context, in an RCU read-side critical section.
 * Return: The entry, NULL if there is none.
 */
void *rxe_rs_table_next(struct xarray *xa, u32 *index)
{
	unsigned long at = *index;
	void *entry;

	entry = xa_find(xa, &at, U32_MAX, XA_PRESENT);
	*index = at;
	return entry;
}

void rxe_rs_table_destroy(struct xarray *xa)
{
	xa_destroy(xa);
}

void rxe_rs_ida_init(struct ida *ida)
{
	ida_init(ida);
}

int rxe_rs_ida_alloc(struct ida *ida, u32 first, u32 last)
{
	return ida_alloc_range(ida, first, last, GFP_KERNEL_ACCOUNT);
}

void rxe_rs_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

void rxe_rs_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

u64 rxe_rs_dev_net_id(const struct net_device *dev)
{
	return dev_net(dev)->net_cookie;
}

bool rxe_rs_dev_is_loopback(const struct net_device *dev)
{
	return dev->flags & IFF_LOOPBACK;
}

bool rxe_rs_dev_is_up(const struct net_device *dev)
{
	return netif_running(dev) && netif_carrier_ok(dev);
}

u32 rxe_rs_dev_mtu(const struct net_device *dev)
{
	return READ_ONCE(dev->mtu);
}

u32 rxe_rs_dev_ifindex(const struct net_device *dev)
{
	return READ_ONCE(dev->ifindex);
}

u16 rxe_rs_dev_type(const struct net_device *dev)
{
	return dev->type;
}

bool rxe_rs_dev_is_vlan(const struct net_device *dev)
{
	return is_vlan_dev(dev);
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

/**
 * rxe_rs_dev_name() - return the name of a network device
 * @dev: network device
 * @name: receives IFNAMSIZ bytes, padded with NULs
 *
 * Context: Any context.
 */
void rxe_rs_dev_name(const struct net_device *dev, u8 *name)
{
	strscpy_pad((char *)name, dev->name, IFNAMSIZ);
}

struct net_device *rxe_rs_notifier_dev(void *info)
{
	return netdev_notifier_info_to_dev(info);
}
