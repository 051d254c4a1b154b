// SPDX-License-Identifier: GPL-2.0
//! Locks and tables that the kernel crate does not have.

pub mod context;
mod exit;
mod global;
mod ida;
mod number_table;
mod pending;
mod rcu_table;
mod rearmable;
mod replaceable;
mod spinlock;
mod users;

pub use exit::{
    exit_pair,
    ExitToken,
    ExitWait, //
};
pub use global::{
    Filled,
    Global, //
};
pub use ida::Ida;
pub use number_table::{
    NumberTable,
    Reservation, //
};
pub use pending::{
    Pending,
    PendingSet, //
};
pub use rcu_table::RcuTable;
pub use rearmable::{
    Guard as RearmableGuard,
    Rearmable, //
};
pub use replaceable::{
    InUse,
    Replaceable, //
};
pub use spinlock::{
    SpinLockBh,
    SpinLockBhBackend,
    SpinLockBhGuard,
    SpinLockIrq,
    SpinLockIrqBackend,
    SpinLockIrqGuard, //
};
pub use users::{
    User,
    Users, //
};

/// Waits until every RCU callback queued by [`RcuTable::remove`] and [`Replaceable`] has run. Must
/// be called last at module exit: the callbacks are code of this module.
///
/// # Context
///
/// Process context; sleeps.
pub fn rcu_barrier() {
    // SAFETY: No requirement but a context that may sleep.
    unsafe { crate::bindings::rcu_barrier() }
}

/// Makes all mappings of rings in processes independent of this module; what is left of the rings
/// is freed. The exit function of the module calls this when the devices are gone.
///
/// # Context
///
/// Process context; sleeps, until processes that exit have closed their mappings.
pub fn detach_mappings() {
    // SAFETY: No requirement but a context that may sleep.
    unsafe { crate::bindings::rxe_rs_ring_detach_all() };
}

/// Waits until everything is freed that was dropped in softirq context and is freed in process
/// context: rings, number tables, devices. The exit function of the module calls this after the
/// last [`rcu_barrier`].
///
/// # Context
///
/// Process context; sleeps.
pub fn flush_freed() {
    // SAFETY: No requirement but a context that may sleep.
    unsafe { crate::bindings::rxe_rs_free_flush() };
}
