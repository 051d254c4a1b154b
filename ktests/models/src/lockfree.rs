// SPDX-License-Identifier: GPL-2.0
//! The shipped files of `rxe_rs/kapi/sync`, and what they call the rest of that folder.

/// What the calling context allows.
pub mod context {
    /// How often a loop that waits for another CPU looks before it sleeps: once, so that models get
    /// there.
    pub const SPINS: u32 = 1;

    /// To be called in each turn of such a loop.
    pub fn relax() {
        crate::pause();
    }
}

#[path = "../../../rxe_rs/kapi/sync/global.rs"]
pub mod global;
#[path = "../../../rxe_rs/kapi/sync/pending.rs"]
pub mod pending;
#[path = "../../../rxe_rs/kapi/sync/rcu_table.rs"]
pub mod rcu_table;
#[path = "../../../rxe_rs/kapi/sync/replaceable.rs"]
pub mod replaceable;
#[path = "../../../rxe_rs/kapi/sync/users.rs"]
pub mod users;

pub use global::Global;
pub use pending::{Pending, PendingSet};
pub use rcu_table::RcuTable;
pub use replaceable::Replaceable;
pub use users::Users;
