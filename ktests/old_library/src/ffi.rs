// SPDX-License-Identifier: GPL-2.0
//! The functions of `include/rxe_rs_verbs.h`.

use crate::sys::{self, RawState, Request};
use std::ffi::{c_int, c_void};

/// Returns 0, or a value of `errno`; the answer only if it is wanted.
///
/// # Safety
///
/// `state` is null or valid for writes.
unsafe fn run<R: Request>(fd: c_int, mr: u32, request: &R, state: *mut RawState) -> c_int {
    match sys::call(fd, mr, request) {
        Ok(answer) => {
            if !state.is_null() {
                // SAFETY: By the caller's promise.
                unsafe { state.write(answer) };
            }
            0
        }
        Err(error) => error.errno(),
    }
}

/// See the header.
///
/// # Safety
///
/// `state` is null or valid for writes. Until they are removed peers may read and write the
/// `length` bytes at `addr` at any time, as far as the region's rights go.
#[no_mangle]
pub unsafe extern "C" fn rxe_rs_add(
    cmd_fd: c_int,
    mr_handle: u32,
    rkey: u32,
    addr: *mut c_void,
    length: u64,
    iova: u64,
    state: *mut RawState,
) -> c_int {
    let request = sys::Add {
        addr: addr as u64,
        length,
        iova,
        rkey,
        flags: 0,
    };
    // SAFETY: By the caller's promise.
    unsafe { run(cmd_fd, mr_handle, &request, state) }
}

/// See the header.
///
/// # Safety
///
/// `state` is null or valid for writes.
#[no_mangle]
pub unsafe extern "C" fn rxe_rs_remove(
    cmd_fd: c_int,
    mr_handle: u32,
    rkey: u32,
    handle: u64,
    state: *mut RawState,
) -> c_int {
    let request = sys::Remove {
        handle,
        rkey,
        flags: sys::BY_HANDLE,
        ..sys::Remove::default()
    };
    // SAFETY: By the caller's promise.
    unsafe { run(cmd_fd, mr_handle, &request, state) }
}

/// See the header.
///
/// # Safety
///
/// `state` is null or valid for writes.
#[no_mangle]
pub unsafe extern "C" fn rxe_rs_remove_range(
    cmd_fd: c_int,
    mr_handle: u32,
    rkey: u32,
    start: u64,
    length: u64,
    state: *mut RawState,
) -> c_int {
    let request = sys::Remove {
        start,
        length,
        rkey,
        flags: sys::BY_RANGE,
        ..sys::Remove::default()
    };
    // SAFETY: By the caller's promise.
    unsafe { run(cmd_fd, mr_handle, &request, state) }
}
