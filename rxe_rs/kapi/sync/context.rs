// SPDX-License-Identifier: GPL-2.0
//! Execution contexts and what they allow.
//!
//! C header: [`include/linux/preempt.h`](srctree/include/linux/preempt.h)

use crate::bindings;
use core::marker::PhantomData;

/// Bottom halves are disabled, and the task stays on its CPU, while this exists.
pub struct BhDisabled(PhantomData<*mut ()>);

/// Disables bottom halves; calls nest.
///
/// # Context
///
/// Process context or softirq, interrupts enabled.
#[inline]
pub fn disable_bh() -> BhDisabled {
    // SAFETY: No requirement; undone by the guard, which cannot leave the task.
    unsafe { bindings::rxe_rs_local_bh_disable() };
    BhDisabled(PhantomData)
}

impl Drop for BhDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: Pairs with `disable_bh` in the same task.
        unsafe { bindings::rxe_rs_local_bh_enable() };
    }
}

/// How often a loop that waits for another CPU polls before it sleeps between polls: some
/// microseconds, which is the time of copying a packet.
pub const SPINS: u32 = 500;

/// Relaxes the CPU in each iteration of such a loop.
///
/// # Context
///
/// Any context.
#[inline]
pub fn relax() {
    core::hint::spin_loop();
}

/// Orders earlier writes before later ones, also as seen by devices (`wmb`).
///
/// # Context
///
/// Any context.
#[inline]
pub fn write_barrier() {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_rs_wmb() };
}

/// Returns true in softirq context, where what is queued on the bottom half work queue runs as soon
/// as the handler that runs now has returned.
///
/// # Context
///
/// Any context.
#[inline]
pub fn serving_softirq() -> bool {
    // SAFETY: Reads the state of the CPU.
    unsafe { bindings::rxe_rs_serving_softirq() }
}

/// Returns true if locks that disable bottom halves may be taken: not in a hard interrupt and not
/// with interrupts disabled.
///
/// # Context
///
/// Any context.
#[inline]
pub fn softirq_allowed() -> bool {
    // SAFETY: Reads the state of the CPU.
    unsafe { bindings::rxe_rs_softirq_allowed() }
}
