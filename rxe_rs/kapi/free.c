// SPDX-License-Identifier: GPL-2.0
/*
 * Freeing, in process context, of what must not be freed in softirq context.
 *
 * The last reference to an object is often dropped by an RCU callback or by a work item of the
 * bottom half work queue. Some resources take locks, or wait, when they are freed, which is not
 * allowed there. They have a field of type struct rxe_rs_free, and a work item frees them.
 */
#include <linux/llist.h>
#include <linux/workqueue.h>
#include "bindings_helper.h"

static LLIST_HEAD(items);

static void free_items(struct work_struct *work)
{
	struct rxe_rs_free *item, *next;

	llist_for_each_entry_safe(item, next, llist_del_all(&items), node) {
		item->free(item);
		cond_resched();
	}
}

static DECLARE_WORK(free_work, free_items);

/**
 * rxe_rs_free() - free a resource in process context
 * @item: field of the resource; its function frees the resource
 *
 * The function is called at once in process context, and else later, by a work item.
 *
 * Context: Process context without locks held, or softirq context.
 */
void rxe_rs_free(struct rxe_rs_free *item)
{
	if (!in_interrupt())
		item->free(item);
	else if (llist_add(&item->node, &items))
		schedule_work(&free_work);
}

/**
 * rxe_rs_free_flush() - wait until all that rxe_rs_free() deferred is freed
 *
 * For the exit of the module: afterwards none of its code is to run.
 *
 * Context: Process context. Sleeps.
 */
void rxe_rs_free_flush(void)
{
	flush_work(&free_work);
}
