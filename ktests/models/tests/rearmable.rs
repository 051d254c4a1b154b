// SPDX-License-Identifier: GPL-2.0
//! `Rearmable`: a successful access finds a whole value, which no update changes meanwhile, and an
//! update is exclusive. The lock is a model of the kernel's, with the orders that it promises.

use rxe_models::lockfree::Rearmable;
use rxe_models::sync::{Arc, LockClassKey};
use rxe_models::track::Tracked;
use rxe_models::{explore, spawn};

fn rearmable(value: Option<Arc<Tracked>>) -> Arc<Rearmable<Arc<Tracked>>> {
    Arc::new(Rearmable::new(value, c"model", LockClassKey::one()).unwrap())
}

#[test]
fn revoked_value_is_exclusive() {
    explore(3, || {
        let place = rearmable(Some(Arc::new(Tracked::new(1))));
        let users: Vec<_> = (0..2)
            .map(|_| {
                let place = place.clone();
                spawn(move || place.try_access().map(|value| value.read()))
            })
            .collect();
        let taken = place.update(|value| value.take()).expect("set above");
        taken.write(9);
        assert!(place.try_access().is_none());
        for user in users {
            assert!(matches!(user.join().unwrap(), None | Some(1)));
        }
    });
}

#[test]
fn value_is_set_again() {
    explore(3, || {
        let place = rearmable(None);
        let user = {
            let place = place.clone();
            spawn(move || place.try_access().map(|value| value.read()))
        };
        place.update(|value| *value = Some(Arc::new(Tracked::new(1))));
        let replaced = place.update(|value| value.replace(Arc::new(Tracked::new(2))));
        replaced.expect("set above").write(9);
        assert!(matches!(user.join().unwrap(), None | Some(1 | 2)));
        assert_eq!(place.try_access().map(|value| value.read()), Some(2));
    });
}

#[test]
fn updates_are_exclusive() {
    explore(3, || {
        let place = rearmable(Some(Arc::new(Tracked::new(0))));
        let add = |place: &Rearmable<Arc<Tracked>>| {
            place.update(|value| {
                let value = value.as_ref().expect("never empty");
                value.write(value.read() + 1);
            });
        };
        let other = {
            let place = place.clone();
            spawn(move || add(&place))
        };
        add(&place);
        other.join().unwrap();
        // Nobody holds the lock any more.
        assert_eq!(place.try_access().map(|value| value.read()), Some(2));
    });
}

#[test]
fn failed_access_releases_the_lock() {
    explore(3, || {
        let place = rearmable(None);
        let user = {
            let place = place.clone();
            spawn(move || assert!(place.try_access().is_none()))
        };
        place.update(|value| assert!(value.is_none()));
        user.join().unwrap();
        place.update(|value| *value = Some(Arc::new(Tracked::new(3))));
        assert_eq!(place.try_access().map(|value| value.read()), Some(3));
    });
}
