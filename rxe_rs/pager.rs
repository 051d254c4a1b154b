// SPDX-License-Identifier: GPL-2.0
//! Scheduling of page faults among address spaces.
//!
//! A page fault may take arbitrarily long, as a FUSE server need not answer and an NFS server may
//! be unreachable. Page faults therefore run on a work queue of their own, and work items queued
//! there hold no reference to a queue pair, a device or a network device, so that those can be
//! destroyed meanwhile. Only the module cannot be unloaded (`EBUSY`).
//!
//! Each page fault that sleeps occupies a kernel thread. [`MAX_RUNNING`] of them are shared: an
//! address space may use a part of those that are free ([`SHARE`]), but always one. A process whose
//! page faults never end delays itself, and leaves most of what was free to others. If nothing is
//! free, further ones run, one of each address space ([`MAX_ACTIVE`]).

use crate::{
    mr::odp::{
        FaultRequest,
        Prefetch, //
    },
    qp::QpCtx,
    rx::DEMUX, //
};
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        rcu,
        Arc, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};
use rxe_kapi::{
    mem::odp::MmId,
    new_spinlock_bh,
    sync::SpinLockBh,
    work::{
        Kind,
        ModuleRef,
        WorkQueue, //
    },
};

/// Page faults that run at a time, of all processes and devices, unless their processes have no
/// other: they sleep, and occupy 16 KiB each.
const MAX_RUNNING: u16 = 1024;

/// Work items of page faults that run at a time: the most of a work queue. The kernel divides the
/// number among NUMA nodes.
const MAX_ACTIVE: u16 = 2 * MAX_RUNNING;

/// An address space may run one `SHARE`th of what is free.
const SHARE: u32 = 8;

/// The work queues of the module.
pub(crate) struct Queues {
    /// Transmission rounds of queue pairs that are continued in softirq.
    pub(crate) softirq: WorkQueue,
    /// Work that needs process context and does not access memory of a process.
    pub(crate) local: WorkQueue,
    /// Page faults.
    faults: WorkQueue,
}

impl Queues {
    /// Creates the work queues.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let max_active = MAX_ACTIVE;
        Ok(Self {
            softirq: WorkQueue::new(c"rxe_rs_bh", Kind::Softirq)?,
            local: WorkQueue::new(c"rxe_rs", Kind::Local)?,
            faults: WorkQueue::new(c"rxe_rs_fault", Kind::Unbound { max_active })?,
        })
    }

    /// Queues a prefetch, which has a [`Permit`].
    pub(crate) fn prefetch(&self, work: Pin<KBox<Prefetch>>) {
        self.faults.enqueue(work);
    }
}

/// The page faults of an address space.
struct MmFaults {
    running: u32,
    /// Page faults that wait for others to end, by their sequence numbers.
    waiting: RBTree<u64, Arc<PageIn>>,
}

impl MmFaults {
    fn new() -> Self {
        Self {
            running: 0,
            waiting: RBTree::new(),
        }
    }
}

/// The counter that a page fault is charged to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Account {
    /// That of its address space.
    Own(MmId),
    /// A shared one, for address spaces that no memory could be allocated for.
    Shared,
}

type Node = RBTreeNodeReservation<MmId, MmFaults>;

struct State {
    running: u32,
    /// Sequence number of the next page fault that has to wait: they are in FIFO order.
    next_sequence: u64,
    /// Address spaces with page faults that run or wait.
    mms: RBTree<MmId, MmFaults>,
    shared: MmFaults,
}

impl State {
    /// Returns how many page faults an address space may run.
    fn limit(running: u32) -> u32 {
        let free = u32::from(MAX_RUNNING).saturating_sub(running);
        (free / SHARE).max(1)
    }

    /// Returns the account of an address space, which is created from `node` if it has none.
    fn open(&mut self, id: MmId, node: &mut Option<Node>) -> Account {
        if self.mms.get(&id).is_none() {
            let Some(node) = node.take() else {
                return Account::Shared;
            };
            self.mms.insert(node.into_node(id, MmFaults::new()));
        }
        Account::Own(id)
    }

    fn faults_of(&mut self, account: Account) -> &mut MmFaults {
        match account {
            Account::Own(id) => self.mms.get_mut(&id).unwrap_or(&mut self.shared),
            Account::Shared => &mut self.shared,
        }
    }

    /// Counts one more running page fault, if the limit allows it.
    fn try_start(&mut self, account: Account) -> bool {
        let limit = Self::limit(self.running);
        let faults = self.faults_of(account);
        if faults.running >= limit {
            return false;
        }
        faults.running = faults.running.wrapping_add(1);
        self.running = self.running.wrapping_add(1);
        true
    }
}

impl State {
    /// Takes a page fault that waits out of the queue; nothing if it does not wait.
    fn dequeue(&mut self, item: &PageIn, sequence: u64) -> Option<FaultRequest> {
        let mut request = item.request.lock();
        let waiting = &mut self.faults_of(request.account).waiting;
        let node = waiting.remove_node(&sequence)?;
        request.wait_node = Some(node.into_reservation());
        request.sequence = None;
        request.fault.take()
    }

    /// Takes the page fault that has waited longest out of the queue, to run it.
    fn take_first(&mut self, account: Account) -> Option<Arc<PageIn>> {
        let waiting = &mut self.faults_of(account).waiting;
        let (sequence, item) = waiting.iter().next()?;
        let (sequence, item) = (*sequence, item.clone());
        let node = waiting.remove_node(&sequence)?;
        let mut request = item.request.lock();
        request.wait_node = Some(node.into_reservation());
        request.sequence = None;
        drop(request);
        Some(item)
    }
}

/// Runs page faults, shared among address spaces.
#[pin_data]
pub(crate) struct Pager {
    #[pin]
    state: SpinLockBh<State>,
}

impl Pager {
    /// Creates a pager without page faults.
    pub(crate) fn new() -> impl PinInit<Self> {
        let state = State {
            running: 0,
            next_sequence: 0,
            mms: RBTree::new(),
            shared: MmFaults::new(),
        };
        pin_init!(Self {
            state <- new_spinlock_bh!(state, "Pager::state"),
        })
    }

    /// Runs page fault `fault` with `item`, at once or after others of its address space have
    /// ended. `item` must not be in use.
    ///
    /// # Context
    ///
    /// Any context that may take locks with bottom halves disabled.
    pub(crate) fn submit(&self, queues: &Queues, item: Arc<PageIn>, fault: FaultRequest) {
        let id = fault.space();
        let mut state = self.state.lock();
        let account = {
            let mut request = item.request.lock();
            let account = state.open(id, &mut request.node);
            request.fault = Some(fault);
            request.account = account;
            account
        };
        if state.try_start(account) {
            let _ = queues.faults.enqueue(item);
            return;
        }
        let sequence = state.next_sequence;
        state.next_sequence = sequence.wrapping_add(1);
        let wait_node = {
            let mut request = item.request.lock();
            request.sequence = Some(sequence);
            request.wait_node.take()
        };
        if let Some(wait_node) = wait_node {
            let waiting = &mut state.faults_of(account).waiting;
            let _ = waiting.insert(wait_node.into_node(sequence, item));
        }
    }

    /// Detaches `item` from its queue pair, and dequeues it if it still waits: the queue pair is
    /// being destroyed, or has been reset.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn end(&self, item: &Arc<PageIn>) {
        item.unbind();
        // Found by its number: a process may have very many that wait. The fault may be the last
        // reference to memory, which must not be dropped under a lock.
        let fault = {
            let mut state = self.state.lock();
            let sequence = item.request.lock().sequence;
            sequence.and_then(|sequence| state.dequeue(item, sequence))
        };
        drop(fault);
    }

    /// Returns a permit to fault in memory of `id` outside of a queue pair's page fault, if the
    /// limit allows it at once.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn permit(&self, id: MmId) -> Option<Permit> {
        let module = ModuleRef::get()?;
        let mut node = Node::new(GFP_KERNEL_ACCOUNT).ok();
        let (account, started) = {
            let mut state = self.state.lock();
            let account = state.open(id, &mut node);
            (account, state.try_start(account))
        };
        started.then_some(Permit {
            account,
            _module: module,
        })
    }

    /// Ends a running page fault, so that others may run. Returns a node that is no longer used.
    fn fault_ended(&self, queues: &Queues, account: Account) -> Option<Node> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.running = state.running.saturating_sub(1);
        let faults = state.faults_of(account);
        faults.running = faults.running.saturating_sub(1);
        loop {
            if state.faults_of(account).waiting.is_empty() || !state.try_start(account) {
                break;
            }
            if let Some(next) = state.take_first(account) {
                let _ = queues.faults.enqueue(next);
            }
        }
        // Page faults wait only while another one runs.
        let idle = state.faults_of(account).running == 0;
        let Account::Own(id) = account else {
            return None;
        };
        let node = idle.then(|| state.mms.remove_node(&id)).flatten();
        drop(guard);
        node.map(|node| node.into_reservation())
    }
}

/// Reports the end of a page fault to the pager.
fn fault_ended(account: Account) -> Option<Node> {
    let rcu = rcu::read_lock();
    // The table exists: what runs keeps the module from being unloaded.
    DEMUX
        .with(&rcu, |demux| {
            demux.pager.fault_ended(&demux.queues, account)
        })
        .flatten()
}

/// Permission to run, which counts as a running page fault.
pub(crate) struct Permit {
    account: Account,
    /// Dropped last, as it may free the module.
    _module: ModuleRef,
}

impl Drop for Permit {
    fn drop(&mut self) {
        drop(fault_ended(self.account));
    }
}

/// What a page fault of a queue pair needs. It is allocated with the queue pair, so that handling a
/// page fault cannot fail.
#[pin_data]
pub(crate) struct PageIn {
    #[pin]
    request: SpinLockBh<Request>,
    /// The queue pair that waits, until it is destroyed.
    #[pin]
    owner: SpinLockBh<Option<Arc<QpCtx>>>,
    #[pin]
    work: Work<PageIn>,
}

struct Request {
    /// The page fault to resolve.
    fault: Option<FaultRequest>,
    account: Account,
    /// Used to create the account of the address space, if it has none.
    node: Option<Node>,
    /// Its sequence number while it waits for others, and else its node in their tree.
    sequence: Option<u64>,
    wait_node: Option<WaitNode>,
}

type WaitNode = RBTreeNodeReservation<u64, Arc<PageIn>>;

impl_has_work! {
    impl HasWork<Self> for PageIn { self.work }
}

impl PageIn {
    /// Creates one for a queue pair that is being created.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let request = Request {
            fault: None,
            account: Account::Shared,
            node: Some(Node::new(GFP_KERNEL_ACCOUNT)?),
            sequence: None,
            wait_node: Some(WaitNode::new(GFP_KERNEL_ACCOUNT)?),
        };
        Arc::pin_init(
            pin_init!(Self {
                request <- new_spinlock_bh!(request, "PageIn::request"),
                owner <- new_spinlock_bh!(None, "PageIn::owner"),
                work <- new_work!("PageIn::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Sets the queue pair to resume after a page fault.
    pub(crate) fn bind(&self, owner: &Arc<QpCtx>) {
        *self.owner.lock() = Some(owner.clone());
    }

    fn owner(&self) -> Option<Arc<QpCtx>> {
        self.owner.lock().clone()
    }

    /// Creates another one for the same queue pair, which has been reset and must not wait for the
    /// end of a page fault of its earlier connection.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn another(&self) -> Result<Arc<Self>> {
        let another = Self::new()?;
        if let Some(owner) = self.owner() {
            another.bind(&owner);
        }
        Ok(another)
    }

    /// Clears the queue pair.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn unbind(&self) {
        let owner = self.owner.lock().take();
        drop(owner);
    }
}

impl WorkItem for PageIn {
    type Pointer = Arc<PageIn>;

    fn run(this: Arc<PageIn>) {
        let (fault, account) = {
            let mut request = this.request.lock();
            (request.fault.take(), request.account)
        };
        let Some(fault) = fault else {
            return;
        };
        let denied = fault.resolve().is_err().then_some(fault.page_fault);
        let module = fault.finish();
        let node = fault_ended(account).or_else(|| Node::new(GFP_KERNEL_ACCOUNT).ok());
        let spare = {
            let mut request = this.request.lock();
            if request.node.is_none() {
                request.node = node;
                None
            } else {
                node
            }
        };
        drop(spare);
        if let Some(qp) = this.owner() {
            qp.page_in_done(&this, denied);
        }
        drop(this);
        drop(module);
    }
}
