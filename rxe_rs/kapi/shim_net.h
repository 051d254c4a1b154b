/* SPDX-License-Identifier: GPL-2.0 */
#ifndef RXE_RS_SHIM_NET_H
#define RXE_RS_SHIM_NET_H

#include <linux/types.h>

#endif /* RXE_RS_SHIM_NET_H */
