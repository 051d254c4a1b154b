// SPDX-License-Identifier: GPL-2.0
//! Driver bytes of a verbs call from user space, and the mappings handed out with them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::operation::Operation;
use crate::{
    bindings,
    mem::SharedBuf, //
};
use core::{
    ffi::c_int,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};

/// A verbs call on behalf of user space.
///
/// # Context
///
/// Process context, within the verb that the call is of; may sleep.
///
/// # Invariants
///
/// `udata` is the driver part of a running uverbs call that has a user context.
pub struct UserCall<'a> {
    udata: NonNull<bindings::ib_udata>,
    ucontext: NonNull<bindings::ib_ucontext>,
    _call: PhantomData<&'a ()>,
}

impl UserCall<'_> {
    /// Creates the value for a running call; `None` if a kernel consumer calls.
    ///
    /// # Safety
    ///
    /// `udata` is null or the argument the core gave to the running operation, and the result
    /// does not outlive that operation.
    pub(crate) unsafe fn from_raw(udata: *mut bindings::ib_udata) -> Option<Self> {
        let udata = NonNull::new(udata)?;
        // SAFETY: A non-null `ib_udata` of the core is embedded in its attribute bundle.
        let ucontext = NonNull::new(unsafe { bindings::rxe_rs_udata_ucontext(udata.as_ptr()) })?;
        // INVARIANT: By the caller's guarantee and the check above.
        Some(Self {
            udata,
            ucontext,
            _call: PhantomData,
        })
    }

    /// Returns the number of bytes that the caller passed.
    pub fn in_len(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { (*self.udata.as_ptr()).inlen }
    }

    /// Returns the size of the response buffer in bytes.
    pub fn out_len(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { (*self.udata.as_ptr()).outlen }
    }

    /// Copies the start of the caller's data to `dst`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is less than that, `EFAULT` if the memory cannot be read.
    pub fn request(&self, dst: &mut [u8]) -> Result {
        if dst.len() > self.in_len() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant; `dst` is valid for its length.
        to_result(unsafe {
            bindings::rxe_rs_copy_from_udata(
                self.udata.as_ptr(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        })
    }

    /// Writes `src` to the caller.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the buffer is too small, `EFAULT` if the memory cannot be written.
    pub fn respond(&self, src: &[u8]) -> Result {
        if src.len() > self.out_len() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant; `src` is valid for its length.
        to_result(unsafe {
            bindings::rxe_rs_copy_to_udata(self.udata.as_ptr(), src.as_ptr().cast(), src.len())
        })
    }

    /// Writes `src` to an address of the calling process.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the memory cannot be written.
    pub fn write_to(&self, address: u64, src: &[u8]) -> Result {
        let address = usize::try_from(address).map_err(|_| EFAULT)?;
        let to = kernel::uaccess::UserPtr::from_addr(address);
        kernel::uaccess::UserSlice::new(to, src.len())
            .writer()
            .write_slice(src)
    }

    /// Creates an mmap entry: the calling process may map `buf` at the offset of the result.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn map(&self, buf: &Arc<SharedBuf>) -> Result<Mapping> {
        let entry = KBox::new(
            Entry {
                c: pin_init::zeroed(),
                buf: buf.clone(),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let len = buf.len();
        let entry = KBox::into_raw(entry);
        // SAFETY: By the type invariant the context is alive; the entry is zeroed as the core
        // wants it and stays allocated until `mmap_free`.
        let ret = unsafe {
            bindings::rdma_user_mmap_entry_insert(self.ucontext.as_ptr(), &raw mut (*entry).c, len)
        };
        if ret != 0 {
            // SAFETY: The core did not take the entry.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(Error::from_errno(ret));
        }
        // SAFETY: `KBox` pointers are not null.
        let entry = unsafe { NonNull::new_unchecked(entry) };
        // INVARIANT: The entry is inserted and removed by nobody else.
        Ok(Mapping { entry })
    }
}

/// An `rdma_user_mmap_entry` of the core with its memory.
#[repr(C)]
struct Entry {
    c: bindings::rdma_user_mmap_entry,
    buf: Arc<SharedBuf>,
}

/// An mmap entry, which is removed when dropped. Existing mappings stay valid, because they hold
/// references to the pages, or to a ring whose pages they allocate. Must be dropped in process
/// context, before the user context is freed.
///
/// # Context
///
/// Any context.
///
/// # Invariants
///
/// `entry` is inserted in a live user context.
pub struct Mapping {
    entry: NonNull<Entry>,
}

// SAFETY: The entry is only touched through the core, which locks.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives read access to fields that do not change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The offset for `mmap`, in bytes.
    pub fn offset(&self) -> u64 {
        // SAFETY: By the type invariant; the field does not change after insertion.
        let pgoff = unsafe { (*self.entry.as_ptr()).c.start_pgoff };
        (pgoff as u64) << bindings::PAGE_SHIFT
    }

    /// The length for `mmap`, in bytes.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        // SAFETY: By the type invariant; the field does not change.
        unsafe { (*self.entry.as_ptr()).buf.len() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the core calls `mmap_free` after the last reference has
        // been dropped.
        unsafe { bindings::rdma_user_mmap_entry_remove(&raw mut (*self.entry.as_ptr()).c) };
    }
}

/// `ib_device_ops.mmap`.
///
/// # Safety
///
/// Called by the core with a live context and a VMA being set up.
pub(crate) unsafe extern "C" fn mmap_callback(
    ucontext: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: A live context has a live device.
    let operation = unsafe { Operation::new((*ucontext).device, c"mmap") };
    // SAFETY: By the caller's guarantee. The core checks offset, length and sharing.
    let entry = unsafe { bindings::rdma_user_mmap_entry_get(ucontext, vma) };
    if entry.is_null() {
        return operation.errno(Err(EINVAL));
    }
    // SAFETY: All entries of this driver's contexts are `Entry` values, whose first member is
    // the C entry; the reference just taken keeps it alive.
    let buf = unsafe { &(*entry.cast::<Entry>()).buf };
    // SAFETY: The buffer is of whole pages from rxe_rs_ring_alloc(); the VMA is the caller's.
    let ret = unsafe { bindings::rxe_rs_ring_mmap(vma, buf.as_ring()) };
    // SAFETY: Balances the get above.
    unsafe { bindings::rdma_user_mmap_entry_put(entry) };
    operation.errno(to_result(ret))
}

/// `ib_device_ops.mmap_free`.
///
/// # Safety
///
/// Called by the core once per entry, when the last reference has been dropped.
pub(crate) unsafe extern "C" fn mmap_free_callback(entry: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: All entries of this driver are boxed `Entry` values, given up in `map`.
    drop(unsafe { KBox::from_raw(entry.cast::<Entry>()) });
}
