// SPDX-License-Identifier: GPL-2.0
//! Multicast groups of a device and the queue pairs attached to them.
//!
//! The table has one entry per queue pair and group. The indices of a group are consecutive and
//! begin at a hash of its address: a received packet iterates over them without a lock, and
//! detaching allocates nothing. Two groups may share indices; every entry records its group.

use crate::{
    device::{
        gids::hash,
        DeviceCtx, //
    },
    limits::{
        MAX_ATTACHED,
        MAX_GROUPS,
        MAX_MEMBERS, //
    },
    qp::QpCtx, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        rcu,
        Arc,
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        WorkItem, //
    },
};
use rxe_kapi::{
    net::multicast::Membership,
    sync::RcuTable, //
};
use rxe_proto::ids::Gid;

/// A queue pair attached to a group.
struct Member {
    group: Gid,
    qp: Arc<QpCtx>,
}

/// A group with members.
struct JoinedGroup {
    group: Gid,
    members: u32,
    /// Those of the network devices.
    memberships: KVec<Membership>,
}

/// The groups of a device.
///
/// A member holds a reference to its queue pair, which holds one to the device. The cycle ends
/// because the core detaches a queue pair from all groups before it destroys it.
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    table: RcuTable<Member>,
    #[pin]
    joined: Mutex<KVec<JoinedGroup>>,
}

/// Returns the first index of a group.
fn first_index(group: &Gid) -> u32 {
    // The lowest bits distinguish the entries of one hash value.
    hash(group) & !(MAX_MEMBERS.wrapping_sub(1))
}

/// Joins `group` on the network device of the port, and on those above it that have addresses of
/// the device: nothing shows to which of the networks an attached queue pair belongs.
///
/// # Errors
///
/// `ENOMEM`, or the error of the first network device if none can join.
fn join(dev: &DeviceCtx, group: &Gid) -> Result<KVec<Membership>> {
    let netdevs = dev.gids.netdevs(dev.netdev.ifindex())?;
    let mut memberships = KVec::with_capacity(netdevs.len(), GFP_KERNEL_ACCOUNT)?;
    let mut refused = None;
    for ifindex in &netdevs {
        match Membership::join(&dev.netdev, *ifindex, &group.0) {
            // It fits: the capacity was reserved above.
            Ok(membership) => drop(memberships.push_within_capacity(membership)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) if memberships.is_empty() => Err(error),
        _ => Ok(memberships),
    }
}

impl_has_work! {
    impl HasWork<Self> for DeviceCtx { self.join_work }
}

impl WorkItem for DeviceCtx {
    type Pointer = Arc<DeviceCtx>;

    fn run(this: Arc<DeviceCtx>) {
        this.groups.follow(&this);
    }
}

impl DeviceCtx {
    /// Takes notice that an address was added or removed: the groups are joined on other network
    /// devices. That takes the RTNL lock, which callers may hold, so a work item does it.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn gids_changed(self: &Arc<Self>) {
        // If it is queued already, it has yet to look at the addresses.
        let _ = self.demux.queues.local.enqueue(self.clone());
    }
}

impl Groups {
    /// Creates a set without groups.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- RcuTable::new(),
            joined <- new_mutex!(KVec::new(), "Groups::joined"),
        })
    }

    /// Calls `f` for every entry at an index of `group`, in order, until it returns false.
    fn each_entry<'g>(
        &'g self,
        group: &Gid,
        rcu: &'g rcu::Guard,
        mut f: impl FnMut(u32, &'g Member) -> bool,
    ) {
        let last = first_index(group) | MAX_MEMBERS.wrapping_sub(1);
        let mut next = first_index(group);
        while let Some((index, member)) = self.table.borrow_next(next, rcu) {
            if index > last || !f(index, member) || index == last {
                return;
            }
            next = index.wrapping_add(1);
        }
    }

    /// Calls `f` for every queue pair attached to `group`.
    pub(crate) fn each_member<'g>(
        &'g self,
        group: &Gid,
        rcu: &'g rcu::Guard,
        mut f: impl FnMut(&'g Arc<QpCtx>),
    ) {
        self.each_entry(group, rcu, |_, member| {
            if member.group == *group {
                f(&member.qp);
            }
            true
        });
    }

    /// Returns the index of `qp` in `group`.
    fn find(&self, group: &Gid, qp: &Arc<QpCtx>) -> Option<u32> {
        let rcu = rcu::read_lock();
        let mut found = None;
        self.each_entry(group, &rcu, |index, member| {
            if member.group == *group && Arc::ptr_eq(&member.qp, qp) {
                found = Some(index);
            }
            found.is_none()
        });
        found
    }

    /// Inserts `qp` at a free index of `group`.
    fn insert(&self, group: Gid, qp: &Arc<QpCtx>) -> Result {
        let member = Arc::new(
            Member {
                group,
                qp: qp.clone(),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let first = first_index(&group);
        for index in first..=(first | MAX_MEMBERS.wrapping_sub(1)) {
            match self.table.insert_at(index, member.clone()) {
                Err(e) if e == EBUSY => {}
                done => return done,
            }
        }
        Err(ENOMEM)
    }

    /// Joins the groups on the network devices that have addresses of the device now, and leaves
    /// them on all others. A network device that has lost its memberships, as those of IPv6 are
    /// while the MTU is too small for it, gets them again. Without memory groups are left until the
    /// addresses change again, because a membership keeps a network device that is to go.
    ///
    /// # Context
    ///
    /// Process context; may sleep, and takes the RTNL lock.
    fn follow(&self, dev: &DeviceCtx) {
        let mut joined = self.joined.lock();
        for entry in joined.iter_mut() {
            // Joined again before they are left, memberships that stay never end.
            entry.memberships = join(dev, &entry.group).unwrap_or_default();
        }
    }

    /// Attaches `qp`; the network devices join the group with its first member (IBTA 11.3.1,
    /// IBTA A17.5.6).
    ///
    /// # Errors
    ///
    /// `EEXIST` if it is attached already. The core counts the calls that succeed here and destroys
    /// a queue pair only after as many calls of [`detach`](Self::detach); it calls twice for one
    /// group only if a process passes two LIDs, which have no meaning here. `ENOMEM` without memory
    /// or beyond a limit, or the error of joining the group on the network devices.
    pub(crate) fn attach(&self, dev: &DeviceCtx, group: Gid, qp: &Arc<QpCtx>) -> Result {
        let mut joined = self.joined.lock();
        if self.find(&group, qp).is_some() {
            let reason = c"the queue pair is attached to the group, perhaps by another LID";
            return Err(dev.handle.refuse_with(EEXIST, reason));
        }
        let total = joined
            .iter()
            .fold(0u32, |sum, entry| sum.wrapping_add(entry.members));
        if total >= MAX_ATTACHED {
            let reason = c"more queue pairs in multicast groups than the device's limit";
            return Err(dev.handle.refuse_with(ENOMEM, reason));
        }
        if let Some(entry) = joined.iter_mut().find(|entry| entry.group == group) {
            self.insert(group, qp).map_err(|error| {
                let reason = c"more queue pairs in the group than the device's limit, or no memory";
                dev.handle.refuse_with(error, reason)
            })?;
            entry.members = entry.members.wrapping_add(1);
            return Ok(());
        }
        if joined.len() >= usize::try_from(MAX_GROUPS)? {
            let reason = c"more multicast groups than the device's limit";
            return Err(dev.handle.refuse_with(ENOMEM, reason));
        }
        joined.reserve(1, GFP_KERNEL_ACCOUNT)?;
        let memberships = join(dev, &group)?;
        self.insert(group, qp)?;
        let entry = JoinedGroup {
            group,
            members: 1,
            memberships,
        };
        // It fits: the capacity was reserved above.
        let _ = joined.push_within_capacity(entry);
        Ok(())
    }

    /// Detaches `qp`; the network devices leave the group with its last member (IBTA 11.3.2).
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not attached.
    pub(crate) fn detach(&self, group: Gid, qp: &Arc<QpCtx>) -> Result {
        let mut joined = self.joined.lock();
        let index = self.find(&group, qp);
        let index = index.ok_or_else(|| {
            let reason = c"the queue pair is not attached to the group";
            qp.dev.handle.refuse(reason)
        })?;
        self.table.remove(index);
        if let Some(at) = joined.iter().position(|entry| entry.group == group) {
            let left = match joined.get_mut(at) {
                Some(entry) => {
                    entry.members = entry.members.wrapping_sub(1);
                    entry.members
                }
                None => return Ok(()),
            };
            if left == 0 {
                drop(joined.remove(at).ok());
            }
        }
        Ok(())
    }
}
