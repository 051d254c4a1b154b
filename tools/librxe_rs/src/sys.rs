// SPDX-License-Identifier: GPL-2.0
//! System calls, with the structures of `uapi/rxe_rs.h` and of the kernel's
//! `rdma_user_ioctl_cmds.h`.

use crate::Error;
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::ptr::NonNull;

/// `RDMA_DRIVER_RXE`.
const DRIVER: u32 = 14;
/// `UVERBS_OBJECT_MR`.
const OBJECT_MR: u16 = 7;
/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
const VERBS_IOCTL: c_ulong = 0xc018_1b01;
/// `UVERBS_ATTR_F_MANDATORY`.
const MANDATORY: u16 = 1;

const ATTR_MR: u16 = 0x1000;
const ATTR_REQUEST: u16 = 0x1001;
const ATTR_STATE: u16 = 0x1002;
const ATTR_QP: u16 = 0x1003;
/// `RXE_RS_METHOD_MR_TIE`.
const METHOD_TIE: u16 = 0x1002;

/// `RXE_RS_ADD_DMABUF`.
pub(crate) const ADD_DMABUF: u32 = 1;
/// `RXE_RS_BY_HANDLE`.
pub(crate) const BY_HANDLE: u32 = 1;
/// `RXE_RS_BY_RANGE`.
pub(crate) const BY_RANGE: u32 = 2;
/// `RXE_RS_RELEASED`.
pub(crate) const RELEASED: u32 = 1;

/// `struct rxe_rs_mr_add`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Add {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) rkey: u32,
    pub(crate) flags: u32,
    pub(crate) fd: i32,
    pub(crate) reserved: u32,
}

/// `struct rxe_rs_mr_remove`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Remove {
    pub(crate) handle: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) rkey: u32,
    pub(crate) flags: u32,
}

/// `struct rxe_rs_mr_tie`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Tie {
    pub(crate) rkey: u32,
    pub(crate) flags: u32,
    pub(crate) reserved: u64,
}

/// `struct rxe_rs_mr_state`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RawState {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) handle: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) run_start: u64,
    pub(crate) run_length: u64,
    pub(crate) bytes: u64,
    pub(crate) segments: u32,
    pub(crate) flags: u32,
}

/// `struct ib_uverbs_attr`.
#[repr(C)]
struct Attr {
    id: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

/// `struct ib_uverbs_ioctl_hdr` and the attributes that follow it.
#[repr(C)]
struct Command {
    length: u16,
    object: u16,
    method: u16,
    attrs: u16,
    reserved: u64,
    driver: u32,
    reserved2: u32,
    attr: [Attr; 3],
}

const _: () = {
    assert!(size_of::<Add>() == 40 && size_of::<Remove>() == 32 && size_of::<Tie>() == 16);
    assert!(size_of::<RawState>() == 64 && size_of::<Command>() == 24 + 3 * 16);
};

/// A structure of a request that returns the state of the region.
pub(crate) trait Request {
    /// Number of the method.
    const METHOD: u16;
}

impl Request for Add {
    const METHOD: u16 = 0x1000;
}

impl Request for Remove {
    const METHOD: u16 = 0x1001;
}

extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn mmap(
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        at: c_long,
    ) -> *mut c_void;
    fn munmap(addr: *mut c_void, len: usize) -> c_int;
    fn sysconf(name: c_int) -> c_long;
}

/// Creates an attribute. `data` is the handle of an object, or the address of `len` bytes.
fn attr(id: u16, len: usize, data: u64) -> Attr {
    Attr {
        id,
        len: len as u16,
        flags: MANDATORY,
        reserved: 0,
        data,
    }
}

/// Calls a method of the region that the first attribute names, in the context `fd`.
///
/// # Safety
///
/// Each address in the attributes is valid, for the length in its attribute, for the accesses of
/// the method.
unsafe fn method(fd: c_int, method: u16, attr: [Attr; 3]) -> Result<(), Error> {
    let mut command = Command {
        length: size_of::<Command>() as u16,
        object: OBJECT_MR,
        method,
        attrs: 3,
        reserved: 0,
        driver: DRIVER,
        reserved2: 0,
        attr,
    };
    // SAFETY: `length` is the size of the command, and the addresses in its attributes are valid by
    // the safety requirements of this function.
    match unsafe { ioctl(fd, VERBS_IOCTL, &raw mut command) } {
        0 => Ok(()),
        _ => Err(Error::last()),
    }
}

/// Runs `request` on the region `mr` of the context `fd`; returns the new state of the region.
pub(crate) fn call<R: Request>(fd: c_int, mr: u32, request: &R) -> Result<RawState, Error> {
    let mut state = RawState::default();
    let attrs = [
        attr(ATTR_MR, 0, u64::from(mr)),
        attr(ATTR_REQUEST, size_of::<R>(), request as *const R as u64),
        attr(ATTR_STATE, size_of::<RawState>(), &raw mut state as u64),
    ];
    // SAFETY: The kernel reads the request and writes to `state`.
    unsafe { method(fd, R::METHOD, attrs)? };
    Ok(state)
}

/// Ties the region `mr` of the context `fd` to its queue pair `qp`.
pub(crate) fn tie(fd: c_int, mr: u32, qp: u32, request: &Tie) -> Result<(), Error> {
    let attrs = [
        attr(ATTR_MR, 0, u64::from(mr)),
        attr(ATTR_REQUEST, size_of::<Tie>(), request as *const Tie as u64),
        attr(ATTR_QP, 0, u64::from(qp)),
    ];
    // SAFETY: The kernel reads the request.
    unsafe { method(fd, METHOD_TIE, attrs) }
}

/// Returns the size of a page in bytes.
pub(crate) fn page_size() -> usize {
    const SC_PAGESIZE: c_int = 30;
    // SAFETY: No requirement.
    usize::try_from(unsafe { sysconf(SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps `len` bytes of zeroed anonymous memory.
pub(crate) fn map(len: usize) -> Result<NonNull<u8>, Error> {
    const READ_WRITE: c_int = 3;
    const PRIVATE_ANONYMOUS: c_int = 0x22;
    // SAFETY: A new mapping, which replaces nothing.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            READ_WRITE,
            PRIVATE_ANONYMOUS,
            -1,
            0,
        )
    };
    match NonNull::new(at.cast::<u8>()) {
        Some(at) if at.as_ptr() as usize != usize::MAX => Ok(at),
        _ => Err(Error::last()),
    }
}

/// Unmaps memory.
///
/// # Safety
///
/// The memory was mapped by [`map`] with the same length, and is no longer used.
pub(crate) unsafe fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: By the safety requirements of this function.
    unsafe { munmap(at.as_ptr().cast(), len) };
}
