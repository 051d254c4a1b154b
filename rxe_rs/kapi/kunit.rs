// SPDX-License-Identifier: GPL-2.0
//! KUnit suites, compiled for kernels with `CONFIG_KUNIT` only: what cannot be tested outside a
//! kernel and is awkward to reach through verbs.

use crate::{
    bindings,
    mem::ring::{
        CompletionRing,
        UserRing, //
    },
    new_rearmable,
    sync::{
        context::disable_bh,
        exit_pair,
        flush_freed,
        ExitToken,
        Ida,
        NumberTable,
        RcuTable,
        Rearmable,
        Replaceable,
        Users, //
    },
    work::{
        Kind,
        WorkQueue, //
    },
};
use core::mem::offset_of;
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
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
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};

const PRODUCER: usize = offset_of!(bindings::rxe_queue_buf, producer_index);
const CONSUMER: usize = offset_of!(bindings::rxe_queue_buf, consumer_index);
const DATA: usize = offset_of!(bindings::rxe_queue_buf, data);

/// Writes a word of the memory that the process would map; allocates its page as the process would.
fn poke(buf: &crate::mem::SharedBuf, offset: usize, value: u32) {
    assert!(offset + 4 <= buf.len());
    // SAFETY: A live ring, and one of its pages.
    let page = unsafe { bindings::rxe_rs_ring_provide(buf.as_ring(), offset / PAGE_SIZE) };
    assert!(!page.is_null());
    // SAFETY: In the page and aligned; nothing else accesses the buffer but by atomics.
    unsafe { Atomic::<u32>::from_ptr(page.cast::<u8>().add(offset % PAGE_SIZE).cast()) }
        .store(value, Relaxed);
}

fn peek(buf: &crate::mem::SharedBuf, offset: usize) -> u32 {
    let mut word = [0; 4];
    buf.read(offset, &mut word);
    u32::from_ne_bytes(word)
}

#[kunit_tests(rxe_kapi_rings)]
mod rings {
    use super::*;

    /// Whatever the process writes to the header, no more elements are fetched than the ring has.
    #[test]
    fn hostile_producer() -> Result {
        let mut ring = UserRing::new(8, 64)?;
        let buf = ring.buffer().clone();
        for value in [0, 1, 7, 8, 9, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            poke(&buf, PRODUCER, value);
            // The geometry in the shared header is ignored.
            poke(&buf, 0, value);
            poke(&buf, 4, value);
            assert!(ring.pending() <= ring.capacity());
            let mut element = [0u8; 64];
            let mut taken = 0;
            while ring.take(&mut element) {
                taken += 1;
            }
            assert!(taken <= 7);
            assert_eq!(ring.pending(), 0);
            assert!(peek(&buf, CONSUMER) < 8);
        }
        Ok(())
    }

    /// Elements are fetched in the order in which they were posted, across the end of the ring.
    #[test]
    fn in_order() -> Result {
        let mut ring = UserRing::new(4, 64)?;
        let buf = ring.buffer().clone();
        for n in 0..20u32 {
            let slot = n & 3;
            poke(&buf, DATA + 64 * slot as usize, n);
            poke(&buf, PRODUCER, (n + 1) & 3);
            let mut element = [0u8; 64];
            assert!(ring.fetch(&mut element));
            assert_eq!(element[..4], n.to_ne_bytes());
            assert!(!ring.fetch(&mut element));
            ring.release(n + 1);
            assert_eq!(peek(&buf, CONSUMER), (n + 1) & 3);
        }
        Ok(())
    }

    /// Pending elements are moved to a larger ring, and refused by one that is too small.
    #[test]
    fn pending_elements_move() -> Result {
        let old = UserRing::new(8, 64)?;
        for n in 0..5u32 {
            poke(old.buffer(), DATA + 64 * n as usize, 100 + n);
        }
        poke(old.buffer(), PRODUCER, 5);
        let snapshot = old.snapshot();
        assert!(!UserRing::new(4, 64)?.fill_from(&snapshot));
        assert!(!UserRing::new(16, 128)?.fill_from(&snapshot));
        let mut new = UserRing::new(16, 64)?;
        assert!(new.fill_from(&snapshot));
        new.skip(2);
        let mut element = [0u8; 64];
        for n in 2..5u32 {
            assert!(new.take(&mut element));
            assert_eq!(element[..4], (100 + n).to_ne_bytes());
        }
        assert!(!new.take(&mut element));
        Ok(())
    }

    /// Pages of a lazy ring that no process has accessed read as zeros, also as part of an element.
    #[test]
    fn lazy_pages() -> Result {
        let mut ring = UserRing::lazy(256, 256)?;
        let buf = ring.buffer().clone();
        assert!(buf.contiguous().is_none());
        let mut element = [7u8; 256];
        // The last element of the first page continues in the second one.
        let last = (PAGE_SIZE - DATA) / 256;
        poke(&buf, DATA + 256 * last, 11);
        poke(&buf, PRODUCER, 255);
        for _ in 0..last {
            assert!(ring.take(&mut element));
            assert_eq!(element, [0; 256]);
        }
        element = [7; 256];
        assert!(ring.take(&mut element));
        assert_eq!(element[..4], 11u32.to_ne_bytes());
        assert_eq!(element[4..], [0; 252]);
        poke(&buf, 2 * PAGE_SIZE, 12);
        poke(&buf, 2 * PAGE_SIZE - 4, 13);
        let beyond = (2 * PAGE_SIZE - DATA) / 256;
        for _ in last + 1..beyond {
            assert!(ring.take(&mut element));
            assert_eq!(element, [0; 256]);
        }
        assert!(ring.take(&mut element));
        let at = 2 * PAGE_SIZE - DATA - 256 * beyond;
        assert_eq!(element[at - 4..at], 13u32.to_ne_bytes());
        assert_eq!(element[at..at + 4], 12u32.to_ne_bytes());
        // Not even the end of the buffer is beyond what can be read.
        assert_eq!(peek(&buf, buf.len() - 2), 0);
        let other = UserRing::new(64, 256)?;
        assert!(!UserRing::lazy(64, 256)?.fill_from(&other.snapshot()));
        assert!(!UserRing::new(64, 256)?.fill_from(&ring.snapshot()));
        Ok(())
    }

    /// A completion ring does not overflow, whatever consumer index the process writes.
    #[test]
    fn hostile_consumer() -> Result {
        let mut ring = CompletionRing::new(2, 64)?;
        let buf = ring.buffer().clone();
        for n in 0..2 {
            assert!(ring.push(&[n; 48]));
        }
        assert!(!ring.push(&[9; 48]));
        for value in [1, 4, 5, 0x8000_0000, u32::MAX] {
            poke(&buf, CONSUMER, value);
            assert!(ring.len() <= 2);
            ring.push(&[7; 48]);
            let mut other = CompletionRing::new(6, 64)?;
            other.take_over(&mut ring)?.copy();
            assert_eq!(ring.len(), other.len());
            assert!(peek(&buf, PRODUCER) < 4);
        }
        Ok(())
    }

    /// A ring that takes over another one reserves slots for its elements and does not copy them
    /// yet, because the caller holds the lock of the queue.
    #[test]
    fn unread_elements_are_copied_later() -> Result {
        let mut old = CompletionRing::new(2, 64)?;
        assert!(old.push(&[5; 48]));
        let mut new = CompletionRing::new(6, 64)?;
        let buf = new.buffer().clone();
        let unread = new.take_over(&mut old)?;
        assert_eq!(peek(&buf, DATA), 0);
        assert!(new.push(&[6; 48]));
        assert_eq!(peek(&buf, DATA), 0);
        assert_eq!(peek(&buf, DATA + 64), u32::from_ne_bytes([6; 4]));
        unread.copy();
        assert_eq!(peek(&buf, DATA), u32::from_ne_bytes([5; 4]));
        assert_eq!(peek(&buf, PRODUCER), 2);
        Ok(())
    }

    #[test]
    fn sizes_refused() {
        for (slots, size) in [
            (0, 64),
            (3, 64),
            (4, 63),
            (4, 32),
            (1 << 30, 64),
            (1 << 31, 1 << 20),
        ] {
            assert!(UserRing::new(slots, size).is_err());
        }
        for (count, size) in [(2, 63), (2, 32), (1 << 29, 64), (u32::MAX, 64)] {
            assert!(CompletionRing::new(count, size).is_err());
        }
    }
}

#[kunit_tests(rxe_kapi_sync)]
mod sync {
    use super::*;

    #[test]
    fn table_keeps_objects() -> Result {
        let table = KBox::pin_init(RcuTable::<u32>::new(), GFP_KERNEL)?;
        table.insert_at(11, Arc::new(5, GFP_KERNEL)?)?;
        assert!(table.get(11).is_some_and(|value| *value == 5));
        assert!(table.insert_at(11, Arc::new(6, GFP_KERNEL)?) == Err(EBUSY));
        for index in [10, 12, 13] {
            table.insert_at(index, Arc::new(7, GFP_KERNEL)?)?;
        }
        assert_eq!(table.remove_if_sync(|value| *value == 5), 1);
        assert!(table.get(11).is_none());
        assert!(!table.remove(11));
        table.insert_at(11, Arc::new(8, GFP_KERNEL)?)?;
        let mut sum = 0;
        table.for_each(|_, value| {
            sum += *value;
            true
        });
        assert_eq!(sum, 7 * 3 + 8);
        Ok(())
    }

    #[test]
    fn table_inserts_at_the_lowest() -> Result {
        let table = KBox::pin_init(RcuTable::<u32>::new(), GFP_KERNEL)?;
        let object = Arc::new(9, GFP_KERNEL)?;
        for expected in 3..=5 {
            assert_eq!(table.insert_lowest(3..=5, object.clone())?, expected);
        }
        assert!(table.insert_lowest(3..=5, object.clone()) == Err(ENOSPC));
        assert!(table.remove(4));
        assert_eq!(table.insert_lowest(3..=5, object)?, 4);
        Ok(())
    }

    #[test]
    fn numbers_are_reserved_and_published() -> Result {
        let table = NumberTable::<u32>::new()?;
        let first = table.reserve(10..=13)?;
        let number = first.number();
        assert!((10..=13).contains(&number) && table.get(number).is_none());
        assert!(!table.remove(number));
        first.publish(Arc::new(5, GFP_KERNEL)?);
        assert!(table.get(number).is_some_and(|value| *value == 5));
        for _ in 0..3 {
            let other = table.reserve(10..=13)?;
            assert!(other.number() != number);
            other.keep();
        }
        assert!(table.reserve(10..=13).is_err_and(|e| e == ENOSPC));
        assert!(table.remove(number) && !table.remove(number));
        assert!(table.get(number).is_none());
        // A reservation that is dropped makes the number free.
        for _ in 0..2 {
            assert_eq!(table.reserve(10..=13)?.number(), number);
        }
        for kept in (10..=13).filter(|kept| *kept != number) {
            assert!(table.get(kept).is_none() && table.remove(kept));
        }
        Ok(())
    }

    #[test]
    fn number_table_grows_and_shrinks() -> Result {
        const COUNT: u32 = 5000;
        let table = NumberTable::<u32>::new()?;
        let mut numbers = KVec::with_capacity(COUNT as usize, GFP_KERNEL)?;
        for value in 0..COUNT {
            let reserved = table.reserve(1..=0xff_ffff)?;
            numbers.push(reserved.number(), GFP_KERNEL)?;
            reserved.publish(Arc::new(value, GFP_KERNEL)?);
        }
        for (value, number) in (0..COUNT).zip(numbers.iter()) {
            assert!(table.get(*number).is_some_and(|found| *found == value));
            if value % 2 == 0 {
                assert!(table.remove(*number) && table.get(*number).is_none());
            }
        }
        // The rest goes with the table.
        Ok(())
    }

    /// A value whose drop may sleep, which kernels that look for it report in other contexts.
    struct Sleeps(Arc<Mutex<u32>>);

    impl Drop for Sleeps {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }

    /// A table that is dropped where nothing may sleep is freed in process context, and
    /// [`flush_freed`] waits for that.
    #[test]
    fn freed_in_process_context() -> Result {
        let drops = Arc::pin_init(new_mutex!(0u32, "drops"), GFP_KERNEL)?;
        let table = NumberTable::<Sleeps>::new()?;
        let value = Arc::new(Sleeps(drops.clone()), GFP_KERNEL)?;
        table.reserve(1..=9)?.publish(value);
        let bh = disable_bh();
        drop(table);
        drop(bh);
        flush_freed();
        assert_eq!(*drops.lock(), 1);
        Ok(())
    }

    /// A work item that goes on after it has dropped a token.
    #[pin_data]
    struct GoesOn {
        #[pin]
        work: Work<GoesOn>,
        #[pin]
        token: Mutex<Option<ExitToken>>,
        ended: Atomic<bool>,
    }

    impl_has_work! {
        impl HasWork<Self> for GoesOn { self.work }
    }

    impl WorkItem for GoesOn {
        type Pointer = Arc<GoesOn>;

        fn run(this: Arc<GoesOn>) {
            drop(this.token.lock().take());
            fsleep(Delta::from_millis(50));
            this.ended.store(true, Relaxed);
        }
    }

    /// The last object that the exit of the module waits for may be dropped by a work item, of
    /// which some code remains to run. Dropping the work queue waits for that.
    #[test]
    fn queue_waits_for_what_follows_the_last_token() -> Result {
        let (token, exit) = exit_pair()?;
        let item = Arc::pin_init(
            pin_init!(GoesOn {
                work <- new_work!("GoesOn::work"),
                token <- new_mutex!(Some(token), "GoesOn::token"),
                ended: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;
        let queue = WorkQueue::new(c"rxe_rs_kunit", Kind::Local)?;
        assert!(queue.enqueue(item.clone()).is_ok());
        exit.wait();
        drop(queue);
        assert!(item.ended.load(Relaxed));
        Ok(())
    }

    #[test]
    fn ida_allocates_the_lowest() -> Result {
        let ida = KBox::pin_init(Ida::new(), GFP_KERNEL)?;
        assert_eq!((ida.alloc(1..=2)?, ida.alloc(1..=2)?), (1, 2));
        assert!(ida.alloc(1..=2) == Err(ENOSPC));
        ida.free(1);
        assert_eq!(ida.alloc(1..=2)?, 1);
        Ok(())
    }

    #[test]
    fn table_replaces() -> Result {
        let table = KBox::pin_init(RcuTable::<u32>::new(), GFP_KERNEL)?;
        assert!(table.replace(1, Arc::new(1, GFP_KERNEL)?).is_err());
        table.insert_at(1, Arc::new(1, GFP_KERNEL)?)?;
        table.replace(1, Arc::new(2, GFP_KERNEL)?)?;
        assert!(table
            .next(0)
            .is_some_and(|(index, value)| index == 1 && *value == 2));
        Ok(())
    }

    #[test]
    fn replaceable_is_replaced_and_removed() -> Result {
        let replaceable = Replaceable::new(Arc::new(1, GFP_KERNEL)?)?;
        assert!(replaceable.get().is_some_and(|value| *value == 1));
        {
            let rcu = rcu::read_lock();
            let used = replaceable.try_access(&rcu);
            assert!(used.is_some_and(|used| *used == 1 && !used.is_closing()));
        }
        let old = replaceable.replace_sync(Arc::new(2, GFP_KERNEL)?)?;
        assert!(old.is_some_and(|value| *value == 1));
        assert!(replaceable.get().is_some_and(|value| *value == 2));
        assert!(replaceable.take_sync().is_some_and(|value| *value == 2));
        assert!(replaceable.get().is_none() && replaceable.take_sync().is_none());
        Ok(())
    }

    #[test]
    fn users_are_refused_once_closed() {
        let users = Users::new();
        assert!(users.try_get().is_some_and(|user| !user.is_closing()));
        users.close();
        assert!(users.is_closed() && users.try_get().is_none());
        users.close();
    }

    #[test]
    fn rearmable_is_revoked_and_set() -> Result {
        let rearmable: Rearmable<u32> = new_rearmable!(Some(3), "kunit::rearmable")?;
        assert!(rearmable.try_access().is_some_and(|value| *value == 3));
        assert_eq!(rearmable.update(|value| value.take()), Some(3));
        assert!(rearmable.try_access().is_none());
        rearmable.update(|value| *value = Some(4));
        let _bh = disable_bh();
        let users = (rearmable.try_access(), rearmable.try_access());
        assert!(users.0.is_some_and(|value| *value == 4) && users.1.is_some());
        Ok(())
    }
}
