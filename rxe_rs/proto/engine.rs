// SPDX-License-Identifier: GPL-2.0
//! The queue pair engine: no I/O, no clock, no lock, no allocation.
//!
//! [`qp::Qp`] takes packets, timer expiries and doorbells as input and returns packets to transmit,
//! its next deadline and asynchronous events. Files by concern: [`qp`] (the API), [`attrs`] (its
//! types), `requester` (send queue to packets), `completer` (responses to completions), `responder`
//! (requests of the peer), `datagram` (UD and UC receive), [`window`] (congestion window),
//! `congestion` (ECN marks and CNPs), `delayed_ack` (ACKs that wait for a reply), `pacer` (the
//! sending rate after CNPs), [`repeat`] (selective repeat), `gso` (whether packets may share a GSO
//! buffer), [`same_host`] (whether they need an ICRC), `merge` (packets with the payload of
//! several), [`offered`] (requests whose payload the peer may copy), [`transition`] (attributes by
//! state transition), [`backend`] (the traits that the owner implements), [`wr`] and [`wc`] (work
//! requests and completions), [`notify`] (CQ arming and moderation), [`room`] (how long requests
//! wait for room in a CQ), `late_receives` (receive requests that are posted in ERR).

pub mod attrs;
pub mod backend;
mod completer;
mod congestion;
mod datagram;
mod delayed_ack;
mod gso;
mod late_receives;
mod merge;
pub mod notify;
pub mod offered;
mod pacer;
mod probe;
pub mod qp;
pub mod repeat;
mod requester;
mod responder;
mod response;
pub mod room;
pub mod same_host;
pub mod transition;
pub mod wc;
pub mod window;
pub mod wr;

pub use late_receives::ReceiveQueue;
pub use responder::ReplayEntry;
pub use response::PendingResponse;

pub use attrs::{Attrs, Events, Progress, RxMeta, Service, State, ToSend, MAX_RD_ATOMIC};
pub use qp::Qp;
