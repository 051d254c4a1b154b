// SPDX-License-Identifier: GPL-2.0
//! What the calling context allows.
//!
//! C header: [`include/linux/preempt.h`](srctree/include/linux/preempt.h)

use crate::bindings;
use core::marker::PhantomData;

/// Bottom halves are off, and the task stays on its CPU, while this lives.
pub struct BhDisabled(PhantomData<*mut ()>);

/// Turns bottom halves off; they nest.
///
/// Context: process or softirq, interrupts on.
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

/// How often a loop that waits for another CPU looks before it sleeps between two looks: some
/// microseconds, which is what a copy of a packet takes.
pub const SPINS: u32 = 500;

/// To be called in each turn of such a loop.
#[inline]
pub fn relax() {
    core::hint::spin_loop();
}

/// Everything written before is seen before anything written afterwards, by devices as well.
#[inline]
pub fn write_barrier() {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_rs_wmb() };
}

/// True if locks that turn bottom halves off may be taken: not in a hard interrupt and not with
/// interrupts off.
#[inline]
pub fn softirq_allowed() -> bool {
    // SAFETY: Reads the state of the CPU.
    unsafe { bindings::rxe_rs_softirq_allowed() }
}
