// SPDX-License-Identifier: GPL-2.0
//! Admission of a packet to a QP: transport, length, P_Key, Q_Key or peer address, ICRC, in this
//! order, each failure with its own drop reason.
//!
//! The cheap comparisons come first; the ICRC, which reads the whole packet, last. No packet is
//! processed or queued before all checks have passed. A wrong P_Key or Q_Key is a violation that is
//! reported to management, so it is counted only if the ICRC is valid.

use super::{pkey, qkey};
use crate::drop::DropReason;
use crate::ids::{Gid, PKey, QKey, Qpn};
use crate::wire::opcode::PayloadRule;
use crate::wire::{Packet, Transport};

/// What a QP accepts: a copy of the attributes that admission compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmissionAttrs {
    /// Transport service of the QP.
    pub transport: Transport,
    /// Path MTU: maximum payload of a packet, in bytes.
    pub mtu: usize,
    /// QP number: the GSI accepts any P_Key of the table, other QPs only their own.
    pub qpn: Qpn,
    /// Its P_Key.
    pub pkey: PKey,
    /// Its Q_Key (datagrams only).
    pub qkey: QKey,
    /// GID of the connected peer (connections only).
    pub peer: Gid,
    /// Local GID of the connection (connections only).
    pub own: Gid,
}

/// Source and destination of a packet, from its IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Source address.
    pub source: Gid,
    /// Destination address.
    pub destination: Gid,
}

/// A packet that its QP may process. Only [`admit`] creates one.
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

/// True if the payload length is valid for the opcode (IBTA 9.2.1). For requests of a
/// connection the engine checks it, because it must send a NAK, and for READ responses, because
/// their lengths depend on the request.
#[inline]
fn fits(packet: &Packet<'_>, mtu: usize) -> bool {
    let opcode = packet.opcode();
    let rule = opcode.payload_rule();
    let by_engine = match rule {
        PayloadRule::Exactly(_) => opcode.is_request(),
        _ => opcode.transport() != Transport::Ud,
    };
    by_engine || rule.allows(packet.payload_len(), mtu)
}

/// The checks of [`admit`] except the checksum (IBTA 9.6.1.1, IBTA 9.6.1.2.3, IBTA A17.4.4.2,
/// IBTA A17.4.7).
///
/// # Errors
///
/// The reason of the first check that fails.
#[inline]
pub fn matches(
    packet: &Packet<'_>,
    qp: &AdmissionAttrs,
    path: &Path,
    pkey_in_table: impl FnOnce(PKey) -> bool,
) -> Result<(), DropReason> {
    let bth = packet.bth();
    // A CNP has its own transport and is accepted by RC and UC.
    let is_cnp = matches!(bth.opcode.transport(), Transport::Cnp);
    if !is_cnp && bth.opcode.transport() != qp.transport {
        return Err(DropReason::WrongTransport);
    }
    if !fits(packet, qp.mtu) {
        return Err(DropReason::BadLength);
    }
    let pkey_good = if qp.qpn == Qpn::GSI {
        pkey_in_table(bth.pkey)
    } else if is_cnp {
        // A CNP carries the P_Key of the marked packet, that is the local one and not the peer's,
        // with the membership bit of the local port.
        bth.pkey.key() == qp.pkey.key() && qp.pkey.key() != 0
    } else {
        pkey::matches(bth.pkey, qp.pkey)
    };
    if !pkey_good {
        return Err(DropReason::BadPKey);
    }
    match packet.deth() {
        Some(deth) => {
            // IBTA 9.6.1: the multicast QPN is used with a multicast GID, and only with that.
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

/// Admits `packet` to the QP described by `qp` (IBTA 9.6).
///
/// Calls `pkey_in_table` only for the GSI, and `icrc_good` if everything else has passed or if a
/// violation of P_Key or Q_Key is to be reported (IBTA 10.9.4, IBTA 10.2.5).
///
/// # Errors
///
/// The reason of the first check that fails.
#[inline]
pub fn admit<'a>(
    packet: Packet<'a>,
    qp: &AdmissionAttrs,
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
