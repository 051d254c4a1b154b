// SPDX-License-Identifier: GPL-2.0
//! Regions that `ibv_reg_mr` has registered.

use crate::{sys, Error, Segment, Storage};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// A reference to a registered region of an `rxe_rs` device. The `ibv_mr` belongs to somebody else,
/// who may deregister it at any time; the calls fail afterwards.
///
/// Calls for one region exclude each other: a call during another one fails with `EBUSY`.
#[derive(Clone, Copy, Debug)]
pub struct Region<'fd> {
    fd: BorrowedFd<'fd>,
    handle: u32,
    rkey: u32,
}

/// Which region a segment belongs to: descriptor of the context, handle and R_Key. Another region
/// can have all of them only if this one has been deregistered, so that it has no memory any more:
/// the descriptor is borrowed as long as there is a segment, and another context cannot get its
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Id<'fd> {
    fd: RawFd,
    borrowed: PhantomData<BorrowedFd<'fd>>,
    handle: u32,
    rkey: u32,
}

/// State of a region after a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// L_Key; 0 if the keys have been released because the last segment was removed.
    pub lkey: u32,
    /// R_Key; 0 in the same case.
    pub rkey: u32,
    /// Lowest address of a byte of any segment.
    pub start: u64,
    /// Length in bytes from `start` to the end of the last segment, holes included.
    pub length: u64,
    /// Lowest address of the run of adjacent segments that contains the segment just added.
    pub run_start: u64,
    /// Length of this run in bytes.
    pub run_length: u64,
    /// Sum of the lengths of all segments in bytes.
    pub bytes: u64,
    /// Number of segments, at most [`MAX_SEGMENTS`](crate::MAX_SEGMENTS).
    pub segments: u32,
    /// The last segment was removed and the keys were released. The region itself exists until it
    /// is deregistered.
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
    /// Refers to the region with `mr->handle` and `mr->rkey`; `cmd_fd` is `mr->context->cmd_fd`.
    pub fn new(cmd_fd: BorrowedFd<'fd>, handle: u32, rkey: u32) -> Self {
        Self {
            fd: cmd_fd,
            handle,
            rkey,
        }
    }

    fn id(&self) -> Id<'fd> {
        Id {
            fd: self.fd.as_raw_fd(),
            borrowed: PhantomData,
            handle: self.handle,
            rkey: self.rkey,
        }
    }

    /// Adds `storage` to the region as a segment at address `iova`, a multiple of the page size.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EEXIST` if it would overlap another segment, `ENOSPC`, `ENOMEM`, `EPERM`,
    /// `ENOENT`, `EBUSY`, `EPROTONOSUPPORT` if the device is not one of `rxe_rs`: see [`Error`].
    /// The storage is returned with the error.
    pub fn add(
        &self,
        storage: Storage,
        iova: u64,
    ) -> Result<(Segment<'fd>, State), (Error, Storage)> {
        let length = storage.len() as u64;
        // SAFETY: From now on the storage is accessed by volatile copies only.
        match unsafe { self.add_raw(storage.addr(), length, iova) } {
            Ok((handle, state)) => {
                let segment = Segment {
                    storage,
                    region: self.id(),
                    handle,
                    iova,
                };
                Ok((segment, state))
            }
            Err(error) => Err((error, storage)),
        }
    }

    /// As [`add`](Self::add), for `length` bytes at `addr` of this process. Returns the handle of
    /// the segment.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add); also `EFAULT` if the memory is not mapped.
    ///
    /// # Safety
    ///
    /// Until the removal of the segment, peers may read and write that memory at any time, as far
    /// as the rights of the region allow.
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

    /// Adds `length` bytes at `offset` of a DMA buffer to the region as a segment at address
    /// `iova`; all three are multiples of the page size. The segment holds a reference to the
    /// buffer, so `buffer` may be closed. Returns the handle of the segment.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add); also `EINVAL` if `buffer` is not a DMA buffer or a smaller one,
    /// and `EOPNOTSUPP` if the CPU cannot access it.
    ///
    /// # Safety
    ///
    /// Until the removal of the segment, peers may read and write these bytes at any time, as far
    /// as the rights of the region allow. That concerns all mappings of the buffer.
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

    /// Removes a segment. When this returns, no access to it is in progress.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the segment is not one of this region, or was added by another descriptor of the
    /// context, `EBUSY` also if it is the last one and memory windows are bound to the region. The
    /// segment is returned with the error.
    pub fn remove(&self, segment: Segment<'fd>) -> Result<(Storage, State), (Error, Segment<'fd>)> {
        // Each region numbers its segments from the same number on.
        if segment.region != self.id() {
            const ENOENT: i32 = 2;
            return Err((Error::from_errno(ENOENT), segment));
        }
        match self.remove_handle(segment.handle) {
            Ok(state) => Ok((segment.storage, state)),
            Err(error) => Err((error, segment)),
        }
    }

    /// As [`remove`](Self::remove), by handle; [`FIRST_SEGMENT`](crate::FIRST_SEGMENT) is that of
    /// the memory that was registered. A [`Segment`] with this handle remains usable as memory of
    /// this process.
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

    /// Removes all memory in the `length` bytes at address `start` of the region. The range may
    /// contain holes, and may cut segments at multiples of the page size. The remainder of a
    /// segment keeps its handle.
    ///
    /// # Errors
    ///
    /// As for [`remove`](Self::remove); `EINVAL` if there is no memory in the range, or if it cuts
    /// a page of a segment; `ENOSPC` if it would cut a segment in two and the region has the
    /// maximum number of segments.
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

    /// Ties the region permanently to a queue pair of the same context, whose `ibv_qp` has the
    /// handle `qp`. When the queue pair enters the error state, is reset or is destroyed, the keys
    /// of the region are revoked and its memory is unpinned; all calls of this type return `ENOENT`
    /// afterwards. The owner must still deregister the region.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a queue pair of another protection domain or in the error state, `EEXIST` if
    /// the region is already tied, `ENOENT` also if there is no such queue pair, `ENOMEM`, `EBUSY`.
    pub fn tie(&self, qp: u32) -> Result<(), Error> {
        let request = sys::Tie {
            rkey: self.rkey,
            ..sys::Tie::default()
        };
        sys::tie(self.fd.as_raw_fd(), self.handle, qp, &request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    /// Regions use the same handles for their segments: the memory of one that a peer can still
    /// access must not be returned because another one had a segment with that handle.
    #[test]
    fn segments_of_other_regions_are_refused() {
        // It accepts no calls at all.
        let (null, other) = (File::open("/dev/null"), File::open("/dev/null"));
        let (null, other) = (null.unwrap(), other.unwrap());
        let region = Region::new(null.as_fd(), 1, 0x100);
        let refused = |other: Region<'_>| {
            let segment = Segment {
                storage: Storage::new(1).unwrap(),
                region: region.id(),
                handle: 2,
                iova: 0,
            };
            other.remove(segment).unwrap_err().0.errno()
        };
        for other in [
            Region::new(null.as_fd(), 2, 0x100),
            Region::new(null.as_fd(), 1, 0x200),
            Region::new(other.as_fd(), 1, 0x100),
        ] {
            assert_eq!(refused(other), 2, "{other:?}");
        }
        assert_eq!(refused(region), 25, "it was not asked");
    }
}
