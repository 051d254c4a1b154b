// SPDX-License-Identifier: GPL-2.0
//! The shipped files of `rxe_rs/kapi/sync`, and replacements for the rest of that folder.

/// Properties of the calling context.
pub mod context {
    /// Bottom halves are disabled: nothing in a model runs in one.
    pub struct BhDisabled(());

    /// Disables bottom halves.
    pub fn disable_bh() -> BhDisabled {
        BhDisabled(())
    }

    /// Polls of a loop that waits for another CPU before it sleeps: one, so that models reach the
    /// sleep.
    pub const SPINS: u32 = 1;

    /// Must be called in each iteration of such a loop.
    pub fn relax() {
        crate::pause();
    }
}

#[path = "../../../rxe_rs/kapi/sync/global.rs"]
pub mod global;
#[path = "../../../rxe_rs/kapi/sync/number_table.rs"]
pub mod number_table;
#[path = "../../../rxe_rs/kapi/sync/pending.rs"]
pub mod pending;
#[path = "../../../rxe_rs/kapi/sync/rcu_table.rs"]
pub mod rcu_table;
#[path = "../../../rxe_rs/kapi/sync/rearmable.rs"]
pub mod rearmable;
#[path = "../../../rxe_rs/kapi/sync/replaceable.rs"]
pub mod replaceable;
#[path = "../../../rxe_rs/kapi/sync/users.rs"]
pub mod users;

pub use global::Global;
pub use number_table::{NumberTable, Reservation};
pub use pending::{Pending, PendingSet};
pub use rcu_table::RcuTable;
pub use rearmable::Rearmable;
pub use replaceable::Replaceable;
pub use users::Users;
