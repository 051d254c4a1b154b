// SPDX-License-Identifier: GPL-2.0
//! `Users` and `Replaceable`: a successful access finds the value, and a thread that has closed or
//! taken it has exclusive access afterwards.

use rxe_models::lockfree::{Replaceable, Users};
use rxe_models::sync::rcu;
use rxe_models::sync::Arc;
use rxe_models::track::Tracked;
use rxe_models::{explore, spawn};

#[test]
fn closing_waits_for_users() {
    explore(2, || {
        let users = Arc::new(Users::new());
        let value = Arc::new(Tracked::new(1));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (users, value) = (users.clone(), value.clone());
                spawn(move || {
                    if let Some(user) = users.try_get() {
                        assert_eq!(value.read(), 1);
                        let _ = user.is_closing();
                    }
                })
            })
            .collect();
        users.close();
        value.write(2);
        assert!(users.is_closed() && users.try_get().is_none());
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(users.try_get().is_none());
    });
}

#[test]
fn concurrent_closes() {
    explore(2, || {
        let users = Arc::new(Users::new());
        let other = users.clone();
        let thread = spawn(move || other.close());
        users.close();
        thread.join().unwrap();
        assert!(users.try_get().is_none());
    });
}

#[test]
fn replaced_value_is_exclusive() {
    explore(2, || {
        let place = Arc::new(Replaceable::new(Arc::new(Tracked::new(1))).unwrap());
        let user = {
            let place = place.clone();
            spawn(move || {
                let rcu = rcu::read_lock();
                let used = place.try_access(&rcu).expect("never empty");
                assert!(matches!(used.read(), 1 | 2));
            })
        };
        let old = place
            .replace_sync(Arc::new(Tracked::new(2)))
            .unwrap()
            .unwrap();
        assert_eq!(old.read(), 1);
        old.write(9);
        user.join().unwrap();
        assert_eq!(place.get().map(|value| value.read()), Some(2));
    });
}

#[test]
fn taken_value_is_exclusive() {
    explore(2, || {
        let place = Arc::new(Replaceable::new(Arc::new(Tracked::new(1))).unwrap());
        let user = {
            let place = place.clone();
            spawn(move || {
                let rcu = rcu::read_lock();
                let used = place.try_access(&rcu);
                assert!(used.is_none_or(|used| used.read() == 1));
            })
        };
        let other = {
            let place = place.clone();
            spawn(move || place.take_sync())
        };
        let mine = place.take_sync();
        let theirs = other.join().unwrap();
        // One of the two gets it.
        assert_eq!(u32::from(mine.is_some()) + u32::from(theirs.is_some()), 1);
        mine.or(theirs).unwrap().write(9);
        user.join().unwrap();
        assert!(place.get().is_none());
    });
}

#[test]
fn failed_access_is_ordered_after_the_close() {
    explore(3, || {
        let users = Arc::new(Users::new());
        let reason = Arc::new(Tracked::new(0));
        let closer = {
            let (users, reason) = (users.clone(), reason.clone());
            spawn(move || {
                reason.write(7);
                users.close();
            })
        };
        if users.try_get().is_none() {
            assert_eq!(reason.read(), 7);
        }
        closer.join().unwrap();
    });
}

#[test]
fn close_is_ordered_after_its_users() {
    explore(3, || {
        let users = Arc::new(Users::new());
        let work = Arc::new([Tracked::new(0), Tracked::new(0)]);
        let threads: Vec<_> = (0..2)
            .map(|n| {
                let (users, work) = (users.clone(), work.clone());
                spawn(move || {
                    if let Some(_user) = users.try_get() {
                        work[n].write(1);
                    }
                })
            })
            .collect();
        users.close();
        assert!(work.iter().all(|done| done.read() <= 1));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
