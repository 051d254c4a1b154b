// SPDX-License-Identifier: GPL-2.0
//! Received packets to QPs.
//!
//! Runs in softirq, straight from UDP. Everything that can be refused is refused here or in
//! [`admit`], before anything is queued, and counted by reason.

use crate::{
    device::DeviceCtx,
    qp::{
        KernelCrc,
        QpCtx, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    net::skb::{
        RxSegment,
        RxSkb, //
    },
    new_spinlock_bh,
    sync::{
        ExitToken,
        RcuTable,
        SpinLockBh, //
    },
    time::now_ns,
};
use rxe_proto::{
    check::admit::{
        admit,
        Path,
        QpFacts, //
    },
    drop::DropReason,
    engine::{
        wc::NetKind,
        Service,
        State,
        UdMeta, //
    },
    ids::{
        Gid,
        PKey,
        Qpn, //
    },
    wire::{
        bth::Bth,
        icrc::icrc,
        packet::{
            Packet,
            Payload, //
        },
        Transport, //
    },
};

/// Queue pairs by number, and the devices they are on.
///
/// Numbers are unique in the module, so that a packet finds its QP without knowing its device
/// first; that it came in by that device is checked afterwards.
#[pin_data]
pub(crate) struct Demux {
    #[pin]
    qps: RcuTable<QpCtx>,
    /// QP1 of every device.
    #[pin]
    gsi: SpinLockBh<KVec<Arc<QpCtx>>>,
    /// All devices, for drops that belong to no QP.
    #[pin]
    devices: SpinLockBh<KVec<Arc<DeviceCtx>>>,
    /// Devices and QPs hold the demultiplexer: when it goes, they are gone. Last.
    _token: ExitToken,
}

/// QP numbers given to consumers: 0 and 1 are reserved, the last one means multicast.
const FIRST_QPN: u32 = 2;
const LAST_QPN: u32 = 0xff_fffe;

impl Demux {
    /// An empty table.
    pub(crate) fn new(token: ExitToken) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            qps <- RcuTable::new(),
            _token: token,
            gsi <- new_spinlock_bh!(KVec::new(), "Demux::gsi"),
            devices <- new_spinlock_bh!(KVec::new(), "Demux::devices"),
        })
    }

    /// Takes a random free QP number.
    pub(crate) fn reserve_qpn(&self) -> Result<u32> {
        self.qps.reserve_random(FIRST_QPN..=LAST_QPN)
    }

    /// Gives back a number that was never published.
    pub(crate) fn release_qpn(&self, qpn: u32) {
        self.qps.remove(qpn);
    }

    /// Lets packets find `qp`.
    pub(crate) fn publish(&self, qp: &Arc<QpCtx>) -> Result {
        if qp.service != Service::Gsi {
            return self.qps.publish(qp.qpn, qp.clone());
        }
        add(&self.gsi, qp.clone())
    }

    /// Packets no longer find `qp`.
    pub(crate) fn withdraw(&self, qp: &Arc<QpCtx>) {
        if qp.service == Service::Gsi {
            remove(&self.gsi, qp);
        } else {
            self.qps.remove(qp.qpn);
        }
    }

    /// Adds a device.
    pub(crate) fn add_device(&self, dev: &Arc<DeviceCtx>) -> Result {
        add(&self.devices, dev.clone())
    }

    /// Removes a device.
    pub(crate) fn remove_device(&self, dev: &Arc<DeviceCtx>) {
        remove(&self.devices, dev);
    }

    /// Takes one received buffer: a packet or a train of them.
    ///
    /// Called in an RCU read side section: what the tables hand out stays valid.
    pub(crate) fn receive(&self, _guard: &rcu::Guard, skb: RxSkb) {
        let mut current: Option<Arc<QpCtx>> = None;
        // The packets of a train came together: one look at the clock does.
        let now = now_ns();
        skb.for_each_segment(|segment| {
            if let Err(reason) = self.deliver(now, segment, &mut current) {
                self.count_drop(segment, current.as_ref(), reason);
            }
        });
        if let Some(qp) = current {
            qp.as_arc_borrow().drive();
        }
    }

    fn count_drop(&self, segment: &RxSegment<'_>, qp: Option<&Arc<QpCtx>>, reason: DropReason) {
        if let Some(qp) = qp.filter(|qp| accepts_from(&qp.dev, segment)) {
            qp.dev.counters.drop(reason);
            return;
        }
        let devices = self.devices.lock();
        if let Some(dev) = devices.iter().find(|dev| accepts_from(dev, segment)) {
            dev.counters.drop(reason);
        }
    }

    /// QP1 of the device that `segment` came in by.
    fn find_gsi(&self, segment: &RxSegment<'_>) -> Option<Arc<QpCtx>> {
        let list = self.gsi.lock();
        list.iter()
            .find(|qp| accepts_from(&qp.dev, segment))
            .cloned()
    }

    /// Finds the QP, admits the packet and feeds it. `current` is the QP that the train so far
    /// was for; it is driven when the train goes on with another one.
    fn deliver(
        &self,
        now: u64,
        segment: &RxSegment<'_>,
        current: &mut Option<Arc<QpCtx>>,
    ) -> Result<(), DropReason> {
        let packet = Packet::parse(segment.head(), segment.len())?;
        let qpn = packet.bth().dest_qpn;
        let known = current
            .as_ref()
            .is_some_and(|qp| qp.qpn == qpn.get() && qpn != Qpn::GSI);
        if !known {
            let next = if qpn == Qpn::GSI {
                self.find_gsi(segment)
            } else {
                self.qps.get(qpn.get())
            };
            if let Some(old) = current.take() {
                old.as_arc_borrow().drive();
            }
            *current = next;
        }
        let qp = current.as_ref().ok_or(DropReason::NoQp)?;
        feed(qp, now, segment, packet)
    }
}

/// Appends to a list; allocates outside the lock.
fn add<T>(list: &SpinLockBh<KVec<Arc<T>>>, value: Arc<T>) -> Result {
    loop {
        let want = {
            let mut list = list.lock();
            if list.len() < list.capacity() {
                let pushed = list.push_within_capacity(value);
                return pushed.map_err(|_| ENOMEM);
            }
            list.len() + 8
        };
        let mut larger = KVec::with_capacity(want, GFP_KERNEL)?;
        let old = {
            let mut list = list.lock();
            if larger.capacity() > list.len() {
                for item in list.iter() {
                    let _ = larger.push_within_capacity(item.clone());
                }
                core::mem::replace(&mut *list, larger)
            } else {
                larger
            }
        };
        drop(old);
    }
}

/// Removes from a list; drops outside the lock.
fn remove<T>(list: &SpinLockBh<KVec<Arc<T>>>, value: &Arc<T>) {
    let removed = {
        let mut list = list.lock();
        let at = list.iter().position(|item| Arc::ptr_eq(item, value));
        at.and_then(|at| list.remove(at).ok())
    };
    drop(removed);
}

/// True if packets for `dev` may come in the way `segment` did: by its network device, or over
/// loopback to one of its addresses.
fn accepts_from(dev: &DeviceCtx, segment: &RxSegment<'_>) -> bool {
    dev.is_ingress(segment)
}

fn feed(
    qp: &QpCtx,
    now: u64,
    segment: &RxSegment<'_>,
    packet: Packet<'_>,
) -> Result<(), DropReason> {
    let dev = &qp.dev;
    if !accepts_from(dev, segment) {
        return Err(DropReason::BadPeer);
    }
    let mut all = Payload::from_slice(&[]);
    for piece in segment.pieces() {
        if !all.push(piece) {
            return Err(DropReason::BadLength);
        }
    }
    let path = Path {
        source: Gid(segment.source()),
        destination: Gid(segment.destination()),
    };
    let mut core = qp.core.lock();
    if core.dead {
        return Err(DropReason::NoQp);
    }
    match core.engine.state() {
        State::Rtr | State::Rts | State::Sqd | State::Sqe => {}
        State::Reset | State::Init | State::Err => return Err(DropReason::BadState),
    }
    let transport = match qp.service {
        Service::Rc => Transport::Rc,
        Service::Uc => Transport::Uc,
        Service::Ud | Service::Gsi => Transport::Ud,
    };
    let facts = QpFacts {
        transport,
        qpn: Qpn::new(qp.qpn),
        pkey: dev.pkey(core.pkey_index),
        qkey: core.engine.attrs.qkey,
        peer: core.peer,
        own: core.own,
    };
    let mut pkey_index = core.pkey_index;
    let in_table = |pkey: PKey| {
        let found = dev.find_pkey(pkey);
        pkey_index = found.unwrap_or(pkey_index);
        found.is_some()
    };
    let net = segment.net_hdr();
    let good = |packet: &Packet<'_>| icrc_matches(packet, net, &all);
    let admitted = admit(packet, &facts, &path, in_table, good)?;
    let packet = admitted.packet();
    let payload = all.slice(packet.payload_offset(), packet.payload_len());
    let (kind, ip) = match net.len() {
        28 => (NetKind::V4, 20),
        _ => (NetKind::V6, 40),
    };
    let meta = UdMeta {
        net: kind,
        ip_header: net.get(..ip).unwrap_or(&[]),
        pkey_index,
    };
    dev.counters.received(segment.len());
    qp.receive(&mut core, now, packet, &payload, &meta);
    Ok(())
}

/// Verifies the ICRC over everything but itself.
fn icrc_matches(packet: &Packet<'_>, net: &[u8], all: &Payload<'_>) -> bool {
    let end = packet.icrc_offset();
    let Some(bth) = packet.header_bytes().first_chunk::<{ Bth::LEN }>() else {
        return false;
    };
    let Some(body) = end.checked_sub(Bth::LEN) else {
        return false;
    };
    let mut found = [0u8; Packet::ICRC_LEN];
    if all.slice(end, found.len()).copy_to(&mut found) != found.len() {
        return false;
    }
    let rest = all.slice(Bth::LEN, body);
    icrc(&KernelCrc, net, bth, rest.pieces()) == found
}
