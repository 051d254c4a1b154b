// SPDX-License-Identifier: GPL-2.0
//! Regions as `ibv_reg_mr` makes them.

use crate::{sys, Error, Segment, Storage};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A registered region of an `rxe_rs` device: its `ibv_mr` is somewhere else, and stays registered
/// for as long as its owner likes.
///
/// Calls for one region exclude each other: `EBUSY` for the one that came later.
#[derive(Clone, Copy, Debug)]
pub struct Region<'fd> {
    fd: BorrowedFd<'fd>,
    handle: u32,
    rkey: u32,
}

/// What a region is after a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// L_Key; 0 if the last segment is gone, and with it the keys.
    pub lkey: u32,
    /// R_Key; likewise.
    pub rkey: u32,
    /// Address of the first byte of all segments.
    pub start: u64,
    /// Bytes from there to behind the last one, holes included.
    pub length: u64,
    /// Address of the first byte that can be reached from what was added without a hole.
    pub run_start: u64,
    /// Bytes from there to the next hole.
    pub run_length: u64,
    /// Bytes of all segments.
    pub bytes: u64,
    /// Number of segments.
    pub segments: u32,
    /// The last segment is gone. The region itself is there until it is deregistered.
    pub released: bool,
}

impl From<sys::RawState> for State {
    fn from(raw: sys::RawState) -> Self {
        Self {
            lkey: raw.lkey,
            rkey: raw.rkey,
            start: raw.start,
            length: raw.length,
            run_start: raw.run_start,
            run_length: raw.run_length,
            bytes: raw.bytes,
            segments: raw.segments,
            released: raw.flags & sys::RELEASED != 0,
        }
    }
}

impl<'fd> Region<'fd> {
    /// The region of `mr->handle` and `mr->rkey`; `cmd_fd` is `mr->context->cmd_fd`.
    pub fn new(cmd_fd: BorrowedFd<'fd>, handle: u32, rkey: u32) -> Self {
        Self {
            fd: cmd_fd,
            handle,
            rkey,
        }
    }

    /// Puts `storage` behind the region's keys at address `iova`, a multiple of the page size.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EEXIST` if it would overlap, `ENOSPC`, `ENOMEM`, `ENOENT`, `EBUSY`,
    /// `EPROTONOSUPPORT` if the device is not of `rxe_rs`: see [`Error`]. The storage comes back.
    pub fn add(&self, storage: Storage, iova: u64) -> Result<(Segment, State), (Error, Storage)> {
        let length = storage.len() as u64;
        // SAFETY: The storage is reached by copies only from now on.
        match unsafe { self.add_raw(storage.addr(), length, iova) } {
            Ok((handle, state)) => {
                let segment = Segment {
                    storage,
                    handle,
                    iova,
                };
                Ok((segment, state))
            }
            Err(error) => Err((error, storage)),
        }
    }

    /// As [`add`](Self::add), for `length` bytes at `addr` of this process. Returns the handle.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add); also `EFAULT` if the memory is not mapped.
    ///
    /// # Safety
    ///
    /// Until it is removed peers may read and write that memory at any time, as far as the
    /// region's rights go.
    pub unsafe fn add_raw(&self, addr: u64, length: u64, iova: u64) -> Result<(u64, State), Error> {
        let request = sys::Add {
            addr,
            length,
            iova,
            rkey: self.rkey,
            ..sys::Add::default()
        };
        let state = sys::call(self.fd.as_raw_fd(), self.handle, &request)?;
        Ok((state.handle, state.into()))
    }

    /// Puts `length` bytes at `offset` of a DMA buffer behind the region's keys at address `iova`;
    /// all three are multiples of the page size. The exporter keeps the buffer until they are
    /// removed, and `buffer` may be closed. Returns the handle.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add); also `EINVAL` if it is no DMA buffer, or a smaller one, and
    /// `EOPNOTSUPP` if the CPU cannot reach it.
    ///
    /// # Safety
    ///
    /// Until they are removed peers may read and write these bytes at any time, as far as the
    /// region's rights go, wherever the buffer is mapped.
    pub unsafe fn add_dmabuf(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
    ) -> Result<(u64, State), Error> {
        let request = sys::Add {
            addr: offset,
            length,
            iova,
            rkey: self.rkey,
            flags: sys::ADD_DMABUF,
            fd: buffer.as_raw_fd(),
            ..sys::Add::default()
        };
        let state = sys::call(self.fd.as_raw_fd(), self.handle, &request)?;
        Ok((state.handle, state.into()))
    }

    /// Takes a segment away. When this returns no access to it is under way.
    ///
    /// # Errors
    ///
    /// The segment comes back with the reason: `ENOENT` if it is not of this region, `EBUSY` also
    /// if it is the last one and memory windows are bound to the region.
    pub fn remove(&self, segment: Segment) -> Result<(Storage, State), (Error, Segment)> {
        match self.remove_handle(segment.handle) {
            Ok(state) => Ok((segment.storage, state)),
            Err(error) => Err((error, segment)),
        }
    }

    /// As [`remove`](Self::remove), by handle; [`FIRST_SEGMENT`](crate::FIRST_SEGMENT) is what was
    /// registered. A [`Segment`] that is removed so may still be held: it is memory like any other.
    ///
    /// # Errors
    ///
    /// As for [`remove`](Self::remove).
    pub fn remove_handle(&self, handle: u64) -> Result<State, Error> {
        let request = sys::Remove {
            handle,
            rkey: self.rkey,
            flags: sys::BY_HANDLE,
            ..sys::Remove::default()
        };
        sys::call(self.fd.as_raw_fd(), self.handle, &request).map(State::from)
    }

    /// Removes all memory in the `length` bytes at `start` of the region, which may hold holes and
    /// cut segments at multiples of the page size. What is left of a segment keeps its handle.
    ///
    /// # Errors
    ///
    /// As for [`remove`](Self::remove); `EINVAL` if there is no memory in the range, or if it cuts
    /// a page of a segment; `ENOSPC` if it would cut one in two and there are as many as there may
    /// be.
    pub fn remove_range(&self, start: u64, length: u64) -> Result<State, Error> {
        let request = sys::Remove {
            start,
            length,
            rkey: self.rkey,
            flags: sys::BY_RANGE,
            ..sys::Remove::default()
        };
        sys::call(self.fd.as_raw_fd(), self.handle, &request).map(State::from)
    }

    /// Ties the region for good to a queue pair of the same context, whose `ibv_qp` has the handle
    /// `qp`: it ends when that fails, is reset or is destroyed. Its keys grant nothing then, its
    /// memory is unpinned, and all calls here are `ENOENT`. It is still to be deregistered.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a queue pair of another protection domain or in the error state, `EEXIST` if
    /// the region is tied already, `ENOENT` also for no such queue pair, `ENOMEM`, `EBUSY`.
    pub fn tie(&self, qp: u32) -> Result<(), Error> {
        let request = sys::Tie {
            rkey: self.rkey,
            ..sys::Tie::default()
        };
        sys::tie(self.fd.as_raw_fd(), self.handle, qp, &request)
    }
}
