// SPDX-License-Identifier: GPL-2.0
/*
 * Mutual exclusion with rdma_rxe. The in-tree driver has the same driver identifier
 * (RDMA_DRIVER_RXE) and treats every device with that identifier as its own, so the two modules
 * cannot be loaded at the same time.
 */
#include <linux/kconfig.h>
#include <linux/kobject.h>
#include <linux/notifier.h>
#include <linux/string.h>
#include "bindings_helper.h"

#define RXE_RS_OTHER_MODULE "rdma_rxe"

/* Module notifier: refuses to load rdma_rxe. */
static int rxe_rs_module_event(struct notifier_block *nb, unsigned long event, void *data)
{
	const struct module *module = data;

	if (event != MODULE_STATE_COMING || strcmp(module->name, RXE_RS_OTHER_MODULE))
		return NOTIFY_DONE;
	pr_err("rxe_rs: rdma_rxe cannot be loaded: unload rxe_rs first\n");
	return notifier_from_errno(-EBUSY);
}

static struct notifier_block rxe_rs_module_notifier = {
	.notifier_call = rxe_rs_module_event,
};

/*
 * Returns true if rdma_rxe is loaded. find_module() is not exported; the kobject of every loaded
 * module is in the set that the kobject of this module is in.
 */
static bool rxe_rs_other_module_loaded(void)
{
	struct kobject *other;

	other = kset_find_obj(THIS_MODULE->mkobj.kobj.kset, RXE_RS_OTHER_MODULE);
	kobject_put(other);
	return other;
}

/**
 * rxe_rs_exclusion_check() - refuse to work beside rdma_rxe
 *
 * The notifier is not called for a module whose loading has begun before it is registered, and
 * whose kobject the kernel may not have added yet when rxe_rs_exclusion_start() looks for it. Two
 * modules that are loaded at the same moment may therefore both be loaded. Neither is in danger as
 * long as this one has no device, unless link_type_rxe is set: the module whose links come second
 * registers their type in vain, which rdma_rxe does not notice.
 *
 * If rdma_rxe is loaded, the log contains that as the reason.
 *
 * Context: Process context. May sleep.
 * Return: 0, -EBUSY if rdma_rxe is loaded.
 */
int rxe_rs_exclusion_check(void)
{
	if (IS_BUILTIN(CONFIG_RDMA_RXE) || !rxe_rs_other_module_loaded())
		return 0;
	pr_err("rxe_rs: rdma_rxe is loaded: unload it first (modprobe -r rdma_rxe)\n");
	return -EBUSY;
}

/**
 * rxe_rs_exclusion_start() - keep rdma_rxe out of the kernel
 *
 * On success rdma_rxe cannot be loaded until rxe_rs_exclusion_stop() is called. Otherwise the log
 * contains the reason.
 *
 * Context: Process context. May sleep.
 * Return: 0, -EBUSY if rdma_rxe is loaded, -EOPNOTSUPP if it is built into this kernel.
 */
int rxe_rs_exclusion_start(void)
{
	int err;

	/*
	 * A built-in driver has no struct module and cannot be unloaded. This module can only be
	 * loaded into the kernel that it was built for, so the configuration is decisive.
	 */
	if (IS_BUILTIN(CONFIG_RDMA_RXE)) {
		pr_err("rxe_rs: rdma_rxe is built into this kernel: boot one with CONFIG_RDMA_RXE=m or n\n");
		return -EOPNOTSUPP;
	}
	err = register_module_notifier(&rxe_rs_module_notifier);
	if (err)
		return err;
	/* The notifier is not called for modules that are loaded already. */
	err = rxe_rs_exclusion_check();
	if (err)
		unregister_module_notifier(&rxe_rs_module_notifier);
	return err;
}

/**
 * rxe_rs_exclusion_stop() - allow rdma_rxe to be loaded again
 *
 * Context: Process context. May sleep.
 */
void rxe_rs_exclusion_stop(void)
{
	unregister_module_notifier(&rxe_rs_module_notifier);
}
