// SPDX-License-Identifier: GPL-2.0
//! Admission of a packet to a queue pair: transport, length, partition, identity, checksum, in this
//! order, each failure with its own reason.
//!
//! The cheap comparisons come first; the checksum, which reads the whole packet, last. Nothing is
//! queued before all of them have passed. A wrong P_Key or Q_Key is a violation that management
//! hears of (IBTA vol1 10.9.4, 10.2.5), so it is one only in a packet whose checksum is right.

use super::{pkey, qkey};
use crate::drop::DropReason;
use crate::ids::{Gid, PKey, QKey, Qpn};
use crate::wire::opcode::PayloadRule;
use crate::wire::{Operation, Packet, Transport};

/// What a queue pair accepts; a copy of the few attributes that admission compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpFacts {
    /// Transport service of the queue pair.
    pub transport: Transport,
    /// Greatest payload of a packet, in bytes.
    pub mtu: usize,
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

/// Whether the payload is as long as the opcode allows (IBTA vol1 9.2.1). A request of a connection
/// that is not is for the engine to answer: the peer hears of it.
#[inline]
fn fits(packet: &Packet<'_>, mtu: usize) -> bool {
    let opcode = packet.opcode();
    let rule = opcode.payload_rule();
    let by_engine = match rule {
        PayloadRule::Exactly(_) => opcode.operation() == Operation::AtomicWrite,
        _ => opcode.transport() != Transport::Ud,
    };
    by_engine || rule.allows(packet.payload_len(), mtu)
}

/// The checks of [`admit`] except the checksum.
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
    if !fits(packet, qp.mtu) {
        return Err(DropReason::BadLength);
    }
    let pkey_good = if qp.qpn == Qpn::GSI {
        pkey_in_table(bth.pkey)
    } else if notice {
        // It carries the P_Key of the packet that was marked, that is one of ours and not the peer's:
        // where we are a limited member it says so, too.
        bth.pkey.key() == qp.pkey.key() && qp.pkey.key() != 0
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
/// `pkey_in_table` is asked only for the GSI; `icrc_good` if everything else has passed, or if a
/// violation is to be reported.
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
    let reason = match matches(&packet, qp, path, pkey_in_table) {
        Ok(()) => None,
        Err(reason @ (DropReason::BadPKey | DropReason::BadQKey)) => Some(reason),
        Err(reason) => return Err(reason),
    };
    match reason {
        _ if !icrc_good(&packet) => Err(DropReason::BadIcrc),
        Some(reason) => Err(reason),
        None => Ok(Admitted { packet }),
    }
}
