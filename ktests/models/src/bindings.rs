// SPDX-License-Identifier: GPL-2.0
//! The part of the bindings to the kernel and to the driver's C code that the shipped files need
//! here.
#![allow(non_camel_case_types, missing_docs)]

use crate::backend::Mutex;
use crate::prelude::EBUSY;
use crate::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use crate::sync::rcu;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

#[repr(C)]
pub struct callback_head {
    pub next: *mut callback_head,
    pub func: Option<unsafe extern "C" fn(*mut callback_head)>,
}

/// Calls `func` after a grace period.
///
/// # Safety
///
/// As in the kernel: `head` stays valid until then.
pub unsafe fn call_rcu(
    head: *mut callback_head,
    func: Option<unsafe extern "C" fn(*mut callback_head)>,
) {
    if let Some(func) = func {
        rcu::call(head, func);
    }
}

/// Waits for a grace period.
///
/// # Safety
///
/// As in the kernel: the context may sleep.
pub unsafe fn synchronize_rcu() {
    rcu::synchronize();
}

/// `struct rxe_queue_buf` of `rdma_user_rxe.h`.
#[repr(C)]
pub struct rxe_queue_buf {
    pub log2_elem_size: u32,
    pub index_mask: u32,
    pub pad_1: [u32; 30],
    pub producer_index: u32,
    pub pad_2: [u32; 31],
    pub consumer_index: u32,
    pub pad_3: [u32; 31],
    pub data: [u8; 0],
}

/// Number of entries of an array.
const ENTRIES: usize = 4;

/// The kernel's XArray: look-ups take no lock, changes take that of the array.
pub struct xarray(Box<Entries>);

struct Entries {
    lock: Mutex<()>,
    entries: [Atomic<*mut c_void>; ENTRIES],
}

impl xarray {
    fn change<R>(&self, index: u32, f: impl FnOnce(&Atomic<*mut c_void>) -> R) -> R {
        let _lock = self.0.lock.lock().unwrap();
        f(&self.0.entries[index as usize])
    }

    fn load(&self, index: usize) -> *mut c_void {
        self.0.entries[index].load(Acquire)
    }
}

/// # Safety
///
/// `xa` is valid for writes.
pub unsafe fn rxe_rs_table_init(xa: *mut xarray) {
    let made = xarray(Box::new(Entries {
        lock: Mutex::new(()),
        entries: [const { Atomic::new(null_mut()) }; ENTRIES],
    }));
    // SAFETY: By the safety requirements of this function.
    unsafe { xa.write(made) };
}

/// # Safety
///
/// `xa` is initialised.
pub unsafe fn rxe_rs_table_load(xa: *mut xarray, index: u32) -> *mut c_void {
    // SAFETY: By the safety requirements of this function.
    unsafe { &*xa }.load(index as usize)
}

/// # Safety
///
/// `xa` is initialised.
pub unsafe fn rxe_rs_table_next(xa: *mut xarray, index: &mut u32) -> *mut c_void {
    // SAFETY: By the safety requirements of this function.
    let xa = unsafe { &*xa };
    for at in *index as usize..ENTRIES {
        let entry = xa.load(at);
        if !entry.is_null() {
            *index = at as u32;
            return entry;
        }
    }
    null_mut()
}

/// # Safety
///
/// `xa` is initialised.
pub unsafe fn rxe_rs_table_insert(xa: *mut xarray, index: u32, entry: *mut c_void) -> i32 {
    // SAFETY: By the safety requirements of this function.
    unsafe { &*xa }.change(index, |place| {
        if !place.load(Acquire).is_null() {
            return EBUSY.to_errno();
        }
        place.store(entry, Release);
        0
    })
}

/// # Safety
///
/// `xa` is initialised.
pub unsafe fn rxe_rs_table_alloc(
    xa: *mut xarray,
    index: &mut u32,
    entry: *mut c_void,
    first: u32,
    last: u32,
) -> i32 {
    for at in first..=last {
        // SAFETY: By the safety requirements of this function.
        if unsafe { rxe_rs_table_insert(xa, at, entry) } == 0 {
            *index = at;
            return 0;
        }
    }
    EBUSY.to_errno()
}

/// # Safety
///
/// `xa` is initialised.
pub unsafe fn rxe_rs_table_replace(xa: *mut xarray, index: u32, entry: *mut c_void) -> *mut c_void {
    // SAFETY: By the safety requirements of this function.
    unsafe { &*xa }.change(index, |place| {
        let old = place.load(Acquire);
        if !old.is_null() {
            place.store(entry, Release);
        }
        old
    })
}

/// # Safety
///
/// `xa` is initialised.
pub unsafe fn rxe_rs_table_erase(xa: *mut xarray, index: u32) -> *mut c_void {
    // SAFETY: By the safety requirements of this function.
    unsafe { &*xa }.change(index, |place| {
        let old = place.load(Acquire);
        place.store(null_mut(), Release);
        old
    })
}

/// # Safety
///
/// `xa` is initialised and not used any more.
pub unsafe fn rxe_rs_table_destroy(xa: *mut xarray) {
    // SAFETY: By the safety requirements of this function.
    unsafe { xa.drop_in_place() };
}

/// The kernel's `struct lock_class_key`.
pub struct lock_class_key;

/// The kernel's `rwlock_t`: a number of readers, or `WRITER`. A writer that waits turns no reader
/// away, which the kernel's does: so readers meet more states of the value here.
pub struct rwlock_t(Atomic<u32>);

const WRITER: u32 = u32::MAX;

/// # Safety
///
/// `lock` is valid for writes.
pub unsafe fn rxe_rs_rwlock_init(
    lock: *mut rwlock_t,
    _name: *const c_char,
    _key: *mut lock_class_key,
) {
    // SAFETY: By the safety requirements of this function.
    unsafe { lock.write(rwlock_t(Atomic::new(0))) };
}

/// # Safety
///
/// `lock` is initialised.
pub unsafe fn rxe_rs_read_trylock(lock: *mut rwlock_t) -> bool {
    // SAFETY: By the safety requirements of this function.
    let state = unsafe { &(*lock).0 };
    let mut readers = state.load(Relaxed);
    while readers != WRITER {
        match state.cmpxchg(readers, readers + 1, Acquire) {
            Ok(_) => return true,
            Err(now) => readers = now,
        }
    }
    false
}

/// # Safety
///
/// `lock` is initialised and held for reading.
pub unsafe fn rxe_rs_read_unlock(lock: *mut rwlock_t) {
    // SAFETY: By the safety requirements of this function.
    let readers = unsafe { &(*lock).0 }.fetch_sub(1, Release);
    assert!(readers != 0 && readers != WRITER, "not held for reading");
}

/// # Safety
///
/// `lock` is initialised; this thread does not hold it.
pub unsafe fn rxe_rs_write_lock(lock: *mut rwlock_t) {
    // SAFETY: By the safety requirements of this function.
    let state = unsafe { &(*lock).0 };
    while state.cmpxchg(0, WRITER, Acquire).is_err() {
        crate::pause();
    }
}

/// # Safety
///
/// `lock` is initialised and held for writing.
pub unsafe fn rxe_rs_write_unlock(lock: *mut rwlock_t) {
    // SAFETY: By the safety requirements of this function.
    let was = unsafe { &(*lock).0 }.cmpxchg(WRITER, 0, Release);
    assert!(was.is_ok(), "not held for writing");
}

/// The head of the entries of a number table.
#[repr(C)]
pub struct rxe_rs_number {
    pub rcu: callback_head,
    pub number: u32,
}

/// A number table with few entries: look-ups take no lock, changes take that of the table.
pub struct rxe_rs_numbers {
    lock: Mutex<()>,
    entries: [Atomic<*mut rxe_rs_number>; ENTRIES],
    free: Option<unsafe extern "C" fn(*mut rxe_rs_number)>,
}

/// # Safety
///
/// `free` takes what [`rxe_rs_numbers_insert`] gets.
pub unsafe fn rxe_rs_numbers_alloc(
    free: Option<unsafe extern "C" fn(*mut rxe_rs_number)>,
) -> *mut rxe_rs_numbers {
    Box::into_raw(Box::new(rxe_rs_numbers {
        lock: Mutex::new(()),
        entries: [const { Atomic::new(null_mut()) }; ENTRIES],
        free,
    }))
}

/// # Safety
///
/// `numbers` is live and `entry` valid.
pub unsafe fn rxe_rs_numbers_insert(
    numbers: *mut rxe_rs_numbers,
    entry: *mut rxe_rs_number,
) -> i32 {
    // SAFETY: By the safety requirements of this function.
    let (numbers, number) = unsafe { (&*numbers, (*entry).number) };
    let _lock = numbers.lock.lock().unwrap();
    let place = &numbers.entries[number as usize];
    if !place.load(Acquire).is_null() {
        return EBUSY.to_errno();
    }
    place.store(entry, Release);
    0
}

/// # Safety
///
/// `numbers` is live.
pub unsafe fn rxe_rs_numbers_lookup(
    numbers: *mut rxe_rs_numbers,
    number: u32,
) -> *mut rxe_rs_number {
    // SAFETY: By the safety requirements of this function.
    unsafe { &*numbers }.entries[number as usize].load(Acquire)
}

/// # Safety
///
/// `numbers` is live, and `entry` valid.
pub unsafe fn rxe_rs_numbers_remove(
    numbers: *mut rxe_rs_numbers,
    entry: *mut rxe_rs_number,
) -> bool {
    // SAFETY: By the safety requirements of this function.
    let (numbers, number) = unsafe { (&*numbers, (*entry).number) };
    let _lock = numbers.lock.lock().unwrap();
    let place = &numbers.entries[number as usize];
    let there = place.load(Acquire) == entry;
    if there {
        place.store(null_mut(), Release);
    }
    there
}

/// # Safety
///
/// `numbers` is live, and not used any more.
pub unsafe fn rxe_rs_numbers_free(numbers: *mut rxe_rs_numbers) {
    // SAFETY: By the safety requirements of this function.
    let numbers = unsafe { Box::from_raw(numbers) };
    for place in &numbers.entries {
        let entry = place.load(Acquire);
        if let (false, Some(free)) = (entry.is_null(), numbers.free) {
            // SAFETY: By the contract of `rxe_rs_numbers_alloc`.
            unsafe { free(entry) };
        }
    }
}

/// # Safety
///
/// None.
pub unsafe fn rxe_rs_numbers_flush() {}
