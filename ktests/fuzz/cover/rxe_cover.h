/* SPDX-License-Identifier: GPL-2.0 */
#ifndef RXE_COVER_H
#define RXE_COVER_H

/* The name that compilers call. */
void __sanitizer_cov_trace_pc(void);

#endif /* RXE_COVER_H */
