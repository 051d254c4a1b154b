// SPDX-License-Identifier: GPL-2.0
/*
 * Hash tables of objects by random numbers (queue pair numbers, memory keys).
 *
 * The numbers are spread over 24 bits, so that a tree or an array by number would have a node for
 * nearly every entry. The hash is seeded, because processes see the numbers of their own objects
 * and choose which of them to keep.
 */
#include <linux/rhashtable.h>
#include <linux/slab.h>
#include "bindings_helper.h"

struct rxe_rs_numbers {
	struct rhashtable ht;
	struct rxe_rs_free later;
	void (*free)(struct rxe_rs_number *entry);
};

/* The comparison of rhashtable itself calls memcmp(). */
static inline int differs(struct rhashtable_compare_arg *arg, const void *object)
{
	const struct rxe_rs_number *entry = object;

	return entry->number != *(const u32 *)arg->key;
}

static const struct rhashtable_params params = {
	.head_offset = offsetof(struct rxe_rs_number, node),
	.key_offset = offsetof(struct rxe_rs_number, number),
	.key_len = sizeof(u32),
	.obj_cmpfn = differs,
	.automatic_shrinking = true,
};

static void free_entry(void *entry, void *numbers)
{
	((struct rxe_rs_numbers *)numbers)->free(entry);
}

static void free_numbers(struct rxe_rs_free *item)
{
	struct rxe_rs_numbers *numbers = container_of(item, struct rxe_rs_numbers, later);

	rhashtable_free_and_destroy(&numbers->ht, free_entry, numbers);
	kfree(numbers);
}

/**
 * rxe_rs_numbers_alloc() - create an empty table
 * @free: frees an entry that is left when the table is freed
 *
 * Context: Process context. May sleep.
 * Return: The table, or NULL.
 */
struct rxe_rs_numbers *rxe_rs_numbers_alloc(void (*free)(struct rxe_rs_number *entry))
{
	struct rxe_rs_numbers *numbers = kzalloc(sizeof(*numbers), GFP_KERNEL);

	if (!numbers)
		return NULL;
	numbers->later.free = free_numbers;
	numbers->free = free;
	if (rhashtable_init(&numbers->ht, &params)) {
		kfree(numbers);
		return NULL;
	}
	return numbers;
}

/**
 * rxe_rs_numbers_insert() - insert an entry
 * @numbers: table
 * @entry: entry, with its number
 *
 * Context: Any context.
 * Return: 0, -EBUSY if the number is in use, -ENOMEM.
 */
int rxe_rs_numbers_insert(struct rxe_rs_numbers *numbers, struct rxe_rs_number *entry)
{
	int err = rhashtable_lookup_insert_fast(&numbers->ht, &entry->node, params);

	if (err == -EEXIST)
		return -EBUSY;
	return err ? -ENOMEM : 0;
}

/**
 * rxe_rs_numbers_lookup() - find the entry of a number
 * @numbers: table
 * @number: number
 *
 * Context: Any context, in an RCU read-side critical section.
 * Return: The entry, NULL if there is none.
 */
struct rxe_rs_number *rxe_rs_numbers_lookup(struct rxe_rs_numbers *numbers, u32 number)
{
	return rhashtable_lookup(&numbers->ht, &number, params);
}

/**
 * rxe_rs_numbers_remove() - remove an entry
 * @numbers: table
 * @entry: entry that has been inserted, and is not freed during the call
 *
 * Context: Any context.
 * Return: True if this call has removed it.
 */
bool rxe_rs_numbers_remove(struct rxe_rs_numbers *numbers, struct rxe_rs_number *entry)
{
	return !rhashtable_remove_fast(&numbers->ht, &entry->node, params);
}

/**
 * rxe_rs_numbers_free() - free a table
 * @numbers: table that nobody uses any more
 *
 * The table may have a work item of its own that resizes it, for which this waits: in softirq
 * context, where the last reference to a device may be dropped, a work item does so later.
 *
 * Context: Process context without locks held, or softirq context.
 */
void rxe_rs_numbers_free(struct rxe_rs_numbers *numbers)
{
	rxe_rs_free(&numbers->later);
}
