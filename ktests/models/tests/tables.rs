// SPDX-License-Identifier: GPL-2.0
//! `RcuTable`, `NumberTable` and `Global`: a lookup without a lock finds an initialised object,
//! which stays valid until the RCU read-side critical section ends, even if it is removed
//! meanwhile.

use rxe_models::lockfree::{Global, NumberTable, RcuTable};
use rxe_models::prelude::{EBUSY, ENOENT, ENOSPC};
use rxe_models::sync::{rcu, Arc};
use rxe_models::track::Tracked;
use rxe_models::{explore, spawn};

/// An object whose destructor is a write access.
struct Object(Tracked);

impl Object {
    fn new(value: u32) -> Arc<Self> {
        Arc::new(Self(Tracked::new(value)))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.0.write(u32::MAX);
    }
}

type Table = RcuTable<Object>;

fn table() -> Arc<Table> {
    use rxe_models::prelude::PinInit;
    Arc::new(Table::new().made())
}

#[test]
fn borrowed_entry_survives_removal() {
    explore(3, || {
        let table = table();
        table.insert_at(1, Object::new(1)).unwrap();
        let readers: Vec<_> = (0..2)
            .map(|n| {
                let table = table.clone();
                spawn(move || {
                    let rcu = rcu::read_lock();
                    let found = match n {
                        0 => table.borrow(1, &rcu),
                        _ => table.borrow_next(0, &rcu).map(|(_, value)| value),
                    };
                    assert!(found.is_none_or(|object| object.0.read() == 1));
                })
            })
            .collect();
        assert!(table.remove(1));
        assert!(table.get(1).is_none() && !table.remove(1));
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn reference_outlives_the_entry() {
    explore(3, || {
        let table = table();
        table.insert_at(1, Object::new(1)).unwrap();
        let reader = {
            let table = table.clone();
            spawn(move || table.get(1).map(|object| object.0.read()))
        };
        assert_eq!(table.remove_if_sync(|object| object.0.read() == 1), 1);
        let read = reader.join().unwrap();
        assert!(read.is_none_or(|value| value == 1));
    });
}

#[test]
fn iteration_keeps_references() {
    explore(3, || {
        let table = table();
        for index in 0..2 {
            table.insert_at(index, Object::new(index)).unwrap();
        }
        let dump = {
            let table = table.clone();
            spawn(move || {
                let mut seen = Vec::new();
                while let Some((index, object)) = table.next(seen.len() as u32) {
                    assert_eq!(object.0.read(), index);
                    seen.resize(index as usize + 1, ());
                }
                table.for_each(|index, object| object.0.read() == index);
            })
        };
        table.remove(0);
        table.remove(1);
        dump.join().unwrap();
        assert!(table.next(0).is_none());
    });
}

#[test]
fn bulk_removal_waits_for_readers() {
    explore(3, || {
        let table = table();
        for index in 0..3 {
            table.insert_at(index, Object::new(index)).unwrap();
        }
        let reader = {
            let table = table.clone();
            spawn(move || {
                let rcu = rcu::read_lock();
                // An entry that is not removed is always found.
                assert!(table.with(1, &rcu, |object| object.0.read()).is_some());
                let found = table.borrow(2, &rcu);
                assert!(found.is_none_or(|object| object.0.read() == 2));
            })
        };
        assert_eq!(table.remove_if_sync(|object| object.0.read() != 1), 2);
        reader.join().unwrap();
        let mut left = Vec::new();
        table.for_each(|index, object| {
            left.push((index, object.0.read()));
            true
        });
        assert_eq!(left, [(1, 1)]);
    });
}

#[test]
fn published_object_is_initialised() {
    explore(3, || {
        let table = table();
        let reader = {
            let table = table.clone();
            spawn(move || table.get(2).map(|object| object.0.read()))
        };
        assert_eq!(table.insert_lowest(2..=3, Object::new(7)).unwrap(), 2);
        assert_eq!(table.insert_at(2, Object::new(8)).err(), Some(EBUSY));
        assert!(matches!(reader.join().unwrap(), None | Some(7)));
        let full = table.insert_lowest(2..=2, Object::new(8));
        assert_eq!(full.err(), Some(ENOSPC));
    });
}

#[test]
fn concurrent_inserts_get_distinct_indices() {
    explore(3, || {
        let table = table();
        let other = {
            let table = table.clone();
            spawn(move || table.insert_lowest(1..=2, Object::new(5)).unwrap())
        };
        let mine = table.insert_lowest(1..=2, Object::new(6)).unwrap();
        let theirs = other.join().unwrap();
        assert_eq!(mine + theirs, 3);
        assert_eq!(table.get(mine).map(|object| object.0.read()), Some(6));
        assert_eq!(table.get(theirs).map(|object| object.0.read()), Some(5));
        let more = table.insert_lowest(1..=2, Object::new(7));
        assert_eq!(more.err(), Some(ENOSPC));
    });
}

#[test]
fn replacement_leaves_no_gap() {
    explore(3, || {
        let table = table();
        table.insert_at(1, Object::new(1)).unwrap();
        let reader = {
            let table = table.clone();
            spawn(move || {
                let rcu = rcu::read_lock();
                let first = table.borrow(1, &rcu).expect("never empty").0.read();
                let second = table.borrow(1, &rcu).expect("never empty").0.read();
                assert!(first <= second, "the old one came back");
            })
        };
        table.replace(1, Object::new(2)).unwrap();
        assert_eq!(table.replace(0, Object::new(3)).err(), Some(ENOENT));
        reader.join().unwrap();
        assert_eq!(table.get(1).map(|object| object.0.read()), Some(2));
    });
}

#[test]
fn numbered_object_is_initialised_and_survives_removal() {
    explore(3, || {
        let table = Arc::new(NumberTable::<Object>::new().unwrap());
        let reserved = table.reserve(1..=1).unwrap();
        let number = reserved.number();
        let reader = {
            let table = table.clone();
            spawn(move || {
                let rcu = rcu::read_lock();
                let found = table.borrow(1, &rcu);
                assert!(found.is_none_or(|object| object.0.read() == 7));
            })
        };
        assert!(table.get(number).is_none() && !table.remove(number));
        reserved.publish(Object::new(7));
        assert!(table.remove(number) && !table.remove(number));
        reader.join().unwrap();
        assert!(table.get(number).is_none());
    });
}

#[test]
fn number_is_removed_once() {
    explore(3, || {
        let table = Arc::new(NumberTable::<Object>::new().unwrap());
        let reserved = table.reserve(1..=2).unwrap();
        let number = reserved.number();
        let rest = table.reserve(1..=2).unwrap();
        assert_ne!(rest.number(), number);
        assert_eq!(table.reserve(1..=2).err(), Some(ENOSPC));
        let others = [(); 2].map(|()| {
            let table = table.clone();
            spawn(move || table.remove(number))
        });
        // What is reserved is not removed, and what is published only once.
        reserved.publish(Object::new(5));
        let mut removed = u32::from(table.remove(number));
        for other in others {
            removed += u32::from(other.join().unwrap());
        }
        assert_eq!(removed, 1);
        assert!(table.get(number).is_none());
    });
}

/// Removal of a number that is reserved does not free what the reservation uses.
#[test]
fn reservation_ends_beside_removal() {
    explore(3, || {
        let table = Arc::new(NumberTable::<Object>::new().unwrap());
        let reserved = table.reserve(1..=1).unwrap();
        let other = {
            let table = table.clone();
            spawn(move || table.remove(1))
        };
        drop(reserved);
        assert!(!other.join().unwrap());
        table.reserve(1..=1).unwrap().keep();
        assert!(table.get(1).is_none() && table.remove(1));
    });
}

#[test]
fn global_is_freed_after_its_readers() {
    explore(3, || {
        let place = Box::into_raw(Box::new(Global::new()));
        // SAFETY: Freed below, after the last use.
        let global: &'static Global<Object> = unsafe { &*place };
        let reader = spawn(move || {
            let rcu = rcu::read_lock();
            let read = global.with(&rcu, |object| object.0.read());
            assert!(read.is_none_or(|value| value == 1));
        });
        let filled = global.set(Object::new(1)).unwrap();
        assert_eq!(global.set(Object::new(2)).err(), Some(EBUSY));
        drop(filled);
        drop(global.set(Object::new(1)).unwrap());
        reader.join().unwrap();
        // SAFETY: From a box; the other thread has ended.
        drop(unsafe { Box::from_raw(place) });
    });
}
