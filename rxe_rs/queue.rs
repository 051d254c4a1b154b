// SPDX-License-Identifier: GPL-2.0
//! Private copies of work queues: WQEs are copied out of the shared rings once, with their
//! scatter/gather lists or inline data, so that only the driver can change them.

use crate::limits::MAX_SGE;
use kernel::prelude::*;
use rxe_kapi::rdma::udata::Mapping;
use rxe_proto::{
    engine::{
        backend::LocalFault,
        wr::SendWqe, //
    },
    wire::bytes::put, //
};

/// Bytes of a scatter/gather entry in a ring (`struct rxe_sge`).
pub(crate) const SGE_BYTES: usize = 16;

/// One scatter/gather entry.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    /// Start in the address space of the region.
    pub(crate) addr: u64,
    /// Length of the buffer in bytes, up to 2^32 - 1.
    pub(crate) length: u32,
    /// Key of the region.
    pub(crate) lkey: u32,
}

impl Sge {
    /// Reads one from the bytes of a ring; missing bytes count as zero.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let word = |from: usize| -> u32 {
            let part = bytes.get(from..).and_then(|b| b.first_chunk::<4>());
            part.map_or(0, |b| u32::from_ne_bytes(*b))
        };
        let addr = bytes
            .first_chunk::<8>()
            .map_or(0, |b| u64::from_ne_bytes(*b));
        Self {
            addr,
            length: word(8),
            lkey: word(12),
        }
    }

    /// Converts it to its form in a ring.
    pub(crate) fn to_bytes(self) -> [u8; SGE_BYTES] {
        let mut bytes = [0; SGE_BYTES];
        let parts = [
            &self.addr.to_ne_bytes()[..],
            &self.length.to_ne_bytes()[..],
            &self.lkey.to_ne_bytes()[..],
        ];
        let source = parts.iter().flat_map(|p| p.iter());
        for (to, from) in bytes.iter_mut().zip(source) {
            *to = *from;
        }
        bytes
    }
}

/// `struct mminfo`: the mmap offset and size of a ring.
///
/// # Errors
///
/// `EINVAL` for a mapping beyond 4 GiB.
pub(crate) fn map_info(map: &Mapping) -> Result<[u8; 16]> {
    let mut info = [0u8; 16];
    let size = u32::try_from(map.len())?;
    let fields = [&map.offset().to_ne_bytes()[..], &size.to_ne_bytes()[..]];
    for (to, from) in info.iter_mut().zip(fields.into_iter().flatten()) {
        *to = *from;
    }
    Ok(info)
}

/// Returns the entries of a scatter/gather list in the bytes of a ring.
pub(crate) fn sges_of(list: &[u8]) -> impl Iterator<Item = Sge> + '_ {
    list.chunks_exact(SGE_BYTES).map(Sge::from_bytes)
}

/// A contiguous part of one scatter/gather entry, and the bytes of the access that it holds.
pub(crate) struct Span {
    /// Key of the region.
    pub(crate) lkey: u32,
    /// Start in the address space of the region.
    pub(crate) addr: u64,
    /// First byte of the part, counted from the start of the access.
    pub(crate) from: usize,
    /// Length of the part in bytes.
    pub(crate) len: usize,
}

/// A scatter/gather list is too short for an access, or its addresses wrap.
pub(crate) struct ShortList;

impl From<ShortList> for LocalFault {
    fn from(_: ShortList) -> Self {
        Self::Refused
    }
}

/// Splits the access to `len` bytes at `offset` of a scatter/gather list into spans.
///
/// # Errors
///
/// [`ShortList`], or what `f` returns.
pub(crate) fn for_each_span<E: From<ShortList>>(
    sges: impl Iterator<Item = Sge>,
    offset: u32,
    len: usize,
    mut f: impl FnMut(Span) -> Result<(), E>,
) -> Result<(), E> {
    let mut skip = u64::from(offset);
    let mut done = 0usize;
    for sge in sges {
        if done >= len {
            break;
        }
        let length = u64::from(sge.length);
        if skip >= length {
            skip = skip.wrapping_sub(length);
            continue;
        }
        // `skip` is below `length` and `done` below `len`.
        let left = usize::try_from(length.wrapping_sub(skip)).map_err(|_| ShortList)?;
        let take = left.min(len.wrapping_sub(done));
        f(Span {
            lkey: sge.lkey,
            addr: sge.addr.checked_add(skip).ok_or(ShortList)?,
            from: done,
            len: take,
        })?;
        done = done.wrapping_add(take);
        skip = 0;
    }
    if done < len {
        return Err(ShortList.into());
    }
    Ok(())
}

/// Send WQEs in kernel memory; indices wrap around at `u32`.
///
/// It holds a part of what the consumer has posted: the queue works with a single slot, and more of
/// them only let more requests be in flight.
pub(crate) struct SendStore {
    wqes: KVVec<SendWqe>,
    /// Scatter/gather list or inline data of each slot, `wqe_data_len` bytes.
    data: KVVec<u8>,
    wqe_data_len: usize,
    /// Number of slots minus 1.
    mask: u32,
    /// Indices of the oldest WQE, and of the next one to be added.
    retired: u32,
    produced: u32,
}

impl SendStore {
    /// Allocates a queue of `slots` WQEs, a power of two, with `wqe_data_len` bytes of
    /// scatter/gather list or inline data each.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `slots` is no power of two, `ENOMEM`.
    pub(crate) fn new(slots: u32, wqe_data_len: usize) -> Result<Self> {
        if !slots.is_power_of_two() {
            return Err(EINVAL);
        }
        let count = usize::try_from(slots)?;
        let bytes = count.checked_mul(wqe_data_len).ok_or(EINVAL)?;
        Ok(Self {
            wqes: KVVec::from_elem(
                SendWqe::new(rxe_proto::engine::wr::SendWr::EMPTY),
                count,
                GFP_KERNEL_ACCOUNT,
            )?,
            data: KVVec::from_elem(0, bytes, GFP_KERNEL_ACCOUNT)?,
            wqe_data_len,
            mask: slots.wrapping_sub(1),
            retired: 0,
            produced: 0,
        })
    }

    /// Returns the bytes of scatter/gather list or inline data per WQE.
    pub(crate) fn wqe_data_len(&self) -> usize {
        self.wqe_data_len
    }

    /// Returns the index after the newest WQE.
    pub(crate) fn produced(&self) -> u32 {
        self.produced
    }

    /// Returns the index of the oldest WQE.
    pub(crate) fn retired(&self) -> u32 {
        self.retired
    }

    /// Returns the number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.mask.wrapping_add(1)
    }

    /// Returns the number of WQEs that fit.
    pub(crate) fn free_slots(&self) -> u32 {
        self.slots()
            .wrapping_sub(self.produced.wrapping_sub(self.retired))
    }

    /// Replaces the queue by `larger`, which must have more slots, and leaves the old one there.
    /// The WQEs keep their indices. Does nothing if `larger` is not larger.
    pub(crate) fn replace(&mut self, larger: &mut Self) {
        if larger.slots() <= self.slots() || larger.wqe_data_len != self.wqe_data_len {
            return;
        }
        (larger.retired, larger.produced) = (self.retired, self.retired);
        let mut index = self.retired;
        while let Some((wqe, data)) = self.wqe_with_data(index) {
            if !larger.push(*wqe, data) {
                return;
            }
            index = index.wrapping_add(1);
        }
        core::mem::swap(self, larger);
    }

    fn position(&self, index: u32) -> Option<usize> {
        let age = index.wrapping_sub(self.retired);
        if age >= self.produced.wrapping_sub(self.retired) {
            return None;
        }
        usize::try_from(index & self.mask).ok()
    }

    /// Returns the WQE at `index`, if it is posted and not retired.
    pub(crate) fn wqe(&mut self, index: u32) -> Option<&mut SendWqe> {
        let at = self.position(index)?;
        self.wqes.get_mut(at)
    }

    /// Returns the WQE at `index` with its data, if it is posted and not retired.
    pub(crate) fn wqe_with_data(&self, index: u32) -> Option<(&SendWqe, &[u8])> {
        let at = self.position(index)?;
        let start = at.checked_mul(self.wqe_data_len)?;
        let data = self
            .data
            .get(start..start.checked_add(self.wqe_data_len)?)?;
        Some((self.wqes.get(at)?, data))
    }

    /// Appends a WQE; returns false if the queue is full or `data` is too long.
    pub(crate) fn push(&mut self, wqe: SendWqe, data: &[u8]) -> bool {
        if self.free_slots() == 0 || data.len() > self.wqe_data_len {
            return false;
        }
        let Ok(at) = usize::try_from(self.produced & self.mask) else {
            return false;
        };
        let start = at.wrapping_mul(self.wqe_data_len);
        let (Some(to_data), Some(to)) = (self.data.get_mut(start..), self.wqes.get_mut(at)) else {
            return false;
        };
        if put(to_data, data).is_none() {
            return false;
        }
        *to = wqe;
        self.produced = self.produced.wrapping_add(1);
        true
    }

    /// Retires everything before `index`.
    pub(crate) fn retire(&mut self, index: u32) {
        if index.wrapping_sub(self.retired) <= self.produced.wrapping_sub(self.retired) {
            self.retired = index;
        }
    }
}

/// Receive requests posted by a kernel consumer.
pub(crate) struct RecvStore {
    /// `wr_id`, and number of scatter/gather entries, of each slot.
    ids: KVVec<u64>,
    counts: KVVec<u8>,
    /// The entries, `max_sge` for each slot.
    sges: KVVec<Sge>,
    max_sge: usize,
    /// Number of slots minus 1.
    mask: u32,
    /// Indices of the oldest request, and of the next one to be added.
    head: u32,
    tail: u32,
}

impl RecvStore {
    /// Allocates a queue of `slots` WQEs, a power of two, with `max_sge` entries each.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `slots` is no power of two or `max_sge` above [`MAX_SGE`], `ENOMEM`.
    pub(crate) fn new(slots: u32, max_sge: usize) -> Result<Self> {
        if !slots.is_power_of_two() || max_sge > MAX_SGE {
            return Err(EINVAL);
        }
        let count = usize::try_from(slots)?;
        let entries = count.checked_mul(max_sge).ok_or(EINVAL)?;
        Ok(Self {
            ids: KVVec::from_elem(0, count, GFP_KERNEL_ACCOUNT)?,
            counts: KVVec::from_elem(0, count, GFP_KERNEL_ACCOUNT)?,
            sges: KVVec::from_elem(Sge::default(), entries, GFP_KERNEL_ACCOUNT)?,
            max_sge,
            mask: slots.wrapping_sub(1),
            head: 0,
            tail: 0,
        })
    }

    /// Appends a WQE.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EINVAL` if there are too many entries.
    pub(crate) fn push(&mut self, wr_id: u64, sges: impl Iterator<Item = Sge>) -> Result {
        if self.tail.wrapping_sub(self.head) >= self.mask {
            return Err(ENOMEM);
        }
        let at = usize::try_from(self.tail & self.mask)?;
        let start = at.wrapping_mul(self.max_sge);
        let entries = self
            .sges
            .get_mut(start..start.wrapping_add(self.max_sge))
            .ok_or(EINVAL)?;
        let mut count = 0u8;
        let mut slots = entries.iter_mut();
        for sge in sges {
            *slots.next().ok_or(EINVAL)? = sge;
            count = count.wrapping_add(1);
        }
        *self.ids.get_mut(at).ok_or(EINVAL)? = wr_id;
        *self.counts.get_mut(at).ok_or(EINVAL)? = count;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Takes the oldest WQE; its scatter list is copied to `to`.
    pub(crate) fn pop(&mut self, to: &mut RecvList) -> Option<u64> {
        if self.head == self.tail {
            return None;
        }
        let at = usize::try_from(self.head & self.mask).ok()?;
        self.head = self.head.wrapping_add(1);
        let start = at.wrapping_mul(self.max_sge);
        let count = usize::from(*self.counts.get(at)?);
        to.set(self.sges.get(start..)?.iter().take(count).copied());
        self.ids.get(at).copied()
    }

    /// Returns the number of WQEs posted and not taken.
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns the number of WQEs that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.mask
    }

    /// Moves all WQEs to `to`, in order.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push): what was not moved stays.
    pub(crate) fn move_to(&mut self, to: &mut RecvStore) -> Result {
        while self.head != self.tail {
            let at = usize::try_from(self.head & self.mask)?;
            let start = at.wrapping_mul(self.max_sge);
            let wr_id = *self.ids.get(at).ok_or(EINVAL)?;
            let count = usize::from(*self.counts.get(at).ok_or(EINVAL)?);
            let list = self.sges.get(start..).ok_or(EINVAL)?;
            to.push(wr_id, list.iter().take(count).copied())?;
            self.head = self.head.wrapping_add(1);
        }
        Ok(())
    }

    /// Discards everything posted.
    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// The scatter list of the receive WQE in use.
pub(crate) struct RecvList {
    sges: KVec<Sge>,
    /// Entries in use.
    count: usize,
}

impl RecvList {
    /// Creates an empty list with room for `max_sge` entries.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(max_sge: usize) -> Result<Self> {
        Ok(Self {
            sges: KVec::from_elem(Sge::default(), max_sge, GFP_KERNEL_ACCOUNT)?,
            count: 0,
        })
    }

    /// Replaces the list; entries for which there is no room are ignored.
    pub(crate) fn set(&mut self, sges: impl Iterator<Item = Sge>) {
        self.count = 0;
        for (to, sge) in self.sges.iter_mut().zip(sges) {
            *to = sge;
            self.count = self.count.wrapping_add(1);
        }
    }

    /// Returns the entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Sge> + '_ {
        self.sges.iter().take(self.count).copied()
    }

    /// Returns the sum of their lengths; `None` if it exceeds `u32`.
    pub(crate) fn length(&self) -> Option<u32> {
        self.iter()
            .try_fold(0u32, |sum, sge| sum.checked_add(sge.length))
    }
}
