// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers of inline functions and macros that Rust cannot call: locks, contexts, network devices.
 * Functions without a comment of their own do what the wrapped function does, in its contexts.
 */
#include "../bindings_helper.h"

bool rxe_rs_spin_trylock_bh(struct spinlock *lock)
{
	return spin_trylock_bh(lock);
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
	u64 id;

	/* A device that moves leaves its namespace, which may end then. */
	rcu_read_lock();
	id = dev_net_rcu(dev)->net_cookie;
	rcu_read_unlock();
	return id;
}

u64 rxe_rs_net_id(const struct net *net)
{
	return net->net_cookie;
}

void rxe_rs_net_put(struct net *net)
{
	put_net(net);
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
