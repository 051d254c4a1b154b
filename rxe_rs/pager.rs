// SPDX-License-Identifier: GPL-2.0
//! Who gets memory on demand when.
//!
//! A page fault may take as long as whoever provides the page likes: the server of a FUSE file
//! system need not answer, an NFS server may be gone. So page faults run on a work queue of their
//! own, and what waits there has no reference to a queue pair, a device or a network device: those
//! can go meanwhile. Only the module cannot be unloaded (`EBUSY`).
//!
//! Each page fault that waits occupies a thread of the kernel. There may be [`MAX_RUNNING`] of
//! them, and an address space gets a part of those that are free ([`SHARE`]), but always one: a
//! process whose page faults never end makes itself wait, and leaves others most of what was free.

use crate::{
    mr::demand::{
        Fault,
        Prefetch, //
    },
    qp::QpCtx, //
    rx::DEMUX,
};
use kernel::{
    list::{
        impl_list_arc_safe,
        impl_list_item,
        AtomicTracker,
        List,
        ListArc,
        ListLinks,
        TryNewListArc, //
    },
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
    mem::demand::SpaceId,
    new_spinlock_bh,
    sync::SpinLockBh,
    work::{
        Kind,
        ModuleRef,
        WorkQueue, //
    },
};

/// Page faults that run at once, of all processes and devices: they sleep, and occupy 16 KiB each.
const MAX_RUNNING: u16 = 1024;

/// An address space may have the `SHARE`th part of what is free running.
const SHARE: u32 = 8;

/// The work queues of the module.
pub(crate) struct Queues {
    /// Turns of queue pairs that are left for later, in softirq.
    pub(crate) softirq: WorkQueue,
    /// What needs process context, and no memory of a process.
    pub(crate) local: WorkQueue,
    /// Page faults.
    faults: WorkQueue,
}

impl Queues {
    /// Makes them. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let max_active = MAX_RUNNING;
        Ok(Self {
            softirq: WorkQueue::new(c"rxe_rs_bh", Kind::Softirq)?,
            local: WorkQueue::new(c"rxe_rs", Kind::Local)?,
            faults: WorkQueue::new(c"rxe_rs_fault", Kind::Unbound { max_active })?,
        })
    }

    /// Gets memory ahead, with a [`Permit`].
    pub(crate) fn prefetch(&self, work: Pin<KBox<Prefetch>>) {
        self.faults.enqueue(work);
    }
}

/// The page faults of an address space.
struct Space {
    running: u32,
    /// Those that wait for others to end, in their order.
    waiting: List<PageIn>,
}

impl Space {
    fn new() -> Self {
        Self {
            running: 0,
            waiting: List::new(),
        }
    }
}

/// What a page fault is counted with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Account {
    /// Those of its address space.
    Own(SpaceId),
    /// Those of address spaces that no memory was found to count for.
    Rest,
}

type Node = RBTreeNodeReservation<SpaceId, Space>;

struct State {
    running: u32,
    /// Address spaces with page faults that run or wait.
    spaces: RBTree<SpaceId, Space>,
    rest: Space,
}

impl State {
    /// How many page faults an address space may have running.
    fn limit(running: u32) -> u32 {
        let free = u32::from(MAX_RUNNING).saturating_sub(running);
        (free / SHARE).max(1)
    }

    /// The account of an address space, made of `node` if it has none.
    fn open(&mut self, id: SpaceId, node: &mut Option<Node>) -> Account {
        if self.spaces.get(&id).is_none() {
            let Some(node) = node.take() else {
                return Account::Rest;
            };
            self.spaces.insert(node.into_node(id, Space::new()));
        }
        Account::Own(id)
    }

    fn space(&mut self, account: Account) -> &mut Space {
        match account {
            Account::Own(id) => self.spaces.get_mut(&id).unwrap_or(&mut self.rest),
            Account::Rest => &mut self.rest,
        }
    }

    /// Counts another one that runs, if it may.
    fn admit(&mut self, account: Account) -> bool {
        let limit = Self::limit(self.running);
        let space = self.space(account);
        if space.running >= limit {
            return false;
        }
        space.running = space.running.wrapping_add(1);
        self.running = self.running.wrapping_add(1);
        true
    }
}

/// Lets page faults run, shared out among address spaces.
#[pin_data]
pub(crate) struct Pager {
    #[pin]
    state: SpinLockBh<State>,
}

impl Pager {
    /// Nothing runs.
    pub(crate) fn new() -> impl PinInit<Self> {
        let state = State {
            running: 0,
            spaces: RBTree::new(),
            rest: Space::new(),
        };
        pin_init!(Self {
            state <- new_spinlock_bh!(state, "Pager::state"),
        })
    }

    /// Lets `item` get what `fault` says, at once or when others of its address space have ended.
    /// Any context that may take bottom half locks; `item` is not in use.
    pub(crate) fn submit(&self, queues: &Queues, item: Arc<PageIn>, fault: Fault) {
        let id = fault.space();
        let mut state = self.state.lock();
        let account = {
            let mut request = item.request.lock();
            let account = state.open(id, &mut request.node);
            request.fault = Some(fault);
            request.account = account;
            account
        };
        if state.admit(account) {
            let _ = queues.faults.enqueue(item);
        } else if let Ok(item) = ListArc::try_from_arc(item) {
            state.space(account).waiting.push_back(item);
        }
    }

    /// Takes `item` back if it still waits: its queue pair is gone. Process context.
    pub(crate) fn cancel(&self, item: &Arc<PageIn>) {
        let taken = {
            let mut state = self.state.lock();
            let account = item.request.lock().account;
            let mut cursor = state.space(account).waiting.cursor_front();
            loop {
                match cursor.peek_next() {
                    None => break None,
                    Some(next) if core::ptr::eq(&*next.arc(), &**item) => {
                        break Some(next.remove());
                    }
                    Some(_) => {}
                }
                cursor.move_next();
            }
        };
        if taken.is_some() {
            // What it was to get may be the last reference to memory: not under a lock.
            let fault = item.request.lock().fault.take();
            drop(fault);
        }
    }

    /// A permit for work that gets memory of `id` and is not a page fault of a queue pair, if one
    /// can be had at once. Process context.
    pub(crate) fn permit(&self, id: SpaceId) -> Option<Permit> {
        let module = ModuleRef::get()?;
        let mut node = Node::new(GFP_KERNEL_ACCOUNT).ok();
        let (account, admitted) = {
            let mut state = self.state.lock();
            let account = state.open(id, &mut node);
            (account, state.admit(account))
        };
        admitted.then_some(Permit {
            account,
            _module: module,
        })
    }

    /// One that ran has ended: others may run. Returns a node that is not needed any more.
    fn ended(&self, queues: &Queues, account: Account) -> Option<Node> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.running = state.running.saturating_sub(1);
        let space = state.space(account);
        space.running = space.running.saturating_sub(1);
        loop {
            if state.space(account).waiting.is_empty() || !state.admit(account) {
                break;
            }
            if let Some(next) = state.space(account).waiting.pop_front() {
                let _ = queues.faults.enqueue(next.into_arc());
            }
        }
        // With one that waits there is one that runs.
        let idle = state.space(account).running == 0;
        let Account::Own(id) = account else {
            return None;
        };
        let node = idle.then(|| state.spaces.remove_node(&id)).flatten();
        drop(guard);
        node.map(|node| node.into_reservation())
    }
}

/// Says that a page fault is over.
fn ended(account: Account) -> Option<Node> {
    let rcu = rcu::read_lock();
    // It is there: what runs keeps the module from being unloaded.
    DEMUX
        .with(&rcu, |demux| demux.pager.ended(&demux.queues, account))
        .flatten()
}

/// Counts as a page fault that runs.
pub(crate) struct Permit {
    account: Account,
    /// After the rest: what frees the module comes last.
    _module: ModuleRef,
}

impl Drop for Permit {
    fn drop(&mut self) {
        drop(ended(self.account));
    }
}

/// What a page fault of a queue pair needs, made with the queue pair: nothing can fail when memory
/// is missed.
#[pin_data]
pub(crate) struct PageIn {
    #[pin]
    request: SpinLockBh<Request>,
    /// Who waits, until it is destroyed.
    #[pin]
    owner: SpinLockBh<Option<Arc<QpCtx>>>,
    #[pin]
    work: Work<PageIn>,
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
}

struct Request {
    /// What to get.
    fault: Option<Fault>,
    account: Account,
    /// To count with, if the address space is not counted yet.
    node: Option<Node>,
}

impl_has_work! {
    impl HasWork<Self> for PageIn { self.work }
}
impl_list_arc_safe! {
    impl ListArcSafe<0> for PageIn { tracked_by tracker: AtomicTracker; }
}
impl_list_item! {
    impl ListItem<0> for PageIn { using ListLinks { self.links }; }
}

impl PageIn {
    /// For a queue pair that is being made.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let request = Request {
            fault: None,
            account: Account::Rest,
            node: Some(Node::new(GFP_KERNEL_ACCOUNT)?),
        };
        Arc::pin_init(
            pin_init!(Self {
                request <- new_spinlock_bh!(request, "PageIn::request"),
                owner <- new_spinlock_bh!(None, "PageIn::owner"),
                work <- new_work!("PageIn::work"),
                links <- ListLinks::new(),
                tracker <- AtomicTracker::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Who is to go on when memory has been got.
    pub(crate) fn bind(&self, owner: &Arc<QpCtx>) {
        *self.owner.lock() = Some(owner.clone());
    }

    /// Nobody is. Process context.
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
        let denied = fault.get().is_err().then_some(fault.page_fault);
        let module = fault.finish();
        let node = ended(account).or_else(|| Node::new(GFP_KERNEL_ACCOUNT).ok());
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
        let owner = this.owner.lock().clone();
        if let Some(qp) = owner {
            qp.paged(denied);
        }
        drop(this);
        drop(module);
    }
}
