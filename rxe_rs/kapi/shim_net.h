/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C side of the kapi crate: locks, the RCU table, network. Static inlines of the kernel's headers
 * that Rust cannot call, and the handling of socket buffers, which is made of little else.
 * bindgen reads this file, so both sides share the prototypes.
 */
#ifndef RXE_RS_SHIM_NET_H
#define RXE_RS_SHIM_NET_H

#include <linux/types.h>

struct net;
struct net_device;
struct sk_buff;
struct xarray;
struct spinlock;

/* Locks. */
void rxe_spin_lock_bh(struct spinlock *lock);
bool rxe_spin_trylock_bh(struct spinlock *lock);
void rxe_spin_unlock_bh(struct spinlock *lock);
unsigned long rxe_spin_lock_irqsave(struct spinlock *lock);
bool rxe_spin_trylock_irqsave(struct spinlock *lock, unsigned long *flags);
void rxe_spin_unlock_irqrestore(struct spinlock *lock, unsigned long flags);

/* Context. */
void rxe_local_bh_disable(void);
void rxe_local_bh_enable(void);
bool rxe_softirq_allowed(void);

/* RCU table. Storing never sleeps; a null entry reserves its index. */
void rxe_table_init(struct xarray *xa);
void *rxe_table_load(struct xarray *xa, u32 index);
int rxe_table_insert(struct xarray *xa, u32 index, void *entry);
int rxe_table_publish(struct xarray *xa, u32 index, void *entry);
void *rxe_table_erase(struct xarray *xa, u32 index);
void *rxe_table_next(struct xarray *xa, u32 *index);
void rxe_table_destroy(struct xarray *xa);

#endif /* RXE_RS_SHIM_NET_H */
