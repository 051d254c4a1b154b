// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: no rdma_rxe beside this module. The stock driver has the same driver id and treats every
 * device of that id as its own.
 */
#include <linux/kconfig.h>
#include <linux/namei.h>
#include <linux/notifier.h>
#include <linux/string.h>
#include "bindings_helper.h"

#define RXE_RS_OTHER_MODULE "rdma_rxe"

static int rxe_rs_module_event(struct notifier_block *nb, unsigned long event, void *data)
{
	const struct module *module = data;

	if (event != MODULE_STATE_COMING || strcmp(module->name, RXE_RS_OTHER_MODULE))
		return NOTIFY_DONE;
	pr_err("rxe_rs: " RXE_RS_OTHER_MODULE " cannot be loaded: unload rxe_rs first\n");
	return notifier_from_errno(-EBUSY);
}

static struct notifier_block rxe_rs_module_notifier = {
	.notifier_call = rxe_rs_module_event,
};

int rxe_rs_exclusion_start(void)
{
	struct path path;
	int err;

	/*
	 * Then it is not in the list of modules, nor in sysfs, and cannot be unloaded. This module loads only into the
	 * kernel it was built for, whose configuration says so.
	 */
	if (IS_BUILTIN(CONFIG_RDMA_RXE)) {
		pr_err("rxe_rs: " RXE_RS_OTHER_MODULE " is built into this kernel: boot one with CONFIG_RDMA_RXE=m or n\n");
		return -EOPNOTSUPP;
	}
	err = register_module_notifier(&rxe_rs_module_notifier);
	if (err)
		return err;
	/* Modules that are loaded already are not announced; sysfs knows them. */
	if (!kern_path("/sys/module/" RXE_RS_OTHER_MODULE "/initstate", 0, &path)) {
		path_put(&path);
		unregister_module_notifier(&rxe_rs_module_notifier);
		pr_err("rxe_rs: " RXE_RS_OTHER_MODULE " is loaded: unload it first (modprobe -r " RXE_RS_OTHER_MODULE ")\n");
		return -EBUSY;
	}
	return 0;
}

void rxe_rs_exclusion_stop(void)
{
	unregister_module_notifier(&rxe_rs_module_notifier);
}
