// SPDX-License-Identifier: GPL-2.0
/* The same as in the tests of kernel verbs. */
#include "../kverbs/pair.c"
