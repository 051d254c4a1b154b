// SPDX-License-Identifier: GPL-2.0
/*
 * Who may see the PSNs of a queue pair.
 */
#include "bindings_helper.h"

/**
 * rxe_rs_qp_query_allowed() - check whether the caller may see the PSNs of a queue pair
 * @qp: queue pair
 *
 * Context: Process context.
 * Return: true if the current process created @qp or has CAP_NET_ADMIN.
 */
bool rxe_rs_qp_query_allowed(const struct ib_qp *qp)
{
	struct task_struct *owner = qp->res.task;

	return (owner && same_thread_group(owner, current)) ||
	       ns_capable_noaudit(&init_user_ns, CAP_NET_ADMIN);
}
