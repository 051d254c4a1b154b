// SPDX-License-Identifier: GPL-2.0
//! Address handles by their address vectors, for libraries that do not know the numbers.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc,
        Mutex, //
    },
};
use rxe_kapi::{
    net::flow::Flow,
    rand::random_u32,
    sync::RcuTable, //
};
use rxe_proto::abi::VectorKey;

/// Places of the table at which an entry may be.
const PLACES: u32 = 4;

/// The address handles of a protection domain with one address vector.
struct Entry {
    /// Number of the protection domain.
    pd: u64,
    key: VectorKey,
    digest: u32,
    /// The path that datagrams take.
    flow: Arc<Flow>,
    /// Number of these handles. Changes under [`Vectors::changes`].
    handles: Atomic<u32>,
}

impl Entry {
    fn is(&self, pd: u64, digest: u32) -> bool {
        self.pd == pd && self.digest == digest
    }
}

/// The address handles of a device that requests name by their address vectors.
#[pin_data]
pub(crate) struct Vectors {
    #[pin]
    table: RcuTable<Entry>,
    /// Held while entries change.
    #[pin]
    changes: Mutex<()>,
    /// Unknown to processes, so that none can choose vectors whose places are those of another's.
    seed: (u64, u64),
}

impl Vectors {
    /// Creates an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        let random = || u64::from(random_u32()) << 32 | u64::from(random_u32());
        pin_init!(Self {
            table <- RcuTable::new(),
            changes <- new_mutex!((), "Vectors::changes"),
            seed: (random(), random() | 1),
        })
    }

    /// The indices at which the entry may be.
    fn places(&self, pd: u64, digest: u32) -> impl Iterator<Item = u32> {
        let joined = (pd << 32 ^ u64::from(digest) ^ self.seed.0).wrapping_mul(self.seed.1);
        let first = (joined >> 32) as u32;
        (0..PLACES).map(move |place| first.wrapping_add(place))
    }

    /// Records an address handle of protection domain `pd`. Datagrams take the path of the first
    /// one with the same address vector.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another vector has the same digest, or all places are in use, both of which are
    /// unlikely; `ENOMEM`.
    pub(crate) fn add(&self, pd: u64, key: VectorKey, flow: &Arc<Flow>) -> Result {
        let digest = key.digest();
        let _changes = self.changes.lock();
        let mut free = None;
        for place in self.places(pd, digest) {
            match self.table.get(place) {
                Some(entry) if entry.is(pd, digest) && entry.key == key => {
                    let handles = entry.handles.load(Relaxed);
                    // There are at most `MAX_AH` address handles.
                    entry.handles.store(handles.wrapping_add(1), Relaxed);
                    return Ok(());
                }
                Some(entry) if entry.is(pd, digest) => return Err(EBUSY),
                Some(_) => {}
                None => {
                    free.get_or_insert(place);
                }
            }
        }
        let entry = Entry {
            pd,
            key,
            digest,
            flow: flow.clone(),
            handles: Atomic::new(1),
        };
        let entry = Arc::new(entry, GFP_KERNEL_ACCOUNT)?;
        self.table.insert_at(free.ok_or(EBUSY)?, entry)
    }

    /// Forgets an address handle that [`add`](Self::add) has recorded.
    ///
    /// # Context
    ///
    /// Process context.
    pub(crate) fn remove(&self, pd: u64, digest: u32) {
        let _changes = self.changes.lock();
        for place in self.places(pd, digest) {
            let Some(entry) = self.table.get(place) else {
                continue;
            };
            if entry.is(pd, digest) {
                let left = entry.handles.load(Relaxed).saturating_sub(1);
                entry.handles.store(left, Relaxed);
                if left == 0 {
                    self.table.remove(place);
                }
                return;
            }
        }
    }

    /// Returns the path of the address handles of protection domain `pd` whose vector has this
    /// digest.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn flow(&self, pd: u64, digest: u32) -> Option<Arc<Flow>> {
        let guard = rcu::read_lock();
        self.places(pd, digest).find_map(|place| {
            self.table
                .with(place, &guard, |entry| {
                    entry.is(pd, digest).then(|| entry.flow.clone())
                })
                .flatten()
        })
    }
}
