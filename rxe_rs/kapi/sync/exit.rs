// SPDX-License-Identifier: GPL-2.0
//! Waiting, at module exit, for an object whose last reference may be dropped in any context.

use crate::bindings;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Completion, //
    },
};

/// Part of the object to wait for.
pub struct ExitToken(Arc<Completion>);

/// Waits for its token to be dropped.
pub struct ExitWait(Arc<Completion>);

/// Creates a token and its waiter.
///
/// # Context
///
/// Process context; may sleep.
///
/// # Errors
///
/// `ENOMEM`.
pub fn exit_pair() -> Result<(ExitToken, ExitWait)> {
    let done = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
    Ok((ExitToken(done.clone()), ExitWait(done)))
}

impl Drop for ExitToken {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

impl ExitWait {
    /// Waits until the token has been dropped and the softirq or RCU read-side critical section
    /// that dropped it has ended, so that its code may be unloaded.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    pub fn wait(self) {
        self.0.wait_for_completion();
        // SAFETY: No requirement but a context that may sleep.
        unsafe { bindings::synchronize_rcu() };
    }
}
