// SPDX-License-Identifier: GPL-2.0
/* The RCU table: an xarray whose entries are inserted in any context. Insertion does not sleep. */
#include "bindings_helper.h"

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
 * @entry: entry
 *
 * Context: Any context.
 * Return: 0, -EBUSY if the index is in use, -ENOMEM.
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
 * rxe_rs_table_alloc() - store an entry at the lowest free index of a range
 * @xa: table
 * @index: receives the index
 * @entry: entry
 * @first: lowest index of the range
 * @last: highest index of the range
 *
 * Context: Any context.
 * Return: 0, -EBUSY if all are in use, -ENOMEM.
 */
int rxe_rs_table_alloc(struct xarray *xa, u32 *index, void *entry, u32 first, u32 last)
{
	unsigned long flags;
	int err;

	xa_lock_irqsave(xa, flags);
	err = __xa_alloc(xa, index, entry, XA_LIMIT(first, last), GFP_ATOMIC);
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
	if (old)
		xas_store(&xas, entry);
	xa_unlock_irqrestore(xa, flags);
	return old;
}

/**
 * rxe_rs_table_erase() - remove an entry
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
