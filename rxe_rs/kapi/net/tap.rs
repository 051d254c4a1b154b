// SPDX-License-Identifier: GPL-2.0
//! A tap on a network device: a copy of every Ethernet frame it receives.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use super::netdev::NetDev;
use crate::bindings;
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Receives the frames.
pub trait Listen: Send + Sync + 'static {
    /// Called with each frame, from its destination address on and without a frame check sequence.
    ///
    /// # Context
    ///
    /// Softirq, in an RCU read-side critical section: must not sleep. Several CPUs may call at the
    /// same time.
    fn frame(&self, frame: &[u8]);
}

/// A tap, which is closed when dropped. Dropping it sleeps until running calls of the listener have
/// ended.
pub struct Tap<T: Listen> {
    raw: NonNull<bindings::rxe_rs_tap>,
    _listener: Arc<T>,
    _dev: NetDev,
}

// SAFETY: The C part is only touched to close it; the listener may be shared.
unsafe impl<T: Listen> Send for Tap<T> {}
// SAFETY: As above.
unsafe impl<T: Listen> Sync for Tap<T> {}

impl<T: Listen> Tap<T> {
    /// Opens a tap on `dev`.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn open(dev: &NetDev, listener: &Arc<T>) -> Result<Self> {
        let listener = listener.clone();
        let context = (&raw const *listener).cast_mut().cast();
        // SAFETY: Device and listener live as long as `self`, which closes the tap first.
        let raw = unsafe {
            bindings::rxe_rs_tap_open(dev.as_ptr(), Some(Self::receive_callback), context)
        };
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _listener: listener,
            _dev: dev.clone(),
        })
    }

    /// # Safety
    ///
    /// `context` is a listener and `frame` has `len` readable bytes that nobody writes.
    unsafe extern "C" fn receive_callback(context: *mut c_void, frame: *const u8, len: u32) {
        // SAFETY: The listener lives as long as the tap is open.
        let listener = unsafe { &*context.cast::<T>() };
        // SAFETY: By contract.
        listener.frame(unsafe { core::slice::from_raw_parts(frame, len as usize) });
    }
}

impl<T: Listen> Drop for Tap<T> {
    fn drop(&mut self) {
        // SAFETY: Closes what `open` opened, once.
        unsafe { bindings::rxe_rs_tap_close(self.raw.as_ptr()) };
    }
}
