// SPDX-License-Identifier: GPL-2.0
//! Q_Key rules of the datagram services.

use crate::ids::QKey;

/// The Q_Key of an outgoing datagram: a work request Q_Key with the most significant bit set
/// selects the Q_Key of the QP, so that unprivileged users cannot send with a controlled Q_Key
/// (IBTA 10.2.5).
#[inline]
pub const fn outgoing(request: QKey, own: QKey) -> QKey {
    if request.is_controlled() {
        own
    } else {
        request
    }
}

/// True if a datagram with Q_Key `packet` may be delivered to a QP with Q_Key `own`
/// (IBTA 9.6.1.4.1).
#[inline]
pub const fn accepts(packet: QKey, own: QKey) -> bool {
    packet.0 == own.0
}
