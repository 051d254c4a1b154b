// SPDX-License-Identifier: GPL-2.0
/*
 * Work queues, and the CPUs that work items and completion handlers run on.
 */
#include "bindings_helper.h"

/**
 * rxe_rs_workqueue_new() - create a work queue
 * @name: name, which is copied
 * @kind: RXE_RS_WORK_*
 * @max_active: maximum number of work items that run at the same time, 0 for the default
 *
 * Context: Process context. May sleep.
 * Return: The work queue, or NULL.
 */
struct workqueue_struct *rxe_rs_workqueue_new(const char *name, u32 kind, int max_active)
{
	switch (kind) {
	case RXE_RS_WORK_SOFTIRQ:
		return alloc_workqueue("%s", WQ_BH | WQ_PERCPU, 0, name);
	case RXE_RS_WORK_LOCAL:
		return alloc_workqueue("%s", WQ_PERCPU, max_active, name);
	default:
		return alloc_workqueue("%s", WQ_UNBOUND, max_active, name);
	}
}

/**
 * rxe_rs_queue_on() - queue a work item on a CPU
 * @cpu: number of the CPU; the current one is used if it is offline
 * @wq: work queue
 * @work: work item
 *
 * Context: Any context.
 * Return: false if @work was queued already.
 */
bool rxe_rs_queue_on(unsigned int cpu, struct workqueue_struct *wq, struct work_struct *work)
{
	bool queued;

	preempt_disable();
	if (cpu >= nr_cpu_ids || !cpu_online(cpu))
		cpu = smp_processor_id();
	queued = queue_work_on(cpu, wq, work);
	preempt_enable();
	return queued;
}

/**
 * rxe_rs_queue_bh_elsewhere() - queue a work item in the softirq of another CPU
 * @cpu: number of the CPU
 * @work: work item
 *
 * A CPU that is online cannot go offline while preemption is disabled here.
 *
 * Context: Any context.
 * Return: false if @cpu is the current one or offline; then @work is not queued.
 */
bool rxe_rs_queue_bh_elsewhere(unsigned int cpu, struct work_struct *work)
{
	bool elsewhere;

	preempt_disable();
	elsewhere = cpu != smp_processor_id() && cpu < nr_cpu_ids && cpu_online(cpu);
	if (elsewhere)
		queue_work_on(cpu, system_bh_wq, work);
	preempt_enable();
	return elsewhere;
}

/**
 * rxe_rs_vector_cpu() - return the CPU of a completion vector
 * @vector: completion vector
 *
 * Vectors are assigned to the CPUs that are online at the time of the call, in turn.
 *
 * Context: Process context. May sleep.
 * Return: The number of the CPU.
 */
unsigned int rxe_rs_vector_cpu(unsigned int vector)
{
	unsigned int cpu;

	cpus_read_lock();
	cpu = cpumask_nth(vector % num_online_cpus(), cpu_online_mask);
	cpus_read_unlock();
	return cpu;
}
