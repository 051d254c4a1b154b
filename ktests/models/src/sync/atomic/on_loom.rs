// SPDX-License-Identifier: GPL-2.0
//! Atomics of loom. The kernel's can be created in constants, loom's only while a model runs, and
//! the creation must be ordered before each use. So a pool of them, all zero, is created before a
//! model starts its threads, and an atomic takes one of the pool at its first use: that holds the
//! difference from the initial value.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU32, AtomicUsize};

/// Maximum number of atomics of a type in a model.
const MOST: usize = 24;

thread_local! {
    /// Loom's threads are one thread of the host.
    static WORDS: RefCell<Vec<Rc<AtomicU32>>> = const { RefCell::new(Vec::new()) };
    static POINTERS: RefCell<Vec<Rc<AtomicUsize>>> = const { RefCell::new(Vec::new()) };
    /// Atomics in memory that is shared as bytes.
    static IN_MEMORY: RefCell<HashMap<usize, &'static super::Atomic<u32>>> = RefCell::new(HashMap::new());
}

/// Creates the pool. Must be called before a model starts threads.
pub(crate) fn start() {
    let words = (0..MOST).map(|_| Rc::new(AtomicU32::new(0))).collect();
    let pointers = (0..MOST).map(|_| Rc::new(AtomicUsize::new(0))).collect();
    WORDS.with(|pool| *pool.borrow_mut() = words);
    POINTERS.with(|pool| *pool.borrow_mut() = pointers);
}

/// Forgets the atomics at these addresses.
pub(crate) fn forget(from: usize, len: usize) {
    IN_MEMORY.with(|map| {
        map.borrow_mut()
            .retain(|at, _| !(from..from + len).contains(at))
    });
}

/// Types that can be atomic.
pub trait Repr: Copy + 'static {
    /// Loom's type.
    type Native;
    /// Loads.
    fn load(place: &Place<Self>, order: Ordering) -> Self;
    /// Stores.
    fn store(place: &Place<Self>, value: Self, order: Ordering);
    /// Exchanges.
    fn swap(place: &Place<Self>, value: Self, order: Ordering) -> Self;
    /// Exchanges if the value is the expected one.
    ///
    /// # Errors
    ///
    /// The current value.
    fn cmpxchg(place: &Place<Self>, old: Self, new: Self, order: Ordering) -> Result<Self, Self>;
}

/// The place of an atomic.
pub struct Place<T: Repr> {
    first: T,
    native: OnceCell<Rc<T::Native>>,
    freed: Cell<bool>,
}

impl<T: Repr> Place<T> {
    /// Returns an atomic with that initial value.
    pub const fn new(first: T) -> Self {
        Self {
            first,
            native: OnceCell::new(),
            freed: Cell::new(false),
        }
    }
}

impl<T: Repr> Drop for Place<T> {
    fn drop(&mut self) {
        self.freed.set(true);
    }
}

impl Place<u32> {
    /// Returns the atomic at an address.
    ///
    /// # Safety
    ///
    /// As for the kernel's `Atomic::from_ptr`.
    pub unsafe fn at<'a>(at: *mut u32) -> &'a super::Atomic<u32> {
        // SAFETY: By the safety requirements of this function.
        let first = unsafe { at.read() };
        // It lives at least as long as one run of a model.
        IN_MEMORY.with(|map| {
            *map.borrow_mut()
                .entry(at as usize)
                .or_insert_with(|| Box::leak(Box::new(super::Atomic::new(first))))
        })
    }

    /// Adds; returns the previous value.
    pub fn add(&self, value: u32, order: Ordering) -> u32 {
        self.value(self.native().fetch_add(value, order))
    }
}

macro_rules! repr {
    ([$($generic:ident)?] $type:ty, $native:ty, $pool:ident, $word:ty, $into:expr, $from:expr) => {
        impl<$($generic: 'static)?> Place<$type> {
            fn native(&self) -> &$native {
                assert!(!self.freed.get(), "an atomic is used after it was freed");
                self.native.get_or_init(|| {
                    $pool
                        .with(|pool| pool.borrow_mut().pop())
                        .expect("a model uses more than MOST atomics")
                })
            }

            fn word(&self, value: $type) -> $word {
                $into(value).wrapping_sub($into(self.first))
            }

            fn value(&self, word: $word) -> $type {
                $from(word.wrapping_add($into(self.first)))
            }
        }

        impl<$($generic: 'static)?> Repr for $type {
            type Native = $native;

            fn load(place: &Place<Self>, order: Ordering) -> Self {
                place.value(place.native().load(order))
            }

            fn store(place: &Place<Self>, value: Self, order: Ordering) {
                place.native().store(place.word(value), order);
            }

            fn swap(place: &Place<Self>, value: Self, order: Ordering) -> Self {
                place.value(place.native().swap(place.word(value), order))
            }

            fn cmpxchg(place: &Place<Self>, old: Self, new: Self, order: Ordering) -> Result<Self, Self> {
                let (old, new) = (place.word(old), place.word(new));
                match place.native().compare_exchange(old, new, order, Ordering::Relaxed) {
                    Ok(word) => Ok(place.value(word)),
                    Err(word) => Err(place.value(word)),
                }
            }
        }
    };
}

repr!([] u32, AtomicU32, WORDS, u32, |value: u32| value, |word: u32| word);
repr!([] bool, AtomicU32, WORDS, u32, u32::from, |word: u32| word != 0);
repr!([T] *mut T, AtomicUsize, POINTERS, usize, |value: *mut T| value as usize, |word: usize| word as *mut T);
