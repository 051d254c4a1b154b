// SPDX-License-Identifier: GPL-2.0
//! Kernel memory named by kernel consumers.
//!
//! A device without a DMA device works on kernel virtual addresses, so "DMA addresses" are
//! addresses in the kernel's linear map.

use super::{AccessFailure, OutOfBounds, Run};
use crate::bindings;

/// All of the kernel's linear map.
///
/// # Invariants
///
/// Made only for a protection domain of a kernel consumer, which promises to name only memory it
/// owns for the duration of its requests.
pub struct DmaMemory(());

impl DmaMemory {
    /// # Safety
    ///
    /// The value is used for requests of a kernel consumer only.
    pub(crate) unsafe fn new() -> Self {
        // INVARIANT: By the caller's promise.
        Self(())
    }

    /// See [`Memory::read`](super::Memory::read).
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessFailure> {
        let len = dst.len();
        self.for_each_run(offset, len, |run| {
            run.copy_to(dst)?;
            Ok(())
        })
    }

    /// See [`Memory::write`](super::Memory::write).
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessFailure> {
        self.for_each_run(offset, src.len(), |run| {
            run.copy_from(src)?;
            Ok(())
        })
    }

    /// See [`Memory::for_each_run`](super::Memory::for_each_run).
    pub fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if len == 0 {
            return Ok(());
        }
        // A consumer may have given the peer a key for everything; whatever address comes, only
        // memory in the linear map is touched.
        // SAFETY: Only looks at page tables' metadata.
        if !unsafe { bindings::rxe_rs_linear_range(offset, len) } {
            return Err(OutOfBounds.into());
        }
        // INVARIANT: The range is mapped, and the consumer keeps it for the request.
        f(Run {
            addr: offset as usize as *mut u8,
            len,
            _memory: core::marker::PhantomData,
        })
    }
}
