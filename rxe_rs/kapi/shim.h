/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C side of the kapi crate, RDMA part: static inlines of the kernel's headers that Rust cannot
 * call, and the layout table. bindgen reads this file, so both sides share the prototypes.
 */
#ifndef RXE_RS_SHIM_H
#define RXE_RS_SHIM_H

#include <linux/types.h>

struct rxe_layout_entry {
	const char *name;
	size_t value;
};

extern const struct rxe_layout_entry rxe_layout[];
extern const size_t rxe_layout_len;

#endif /* RXE_RS_SHIM_H */
