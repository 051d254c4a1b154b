// SPDX-License-Identifier: GPL-2.0
//! Waiting, at module exit, for the last user of something that is freed wherever its last
//! reference happens to go.

use crate::bindings;
use kernel::prelude::*;
use kernel::sync::{Arc, Completion};

/// Lives in the object that everything else refers to.
pub struct ExitToken(Arc<Completion>);

/// Waits for its token to be dropped.
pub struct ExitWait(Arc<Completion>);

/// Makes a token and the one who waits for it.
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
    /// Waits until the token is gone and the softirq or RCU section that dropped it has ended, so
    /// that its code may go. Process context.
    pub fn wait(self) {
        self.0.wait_for_completion();
        // SAFETY: No requirement but a context that may sleep.
        unsafe { bindings::synchronize_rcu() };
    }
}
