// SPDX-License-Identifier: GPL-2.0
//! The functions of `include/rxe_rs_verbs.h`.

use crate::sys::{self, RawState, Request};
use std::ffi::{c_int, c_void};

// Programs that were built with the first version of the header have so many bytes for it.
const _: () = assert!(size_of::<RawState>() == 64);

/// Runs a request. Returns 0 or a value of `errno`, and writes the new state of the region to
/// `state` unless that is null.
///
/// # Safety
///
/// `state` is null or valid for writes.
unsafe fn run<R: Request>(fd: c_int, mr: u32, request: &R, state: *mut RawState) -> c_int {
    match sys::call(fd, mr, request) {
        Ok(result) => {
            if !state.is_null() {
                // SAFETY: By the safety requirements of this function.
                unsafe { state.write(result) };
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
/// `state` is null or valid for writes. Until their removal, peers may read and write the `length`
/// bytes at `addr` at any time, as far as the rights of the region allow.
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
        ..sys::Add::default()
    };
    // SAFETY: By the safety requirements of this function.
    unsafe { run(cmd_fd, mr_handle, &request, state) }
}

/// See the header.
///
/// # Safety
///
/// `state` is null or valid for writes. Until their removal, peers may read and write the `length`
/// bytes at `offset` of the buffer at any time, as far as the rights of the region allow.
#[no_mangle]
#[allow(clippy::too_many_arguments)] // As declared in the header.
pub unsafe extern "C" fn rxe_rs_add_dmabuf(
    cmd_fd: c_int,
    mr_handle: u32,
    rkey: u32,
    dmabuf_fd: c_int,
    offset: u64,
    length: u64,
    iova: u64,
    state: *mut RawState,
) -> c_int {
    let request = sys::Add {
        addr: offset,
        length,
        iova,
        rkey,
        flags: sys::ADD_DMABUF,
        fd: dmabuf_fd,
        ..sys::Add::default()
    };
    // SAFETY: By the safety requirements of this function.
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
    // SAFETY: By the safety requirements of this function.
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
    // SAFETY: By the safety requirements of this function.
    unsafe { run(cmd_fd, mr_handle, &request, state) }
}

/// See the header.
#[no_mangle]
pub extern "C" fn rxe_rs_tie(cmd_fd: c_int, mr_handle: u32, rkey: u32, qp_handle: u32) -> c_int {
    let request = sys::Tie {
        rkey,
        ..sys::Tie::default()
    };
    match sys::tie(cmd_fd, mr_handle, qp_handle, &request) {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}
