// SPDX-License-Identifier: GPL-2.0
//! Admission of a packet to a queue pair: transport, partition, identity, checksum, in this
//! order, each failure with its own reason.
//!
//! The cheap comparisons come first; the checksum, which reads the whole packet, last. Nothing is
//! queued before all of them have passed.

use super::{pkey, qkey};
use crate::drop::DropReason;
use crate::ids::{Gid, PKey, QKey, Qpn};
use crate::wire::{Packet, Transport};

/// What a queue pair accepts; a copy of the few attributes that admission compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpFacts {
    /// Transport service of the queue pair.
    pub transport: Transport,
    /// Its number: the GSI takes any key of the table, others only their own.
    pub qpn: Qpn,
    /// Its P_Key.
    pub pkey: PKey,
    /// Its Q_Key (datagrams only).
    pub qkey: QKey,
    /// Address of the connected peer (connections only).
    pub peer: Gid,
    /// Own address of the connection (connections only).
    pub own: Gid,
}

/// Where a packet came from and went to, by its IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Source address.
    pub source: Gid,
    /// Destination address.
    pub destination: Gid,
}

/// A packet that its queue pair may process. Only [`admit`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    packet: Packet<'a>,
}

impl<'a> Admitted<'a> {
    /// The packet.
    #[inline]
    pub const fn packet(&self) -> &Packet<'a> {
        &self.packet
    }
}

/// The checks of [`admit`] except the checksum: for callers that verify one checksum for several
/// queue pairs (multicast).
///
/// # Errors
///
/// The reason of the first check that fails.
#[inline]
pub fn matches(
    packet: &Packet<'_>,
    qp: &QpFacts,
    path: &Path,
    pkey_in_table: impl FnOnce(PKey) -> bool,
) -> Result<(), DropReason> {
    let bth = packet.bth();
    // A notification has its own transport and is for connections of both kinds.
    let notice = matches!(bth.opcode.transport(), Transport::Cnp);
    if !notice && bth.opcode.transport() != qp.transport {
        return Err(DropReason::WrongTransport);
    }
    let pkey_good = if qp.qpn == Qpn::GSI {
        pkey_in_table(bth.pkey)
    } else {
        pkey::matches(bth.pkey, qp.pkey)
    };
    if !pkey_good {
        return Err(DropReason::BadPKey);
    }
    match packet.deth() {
        Some(deth) => {
            // IBTA vol1 9.6.1: the number of all members goes with the address of a group, and
            // no other does.
            let to_group = bth.dest_qpn == Qpn::MULTICAST;
            if path.destination.is_multicast() != to_group {
                return Err(DropReason::NoGid);
            }
            if !qkey::accepts(deth.qkey(), qp.qkey) {
                return Err(DropReason::BadQKey);
            }
        }
        None if matches!(qp.transport, Transport::Ud) => {}
        None => {
            if path.source != qp.peer || path.destination != qp.own {
                return Err(DropReason::BadPeer);
            }
        }
    }
    Ok(())
}

/// Admits `packet` to the queue pair described by `qp`.
///
/// `pkey_in_table` is asked only for the GSI; `icrc_good` only if everything else has passed.
///
/// # Errors
///
/// The reason of the first check that fails.
#[inline]
pub fn admit<'a>(
    packet: Packet<'a>,
    qp: &QpFacts,
    path: &Path,
    pkey_in_table: impl FnOnce(PKey) -> bool,
    icrc_good: impl FnOnce(&Packet<'a>) -> bool,
) -> Result<Admitted<'a>, DropReason> {
    matches(&packet, qp, path, pkey_in_table)?;
    if !icrc_good(&packet) {
        return Err(DropReason::BadIcrc);
    }
    Ok(Admitted { packet })
}
