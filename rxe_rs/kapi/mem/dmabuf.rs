// SPDX-License-Identifier: GPL-2.0
//! DMA buffers of other drivers.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::{
    ExtentHint,
    OutOfBounds,
    Run,
    Runs, //
};
use crate::bindings;
use core::{
    ffi::c_int,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

/// The mapping of a DMA buffer that is pinned as well: a mapping alone would not keep the exporter
/// from moving the buffer. Dropping it releases the buffer and may sleep.
///
/// # Invariants
///
/// Held once. The device is attached to the buffer and the buffer pinned as long as it is held.
struct Mapping(NonNull<bindings::rxe_rs_dmabuf>);

// SAFETY: The mapping is not bound to a thread; it may be released in any context that may sleep.
unsafe impl Send for Mapping {}
// SAFETY: Shared access does not use its contents.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; this is the last use.
        unsafe { bindings::rxe_rs_dmabuf_put(self.0.as_ptr()) };
    }
}

/// A part of a DMA buffer, mapped for the CPU. Dropping the last part releases the buffer and may
/// sleep: exporters map a buffer as a whole.
///
/// # Invariants
///
/// `len` bytes at `addr` are mapped and writable until `mapping` is dropped, and the exporter does
/// not move what is mapped there before, because `mapping` pins it.
pub struct DmaBuf {
    mapping: Arc<Mapping>,
    addr: NonNull<u8>,
    len: u64,
}

// SAFETY: As for the mapping.
unsafe impl Send for DmaBuf {}
// SAFETY: Shared access only copies bytes from and to memory that others may change anyway.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Attaches device `dev` to the buffer that is file `fd` of the calling process, pins the
    /// buffer, and maps `len` bytes at `offset` of it. The exporter maps and pins all of it until
    /// the value is dropped. As for any other device, it does not matter how the file was opened.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBADF`, `EINVAL` if it is no DMA buffer or smaller, `EOPNOTSUPP` if the CPU cannot access
    /// it, `ENOMEM`; what the exporter returns. `reason` is called with a description.
    ///
    /// # Safety
    ///
    /// `dev` is alive during the call.
    pub(crate) unsafe fn map(
        dev: *mut bindings::ib_device,
        fd: c_int,
        offset: u64,
        len: u64,
        reason: impl FnOnce(&CStr),
    ) -> Result<Self> {
        let mut addr = core::ptr::null_mut();
        let mut words = core::ptr::null();
        // SAFETY: The device is alive by the caller's guarantee, and the C side takes a reference
        // to it with what it returns; both places are valid for writes.
        let raw =
            unsafe { bindings::rxe_rs_dmabuf_get(dev, fd, offset, len, &mut addr, &mut words) };
        let raw = from_err_ptr(raw).inspect_err(|_| {
            // SAFETY: A string literal of the C side.
            reason(unsafe { CStr::from_char_ptr(words) });
        })?;
        // SAFETY: The C side returns no null but as an error, and an address with it.
        let (raw, addr) = unsafe {
            (
                NonNull::new_unchecked(raw),
                NonNull::new_unchecked(addr.cast()),
            )
        };
        // INVARIANT: The C side has taken the reference, attached the device and pinned the buffer.
        let mapping = Mapping(raw);
        // INVARIANT: The C side checked the range; the mapping pins the buffer.
        Ok(Self {
            mapping: Arc::new(mapping, GFP_KERNEL_ACCOUNT)?,
            addr,
            len,
        })
    }

    /// Returns the `len` bytes at `offset` as another part.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range or one outside.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > self.len {
            return Err(EINVAL);
        }
        // INVARIANT: In bounds of what is mapped.
        Ok(Self {
            mapping: self.mapping.clone(),
            // SAFETY: As above.
            addr: unsafe { self.addr.add(usize::try_from(offset)?) },
            len,
        })
    }
}

impl Runs for DmaBuf {
    #[inline]
    fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        _hint: &ExtentHint,
        mut f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = offset.checked_add(len as u64).ok_or(OutOfBounds)?;
        if end > self.len {
            return Err(OutOfBounds.into());
        }
        if len == 0 {
            return Ok(());
        }
        // INVARIANT: In bounds of what is mapped.
        f(Run {
            // SAFETY: As above.
            addr: unsafe { self.addr.as_ptr().add(offset as usize) },
            len,
            _memory: PhantomData,
        })
    }
}
