// SPDX-License-Identifier: GPL-2.0
//! Q_Key rules of the datagram services (IBTA vol. 1, 10.2.5).

use crate::ids::QKey;

/// The key that a datagram carries: a work request key with the top bit set stands for that of
/// the queue pair, so that ordinary users cannot send with a privileged key.
#[inline]
pub const fn outgoing(request: QKey, own: QKey) -> QKey {
    if request.is_controlled() {
        own
    } else {
        request
    }
}

/// Whether a received datagram may be delivered.
#[inline]
pub const fn accepts(packet: QKey, own: QKey) -> bool {
    packet.0 == own.0
}
