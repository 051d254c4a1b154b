// SPDX-License-Identifier: GPL-2.0
/* The same functions as in the tests of kernel verbs. */
#include "../kverbs/pair.c"
