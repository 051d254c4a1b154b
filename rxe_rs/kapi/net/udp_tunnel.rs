// SPDX-License-Identifier: GPL-2.0
//! The UDP port on which RoCEv2 packets are received.
//!
//! C header: [`include/net/udp_tunnel.h`](srctree/include/net/udp_tunnel.h)

use super::{
    netdev::NetDev,
    skb::RxSkb, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// Receives the datagrams.
pub trait Receive: 'static {
    /// Called with a datagram, or a GSO buffer of datagrams of one flow.
    ///
    /// # Context
    ///
    /// Softirq, or process context with bottom halves disabled for a datagram that was in the queue
    /// of a program (NFQUEUE), in an RCU read-side critical section: must not sleep. Several CPUs
    /// may call at the same time. All devices of a namespace come here.
    fn receive(skb: RxSkb);

    /// Counts and drops a datagram, or a GSO buffer of them, that the IPsec policies of the
    /// namespace do not let in: it came without the protection that they require.
    ///
    /// # Context
    ///
    /// As of [`receive`](Self::receive).
    fn refuse(skb: RxSkb);
}

/// A use of the UDP port in a network namespace.
///
/// The first one of a namespace opens the sockets, dropping the last one closes them and waits
/// for running [`Receive::receive`] calls. A host without IPv6 gets IPv4 only. When the namespace
/// ends, the port is closed even if it is still in use here.
///
/// A port has one receiver: that of the first use also serves all later uses.
pub struct UdpEndpoint<R: Receive> {
    raw: NonNull<bindings::rxe_rs_endpoint>,
    _receiver: PhantomData<fn(R)>,
}

// SAFETY: The endpoint is reference counted under its own lock.
unsafe impl<R: Receive> Send for UdpEndpoint<R> {}
// SAFETY: As above.
unsafe impl<R: Receive> Sync for UdpEndpoint<R> {}

impl<R: Receive> UdpEndpoint<R> {
    /// Opens `port` in the namespace of `dev`.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENODEV` without a [`Registration`](super::Registration) or if the namespace has ended,
    /// `EADDRINUSE` if another socket has the port, `ENOMEM`, or what the stack returns.
    pub fn open(dev: &NetDev, port: u16) -> Result<Self> {
        // SAFETY: The device is alive.
        let raw = unsafe {
            bindings::rxe_rs_endpoint_open(
                dev.as_ptr(),
                port,
                Some(Self::receive_callback),
                Some(Self::refuse_callback),
            )
        };
        let raw = NonNull::new(kernel::error::from_err_ptr(raw)?).ok_or(ENOMEM)?;
        Ok(Self {
            raw,
            _receiver: PhantomData,
        })
    }

    /// Returns true if the port receives IPv6.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn has_ipv6(&self) -> bool {
        // SAFETY: The endpoint is open.
        unsafe { bindings::rxe_rs_endpoint_has_ipv6(self.raw.as_ptr()) }
    }

    /// Datagrams to the port that processes of the namespace tried to send without the capability,
    /// since it was opened.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn refused(&self) -> u64 {
        // SAFETY: The endpoint is open.
        unsafe { bindings::rxe_rs_endpoint_refused(self.raw.as_ptr()) }
    }

    /// # Safety
    ///
    /// As of [`RxSkb::new`].
    unsafe extern "C" fn receive_callback(skb: *mut bindings::sk_buff) {
        // SAFETY: The C side passes a live buffer and gives it up, with `data` at the UDP header,
        // in the read-side critical section of the network stack. `receive` keeps no `RxSkb`, which
        // no other thread could drop.
        if let Some(skb) = unsafe { RxSkb::new(skb) } {
            R::receive(skb);
        }
    }

    /// # Safety
    ///
    /// As of [`RxSkb::new`].
    unsafe extern "C" fn refuse_callback(skb: *mut bindings::sk_buff) {
        // SAFETY: As in `receive_callback`.
        if let Some(skb) = unsafe { RxSkb::new(skb) } {
            R::refuse(skb);
        }
    }
}

impl<R: Receive> Drop for UdpEndpoint<R> {
    fn drop(&mut self) {
        // SAFETY: Closes what `open` opened, once.
        unsafe { bindings::rxe_rs_endpoint_close(self.raw.as_ptr()) };
    }
}
