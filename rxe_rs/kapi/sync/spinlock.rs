// SPDX-License-Identifier: GPL-2.0
//! Spinlocks that disable softirqs or interrupts.
//!
//! The kernel crate only has the plain `spin_lock`, which deadlocks when a softirq (or an
//! interrupt) takes the same lock on the same CPU. Both kinds here are backends of the kernel
//! crate's own [`Lock`], so guards, pinning and lockdep classes are the usual ones.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

use crate::bindings;
use kernel::{
    ffi::{
        c_char,
        c_ulong, //
    },
    sync::lock::{
        Backend,
        Guard,
        Lock, //
    },
};

/// A spinlock that disables softirqs while held, for data shared by process context and softirq.
///
/// A guard that is taken where softirqs are disabled, by another guard or
/// [`BhDisabled`](super::context::BhDisabled), must be dropped before they are enabled.
pub type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

/// Guard of a [`SpinLockBh`].
pub type SpinLockBhGuard<'a, T> = Guard<'a, T, SpinLockBhBackend>;

/// A spinlock that disables interrupts while held and restores their state, for any context.
pub type SpinLockIrq<T> = Lock<T, SpinLockIrqBackend>;

/// Guard of a [`SpinLockIrq`].
pub type SpinLockIrqGuard<'a, T> = Guard<'a, T, SpinLockIrqBackend>;

/// Backend of [`SpinLockBh`]: `spin_lock_bh`.
pub struct SpinLockBhBackend;

/// Backend of [`SpinLockIrq`]: `spin_lock_irqsave`.
pub struct SpinLockIrqBackend;

/// Creates an initializer of a [`SpinLockBh`] with its own lock class.
///
/// `new_spinlock_bh!(value)` or `new_spinlock_bh!(value, "name")`.
#[macro_export]
macro_rules! new_spinlock_bh {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockBh::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}

/// Creates an initializer of a [`SpinLockIrq`] with its own lock class.
///
/// `new_spinlock_irq!(value)` or `new_spinlock_irq!(value, "name")`.
#[macro_export]
macro_rules! new_spinlock_irq {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockIrq::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}

// SAFETY: `spinlock_t` gives mutual exclusion; `relock` is the default and locks the same way.
unsafe impl Backend for SpinLockBhBackend {
    type State = bindings::spinlock_t;
    /// Whether the lock has disabled softirqs.
    type GuardState = bool;

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: `ptr` is valid for writes, `name` and `key` are static, by contract.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The lock is initialized, by contract.
        unsafe { bindings::rxe_rs_spin_lock_bh(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The lock is initialized, by contract.
        unsafe { bindings::rxe_rs_spin_trylock_bh(ptr) }.then_some(true)
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState) {
        // SAFETY: The caller owns the lock and got `guard_state` with it, by contract.
        unsafe { bindings::rxe_rs_spin_unlock_bh(ptr, *guard_state) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The lock is initialized, by contract.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}

// SAFETY: `spinlock_t` gives mutual exclusion; `relock` is the default and locks the same way.
unsafe impl Backend for SpinLockIrqBackend {
    type State = bindings::spinlock_t;
    type GuardState = c_ulong;

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: `ptr` is valid for writes, `name` and `key` are static, by contract.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The lock is initialized, by contract.
        unsafe { bindings::rxe_rs_spin_lock_irqsave(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags: c_ulong = 0;
        // SAFETY: The lock is initialized, by contract, and `flags` is ours.
        unsafe { bindings::rxe_rs_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState) {
        // SAFETY: The caller owns the lock and got `guard_state` with it, by contract.
        unsafe { bindings::rxe_rs_spin_unlock_irqrestore(ptr, *guard_state) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The lock is initialized, by contract.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
