// SPDX-License-Identifier: GPL-2.0
//! The queue pair engine: no I/O, no clock, no lock, no allocation.
//!
//! [`qp::Qp`] is a value that is fed packets, timer expiries and doorbells and is asked for
//! packets to send, for its next deadline and for events. Files by concern: [`qp`] (the API), [`attrs`] (its types),
//! `requester` (send queue to packets), `completer` (responses to completions), `responder`
//! (requests of the peer), `datagram` (UD and UC receive), [`window`] (how much may be in
//! flight), `congestion` (marked packets, notifications), `pacer` (the rate that these lead to), `trains` (whether packets may share a buffer), [`transition`] (what the owner may change in which state), [`backend`] (what it
//! needs from outside), [`wr`] and [`wc`] (work requests and completions), [`notify`] (when consumers are told of these).

pub mod attrs;
pub mod backend;
mod completer;
mod congestion;
mod datagram;
pub mod notify;
mod pacer;
mod probe;
pub mod qp;
mod requester;
mod responder;
mod response;
mod trains;
pub mod transition;
pub mod wc;
pub mod window;
pub mod wr;

pub use responder::ReplayEntry;
pub use response::PendingResponse;

pub use attrs::{Attrs, Events, Progress, Service, State, UdMeta, MAX_RD_ATOMIC};
pub use qp::Qp;
