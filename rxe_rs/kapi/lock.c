// SPDX-License-Identifier: GPL-2.0
/*
 * Spinlocks that disable bottom halves. Most of them are taken where these are disabled already:
 * plain spinlocks do there, and take less time.
 */
#include <linux/bottom_half.h>
#include <linux/preempt.h>
#include <linux/spinlock.h>
#include "bindings_helper.h"

/**
 * rxe_rs_spin_lock_bh() - lock, with bottom halves disabled
 * @lock: the lock
 *
 * Context: Process context or softirq, interrupts enabled.
 * Return: true if this has disabled bottom halves, for rxe_rs_spin_unlock_bh().
 */
bool rxe_rs_spin_lock_bh(struct spinlock *lock)
{
	if (softirq_count()) {
		spin_lock(lock);
		return false;
	}
	spin_lock_bh(lock);
	return true;
}

/**
 * rxe_rs_spin_unlock_bh() - unlock
 * @lock: the lock
 * @disabled_bh: whether taking it has disabled bottom halves
 *
 * Context: Where the lock was taken; bottom halves have not been enabled since.
 */
void rxe_rs_spin_unlock_bh(struct spinlock *lock, bool disabled_bh)
{
	if (disabled_bh)
		spin_unlock_bh(lock);
	else
		spin_unlock(lock);
}
