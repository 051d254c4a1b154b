// SPDX-License-Identifier: GPL-2.0
//! The clock of the driver and its timer.

use crate::{
    bindings,
    sync::SpinLockIrq, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow, //
    },
    types::Opaque, //
};

/// Nanoseconds of the monotonic clock.
///
/// # Context
///
/// Any context.
#[inline]
pub fn now_ns() -> u64 {
    // SAFETY: No requirements. The monotonic clock is never negative.
    unsafe { bindings::ktime_get() as u64 }
}

/// An object with a [`SoftTimer`].
pub trait TimerTarget: Send + Sync + 'static {
    /// Called when the timer has expired. It is no longer armed; the function may arm it again.
    ///
    /// # Context
    ///
    /// Softirq context: must not sleep.
    fn fire(this: ArcBorrow<'_, Self>);
}

/// Expiry of a timer that is not armed.
const IDLE: u64 = u64::MAX;

/// Maximum delay of a timer, in nanoseconds.
const MAX_SLACK_NS: u64 = 100_000;

/// One high resolution timer that calls [`TimerTarget::fire`] in softirq.
///
/// The timer is a field of the object that it calls. [`bind`](Self::bind) passes it a reference to
/// that object, which it holds until [`shutdown`](Self::shutdown); between the two it can be armed
/// in any context.
///
/// Arming is lazy: a timer that expires before the requested time is not changed; its callback
/// checks the time and arms it again. So the owner can postpone the expiry with every packet, and
/// the hrtimer is programmed once per expiry.
#[pin_data]
#[repr(C)]
pub struct SoftTimer<T: TimerTarget> {
    // First, as the callback gets a pointer to it.
    #[pin]
    timer: Opaque<bindings::hrtimer>,
    /// The time of expiry in nanoseconds, or [`IDLE`].
    armed: Atomic<u64>,
    /// The bound object. Arming needs the lock, so that the timer is not started after `shutdown`.
    #[pin]
    target: SpinLockIrq<Target<T>>,
}

/// Pointer from `Arc::into_raw`, owning one reference; null if not bound.
struct Target<T>(*const T);

// SAFETY: It stands for an `Arc<T>`, and `T: Send + Sync` by the bound of the timer.
unsafe impl<T: Send + Sync> Send for Target<T> {}

// SAFETY: The C timer may be used from every CPU.
unsafe impl<T: TimerTarget> Send for SoftTimer<T> {}
// SAFETY: As above; the rest is atomic or locked.
unsafe impl<T: TimerTarget> Sync for SoftTimer<T> {}

impl<T: TimerTarget> SoftTimer<T> {
    /// Creates a timer that is neither bound nor armed.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            timer <- Opaque::ffi_init(|timer| {
                // SAFETY: `timer` is valid for writes, and stays where it is: it is pinned.
                unsafe {
                    bindings::hrtimer_setup(
                        timer,
                        Some(Self::expired_callback),
                        bindings::CLOCK_MONOTONIC as i32,
                        bindings::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
                    )
                }
            }),
            armed: Atomic::new(IDLE),
            target <- crate::new_spinlock_irq!(Target(core::ptr::null()), "SoftTimer::target"),
        })
    }

    /// Binds the timer to the object it is part of. Does nothing if it is bound.
    ///
    /// The object is not freed before [`shutdown`](Self::shutdown) is called.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn bind(&self, this: &Arc<T>) {
        let mut target = self.target.lock();
        if target.0.is_null() {
            target.0 = Arc::into_raw(this.clone());
        }
    }

    /// Makes the timer fire at `at_ns` ([`now_ns`] clock) or earlier, or later by an eighth of the
    /// time until then at most, and by no more than 100 µs: timers that expire within such a range
    /// share an interrupt.
    ///
    /// Costs one load if the timer fires no later anyway. Nothing happens if the timer is not
    /// bound.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn arm_at(&self, at_ns: u64) {
        if at_ns < self.armed.load(Relaxed) {
            self.start(at_ns);
        }
    }

    /// Returns the time of expiry, if the timer is armed.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn armed_at(&self) -> Option<u64> {
        Some(self.armed.load(Relaxed)).filter(|&at| at != IDLE)
    }

    /// Disarms the timer and waits for a running callback to end.
    ///
    /// The timer stays bound and may be armed again.
    ///
    /// # Context
    ///
    /// Process context, without any lock that the callback takes.
    pub fn cancel(&self) {
        // SAFETY: The timer is set up.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
        self.armed.store(IDLE, Relaxed);
    }

    /// Disarms the timer permanently, waits for a running callback and drops the reference.
    ///
    /// # Context
    ///
    /// Process context, without any lock that the callback takes. Must not be called by the
    /// callback.
    pub fn shutdown(&self) {
        let target = core::mem::replace(&mut self.target.lock().0, core::ptr::null());
        self.cancel();
        if !target.is_null() {
            // SAFETY: It came from `Arc::into_raw` in `bind` and was taken out just now.
            drop(unsafe { Arc::from_raw(target) });
        }
    }

    #[cold]
    fn start(&self, at_ns: u64) {
        let target = self.target.lock();
        if target.0.is_null() || at_ns >= self.armed.load(Relaxed) {
            return;
        }
        self.armed.store(at_ns, Relaxed);
        let slack = at_ns
            .saturating_sub(now_ns())
            .wrapping_shr(3)
            .min(MAX_SLACK_NS);
        // SAFETY: The timer is set up, and its target is kept alive until `shutdown`, which
        // cancels after it has had the lock we hold.
        unsafe {
            bindings::hrtimer_start_range_ns(
                self.timer.get(),
                at_ns.min(i64::MAX as u64) as i64,
                slack,
                bindings::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
            )
        };
    }

    /// # Safety
    ///
    /// `timer` is the first field of a live `SoftTimer<T>`.
    unsafe extern "C" fn expired_callback(
        timer: *mut bindings::hrtimer,
    ) -> bindings::hrtimer_restart {
        // SAFETY: The C timer is the first field of a `SoftTimer<T>` that is alive, as the
        // reference of its target is dropped after the timer was cancelled.
        let this = unsafe { &*timer.cast::<Self>() };
        // Before the callback reads the state that determines the next expiry: code that has read
        // the old value has changed that state before.
        this.armed.store(IDLE, Relaxed);
        let target = this.target.lock().0;
        if !target.is_null() {
            // SAFETY: From `Arc::into_raw`. `shutdown` may have taken it since, but waits for
            // this function before it drops the reference.
            T::fire(unsafe { ArcBorrow::from_raw(target) });
        }
        // The binding of `HRTIMER_NORESTART` (0) has another form in each kernel series.
        // SAFETY: A C enumeration with a constant 0.
        unsafe { core::mem::zeroed() }
    }
}
