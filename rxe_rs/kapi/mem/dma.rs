// SPDX-License-Identifier: GPL-2.0
//! Kernel memory that kernel consumers address directly.
//!
//! A device without a DMA device works on kernel virtual addresses, so "DMA addresses" are
//! addresses in the kernel's linear map.

use super::{
    ExtentHint,
    OutOfBounds,
    Run,
    Runs, //
};
use crate::bindings;

/// All of the kernel's linear map.
///
/// # Invariants
///
/// Used only for requests of a kernel consumer, which guarantees that they only use memory that it
/// owns for their duration.
pub struct DmaMemory(());

impl DmaMemory {
    /// # Safety
    ///
    /// The value is only used for requests of a kernel consumer.
    pub(crate) const unsafe fn new() -> Self {
        // INVARIANT: By the caller's guarantee.
        Self(())
    }
}

impl Runs for DmaMemory {
    fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        _hint: &ExtentHint,
        mut f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if len == 0 {
            return Ok(());
        }
        // A consumer may have given the peer a key to all memory; whatever the address is, only
        // memory in the linear map is accessed.
        // SAFETY: Only reads the metadata of page tables.
        if !unsafe { bindings::rxe_rs_linear_range(offset, len) } {
            return Err(OutOfBounds.into());
        }
        // INVARIANT: The range is mapped, and the consumer keeps it allocated for the request.
        f(Run {
            addr: offset as usize as *mut u8,
            len,
            _memory: core::marker::PhantomData,
        })
    }
}
