// SPDX-License-Identifier: GPL-2.0
//! Congestion control of connections: the notification point sends CNPs, the reaction point cuts
//! its rate.
//!
//! A router whose queue grows sets the ECN codepoint CE in the IP header. The [`CnpGenerator`] of
//! the receiving QP then requests a congestion notification packet (CNP) at a limited rate. When a
//! CNP passes the [`CnpFilter`] of the sending QP, its [`Pacer`](super::pacer::Pacer) cuts the
//! rate, and the [`Meter`] limits transmission to it. Acknowledgements are not paced: that would
//! slow the peer, whose packets may take another path.

use super::attrs::RxMeta;
use super::backend::{Dest, Tx, TxFault};
use super::wc::NetworkType;
use crate::ids::{PKey, Psn, Qpn};
use crate::time::Instant;
use crate::wire::bth::Bth;
use crate::wire::opcode::Opcode;
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;

/// True if a router on the path marked the packet CE, "congestion experienced" (RFC 3168).
#[inline]
pub(super) fn is_marked(meta: &RxMeta<'_>) -> bool {
    let byte = meta.ip_header.get(1).copied().unwrap_or(0);
    let ecn = match meta.net {
        NetworkType::V4 => byte,
        NetworkType::V6 => byte >> 4,
    };
    ecn & 3 == 3
}

/// Payload bytes of a CNP: reserved, zero (IBTA A17.9.3).
pub(super) const CNP_PAYLOAD_BYTES: usize = 16;

/// Headers of a CNP, with all flags clear but BECN (IBTA A17.9.3, and as ConnectX adapters
/// send it): MigReq 0, PSN 0, AckReq 0, and the P_Key of the marked packet.
pub(super) fn cnp_headers(dest_qpn: Qpn, pkey: PKey) -> Headers {
    Headers::new(Bth {
        becn: true,
        migreq: false,
        pkey,
        ..Bth::new(Opcode::CNP, dest_qpn, Psn::new(0))
    })
}

/// Minimum time between two CNPs of a QP, in nanoseconds: the interval of DCQCN (Zhu et al.,
/// SIGCOMM 2015, section 5.2).
pub(super) const CNP_INTERVAL_NS: u64 = 50_000;

/// Decides when to send a CNP (IBTA A17.9.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CnpGenerator {
    /// A CNP is due, with the P_Key of the marked packet.
    pub(super) due: Option<PKey>,
    last: Option<Instant>,
}

impl CnpGenerator {
    /// A packet marked CE with this P_Key arrived.
    pub(super) fn on_marked(&mut self, now: Instant, pkey: PKey) {
        let wait = self
            .last
            .is_some_and(|at| now.ns_since(at) < CNP_INTERVAL_NS);
        if !wait {
            self.last = Some(now);
            self.due = Some(pkey);
        }
    }
}

/// Time after a packet was sent in which a CNP can refer to it, in nanoseconds: longer than packets
/// stay in the queues of a network.
const CNP_WINDOW_NS: u64 = 200_000_000;

/// CNPs that may arrive in excess of the packets sent, because a network may duplicate some.
const CNP_SLACK: u32 = 64;

/// Time in which all CNPs are rejected after too many have arrived, in nanoseconds.
const REJECT_NS: u64 = 4_000_000_000;

/// Rejects forged CNPs.
///
/// A CNP has no proof of origin beyond the addresses, the QP number and the P_Key. But each CNP
/// responds to a packet: none arrives while nothing is sent, nor do more arrive than packets are
/// sent. If more arrive, all CNPs are rejected for some time, in which only packet loss limits the
/// QP.
#[derive(Clone, Copy, Debug)]
pub(super) struct CnpFilter {
    /// When the last ECN-capable packet was sent.
    last_sent: Option<Instant>,
    /// Start of the current interval of [`CNP_WINDOW_NS`].
    since: Instant,
    /// CNPs received in the current interval and the previous one, and the packets that they can
    /// refer to: those sent in these two intervals and the one before.
    cnps: [u32; 2],
    packets: [u32; 3],
    /// CNPs are rejected until then, because more of them arrived than packets were sent.
    reject_until: Instant,
}

impl CnpFilter {
    pub(super) const fn new() -> Self {
        Self {
            last_sent: None,
            since: Instant::ZERO,
            cnps: [0; 2],
            packets: [0; 3],
            reject_until: Instant::ZERO,
        }
    }

    fn rotate(&mut self, now: Instant) {
        let elapsed = now.ns_since(self.since);
        if elapsed < CNP_WINDOW_NS {
            return;
        }
        let recent = elapsed < CNP_WINDOW_NS.saturating_mul(2);
        let ([packets, before, _], [cnps, _]) = (self.packets, self.cnps);
        (self.packets, self.cnps) = match recent {
            true => ([0, packets, before], [0, cnps]),
            false => ([0; 3], [0; 2]),
        };
        self.since = now;
    }

    /// `packets` ECN-capable packets were sent.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Instant, packets: u32) {
        self.rotate(now);
        self.last_sent = Some(now);
        let [count, ..] = &mut self.packets;
        *count = count.saturating_add(packets);
    }

    /// True if the CNP that has just arrived is to be accepted.
    pub(super) fn accepts(&mut self, now: Instant) -> bool {
        self.rotate(now);
        let [count, before] = &mut self.cnps;
        *count = count.saturating_add(1);
        let cnps = count.saturating_add(*before);
        let [count, before, earlier] = self.packets;
        let packets = count.saturating_add(before).saturating_add(earlier);
        let recently_sent = self
            .last_sent
            .is_some_and(|at| now.ns_since(at) <= CNP_WINDOW_NS);
        if !recently_sent || now < self.reject_until {
            return false;
        }
        if cnps > packets.saturating_add(CNP_SLACK) {
            self.reject_until = now.saturating_add(REJECT_NS);
            return false;
        }
        true
    }

    /// True while all CNPs are rejected.
    #[inline]
    pub(super) fn is_rejecting(&self, now: Instant) -> bool {
        now < self.reject_until
    }
}

/// A sink with a budget of bytes: it counts what is sent and is full when the budget is spent.
pub(super) struct Meter<'a, T> {
    tx: &'a mut T,
    /// Bytes that may be sent, and bytes and packets that were.
    budget: u64,
    pub(super) sent: u64,
    pub(super) packets: u32,
}

impl<'a, T: Tx> Meter<'a, T> {
    pub(super) fn new(tx: &'a mut T, budget: u64) -> Self {
        Self {
            tx,
            budget,
            sent: 0,
            packets: 0,
        }
    }

    /// True if the budget is spent while the sink has room.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.sent >= self.budget && self.tx.has_room()
    }

    /// The sink itself, for packets that do not count towards the budget.
    #[inline]
    pub(super) fn unlimited(&mut self) -> &mut T {
        self.tx
    }

    #[inline]
    fn add(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.sent = self.sent.saturating_add(bytes);
        self.packets = self.packets.saturating_add(1);
    }
}

impl<T: Tx> Tx for Meter<'_, T> {
    #[inline]
    fn has_room(&self) -> bool {
        self.sent < self.budget && self.tx.has_room()
    }

    #[inline]
    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        self.tx.packet(to, headers, payload_len, fill)?;
        self.add(headers.len().saturating_add(payload_len));
        Ok(())
    }

    #[inline]
    fn max_merged(&self) -> u32 {
        let left = self.budget.saturating_sub(self.sent);
        self.tx
            .max_merged()
            .min(u32::try_from(left).unwrap_or(u32::MAX))
    }

    #[inline]
    fn merged<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        count: u32,
        fill: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        self.tx.merged(headers, payload_len, count, fill)?;
        self.add(headers.len().saturating_add(payload_len));
        Ok(())
    }

    #[inline]
    fn max_by_reference(&self) -> u32 {
        let left = self.budget.saturating_sub(self.sent);
        self.tx
            .max_by_reference()
            .min(u32::try_from(left).unwrap_or(u32::MAX))
    }

    #[inline]
    fn by_reference<E>(
        &mut self,
        headers: &Headers,
        reference: &Reference,
        count: u32,
    ) -> Result<(), TxFault<E>> {
        self.tx.by_reference(headers, reference, count)?;
        let payload = usize::try_from(reference.len).unwrap_or(usize::MAX);
        self.add(headers.len().saturating_add(payload));
        Ok(())
    }

    #[inline]
    fn gso_index(&self) -> u32 {
        self.tx.gso_index()
    }

    fn disable_gso(&mut self) {
        self.tx.disable_gso();
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        self.tx.frame(len, fill)?;
        self.add(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::same_host::HostTag;

    const MS: u64 = 1_000_000;
    const KEY: PKey = PKey(0x8001);
    const BEGIN: Instant = Instant::from_ns(MS);

    /// The headers of the CNP that the vendor of ConnectX adapters publishes as an example ("RoCEv2
    /// CNP Packet Format Example", 2018), with its P_Key.
    #[test]
    fn cnp_matches_hardware() {
        let headers = cnp_headers(Qpn::new(0xd2), PKey::DEFAULT);
        let bytes = [0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0];
        assert_eq!(headers.as_slice(), bytes);
        assert_eq!(
            cnp_headers(Qpn::new(2), KEY).as_slice().get(2..4),
            Some(&[0x80, 1][..])
        );
    }

    #[test]
    fn cnps_are_rate_limited() {
        let mut generator = CnpGenerator::default();
        let mut sent = 0;
        for after in (0..MS).step_by(1000) {
            generator.on_marked(BEGIN + after, KEY);
            sent += u64::from(generator.due.take().is_some());
        }
        assert_eq!(sent, MS / CNP_INTERVAL_NS);
    }

    #[test]
    fn ce_codepoint() {
        for (net, shift) in [(NetworkType::V4, 0), (NetworkType::V6, 4)] {
            for byte in 0..=255u8 {
                let header = [0x45, byte, 0, 0];
                let meta = RxMeta {
                    net,
                    ip_header: &header,
                    pkey_index: 0,
                    vlan: None,
                    tag: HostTag::None,
                    merged: 0,
                };
                assert_eq!(is_marked(&meta), (byte >> shift) & 3 == 3);
            }
        }
    }

    /// A QP that has not sent recently has caused no congestion.
    #[test]
    fn idle_sender_ignores_cnps() {
        let mut filter = CnpFilter::new();
        assert!(!filter.accepts(BEGIN));
        filter.on_sent(BEGIN + MS, 1);
        assert!(filter.accepts(BEGIN + 2 * MS));
        assert!(filter.accepts(BEGIN + MS + CNP_WINDOW_NS));
        assert!(!filter.accepts(BEGIN + 2 * MS + CNP_WINDOW_NS));
    }

    /// One CNP per packet is accepted. If more arrive, all are rejected for some time.
    #[test]
    fn no_more_cnps_than_packets() {
        let mut filter = CnpFilter::new();
        let mut now = BEGIN;
        for _ in 0..100_000 {
            filter.on_sent(now, 1);
            assert!(filter.accepts(now));
            now += CNP_INTERVAL_NS;
        }
        let mut accepted = 0;
        while filter.accepts(now) {
            now += CNP_INTERVAL_NS / 8;
            accepted += 1;
        }
        // At most the packets of the last three intervals.
        assert!(
            accepted <= 3 * CNP_WINDOW_NS / CNP_INTERVAL_NS,
            "{accepted}"
        );
        let end = now + REJECT_NS;
        while now < end {
            assert!(filter.is_rejecting(now) && !filter.accepts(now));
            filter.on_sent(now, 1);
            now += CNP_INTERVAL_NS;
        }
        assert!(filter.accepts(now + CNP_WINDOW_NS / 2));
    }

    /// Packets queue in the network, and each may cause a CNP when it leaves: the CNPs of a burst
    /// arrive when few packets are sent any more.
    #[test]
    fn cnps_for_queued_packets() {
        for offset in (0..CNP_WINDOW_NS).step_by(7 * MS as usize) {
            let begin = Instant::from_ns(offset);
            let mut filter = CnpFilter::new();
            filter.on_sent(begin, 4000);
            let delay = CNP_WINDOW_NS - MS;
            for count in 0..4000 {
                let now = begin + 10 * MS + count * (delay - 10 * MS) / 4000;
                if count % 100 == 0 {
                    filter.on_sent(now, 1);
                }
                assert!(filter.accepts(now), "{count} of {offset}");
            }
        }
    }

    #[test]
    fn clock_jumps() {
        let mut filter = CnpFilter::new();
        filter.on_sent(Instant::MAX, u32::MAX);
        filter.on_sent(Instant::ZERO, u32::MAX);
        assert!(filter.accepts(Instant::from_ns(3)));
        assert!(!filter.accepts(Instant::MAX));
    }
}
