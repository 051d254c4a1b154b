// SPDX-License-Identifier: GPL-2.0
//! Counters of a device: drop reasons, protocol events and traffic, per CPU and summed when read.

use crate::device::{
    DeviceCtx,
    RxeDevice, //
};
use kernel::{
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};
use rxe_kapi::{
    net::tx::TxOutcome,
    rdma::counter::QpCounter, //
};
use rxe_proto::{
    drop::DropReason,
    engine::backend::Count, //
};

/// Traffic of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Traffic {
    /// Packets sent.
    TxPackets,
    /// Bytes sent, RoCE headers and ICRC included.
    TxBytes,
    /// Packets received and admitted.
    RxPackets,
    /// Bytes received and admitted.
    RxBytes,
    /// Packets that the network stack failed to send.
    TxErrors,
    /// Of these, packets longer than the path MTU, including what IPsec adds.
    TxTooLong,
    /// Of the packets received, those that had no ICRC because they have not left the memory of
    /// this kernel.
    RxWithoutIcrc,
    /// Of these, those that had the payload of several.
    RxMerged,
    /// Packets by reference, whose payload was copied from the memory of the sender.
    RxByReference,
    /// How often the network device was set down or lost its carrier.
    LinkDowned,
    /// Datagrams to the RoCE port that the guard dropped because the sender lacks permission.
    /// Counted by the namespace's [endpoint](rxe_kapi::net::udp_tunnel::UdpEndpoint).
    Refused,
}

impl Traffic {
    const NAMES: [&'static str; 11] = [
        "sent_pkts",
        "sent_bytes",
        "rcvd_pkts",
        "rcvd_bytes",
        "send_err",
        "tx_too_long",
        "rcvd_without_icrc",
        "rcvd_merged",
        "rcvd_by_reference",
        "link_downed",
        "egress_guard_drops",
    ];

    const fn index(self) -> usize {
        match self {
            Self::TxPackets => 0,
            Self::TxBytes => 1,
            Self::RxPackets => 2,
            Self::RxBytes => 3,
            Self::TxErrors => 4,
            Self::TxTooLong => 5,
            Self::RxWithoutIcrc => 6,
            Self::RxMerged => 7,
            Self::RxByReference => 8,
            Self::LinkDowned => 9,
            Self::Refused => 10,
        }
    }
}

const TRAFFIC: usize = Traffic::NAMES.len();
const EVENTS: usize = Count::COUNT;
const DROPS: usize = DropReason::COUNT;

/// Number of counters.
const LEN: usize = TRAFFIC + EVENTS + DROPS;

/// Names of all counters, in the order of [`Counters::read`].
pub(crate) const NAMES: [&str; LEN] = {
    let mut names = [""; LEN];
    let mut i = 0;
    while i < TRAFFIC {
        names[i] = Traffic::NAMES[i];
        i += 1;
    }
    while i < TRAFFIC + EVENTS {
        names[i] = Count::ALL[i - TRAFFIC].name();
        i += 1;
    }
    while i < LEN {
        names[i] = DropReason::ALL[i - TRAFFIC - EVENTS].name();
        i += 1;
    }
    names
};

/// The counters that the packets of a queue pair are added to: the device's and, if it is bound to
/// one, that counter.
#[derive(Clone, Copy)]
pub(crate) struct CounterSet<'a> {
    pub(crate) dev: &'a DeviceCtx,
    pub(crate) bound: Option<&'a Counters>,
}

impl CounterSet<'_> {
    /// Runs `f` on each of them.
    #[inline]
    pub(crate) fn each(&self, f: impl Fn(&Counters)) {
        f(&self.dev.counters);
        if let Some(bound) = self.bound {
            f(&self.dev.bound_counters);
            f(bound);
        }
    }
}

impl QpCounter for Counters {
    type Device = RxeDevice;

    fn create(_dev: &Arc<DeviceCtx>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self::new()?, GFP_KERNEL_ACCOUNT)?)
    }

    fn read(&self, to: &mut [u64]) {
        for (index, to) in to.iter_mut().enumerate().take(LEN) {
            *to = self.sum(index);
        }
    }
}

/// The counters of one CPU, on cache lines of their own.
#[repr(align(64))]
struct Shard([Atomic<u64>; LEN]);

/// The counters of a device.
pub(crate) struct Counters {
    shards: KVVec<Shard>,
    /// Q_Key violations at the last reset.
    qkey_base: Atomic<u64>,
}

impl Counters {
    /// Creates counters that are all zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let count = usize::try_from(nr_cpu_ids())?;
        let mut shards = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            shards.push(Shard([const { Atomic::new(0) }; LEN]), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            shards,
            qkey_base: Atomic::new(0),
        })
    }

    #[inline]
    fn add(&self, index: usize, n: u64) {
        // If the task migrates in between, the count only goes to another shard.
        let cpu = usize::try_from(CpuId::current().as_u32()).unwrap_or(0);
        if let Some(counter) = self.shards.get(cpu).and_then(|shard| shard.0.get(index)) {
            counter.add(n, Relaxed);
        }
    }

    fn sum(&self, index: usize) -> u64 {
        let each = self.shards.iter().filter_map(|shard| shard.0.get(index));
        each.fold(0, |sum, counter| sum.wrapping_add(counter.load(Relaxed)))
    }

    /// Counts a dropped packet.
    #[inline]
    pub(crate) fn drop(&self, reason: DropReason) {
        self.add(TRAFFIC + EVENTS + reason.index(), 1);
    }

    /// Counts a protocol event.
    #[inline]
    pub(crate) fn count(&self, what: Count) {
        self.add(TRAFFIC + what.index(), 1);
    }

    /// Counts traffic.
    #[inline]
    pub(crate) fn traffic(&self, what: Traffic, n: u64) {
        if n != 0 {
            self.add(what.index(), n);
        }
    }

    /// Counts a batch passed to the network stack.
    #[inline]
    pub(crate) fn sent(&self, outcome: &TxOutcome) {
        let wide = |n: usize| u64::try_from(n).unwrap_or(0);
        self.traffic(Traffic::TxPackets, wide(outcome.packets));
        self.traffic(Traffic::TxBytes, wide(outcome.bytes));
        self.traffic(Traffic::TxErrors, wide(outcome.dropped));
        self.traffic(Traffic::TxTooLong, wide(outcome.too_long));
    }

    /// Counts admitted packets of `bytes` in all.
    #[inline]
    pub(crate) fn received(&self, packets: usize, bytes: usize) {
        let wide = |n: usize| u64::try_from(n).unwrap_or(0);
        self.traffic(Traffic::RxPackets, wide(packets));
        self.traffic(Traffic::RxBytes, wide(bytes));
    }

    /// Returns the number of packets dropped for their P_Key.
    pub(crate) fn bad_pkey(&self) -> u64 {
        self.sum(TRAFFIC + EVENTS + DropReason::BadPKey.index())
    }

    /// Returns the number of packets dropped for their Q_Key since the last reset.
    pub(crate) fn bad_qkey(&self) -> u64 {
        let all = self.sum(TRAFFIC + EVENTS + DropReason::BadQKey.index());
        all.wrapping_sub(self.qkey_base.load(Relaxed))
    }

    /// Resets the count of Q_Key violations.
    pub(crate) fn reset_bad_qkey(&self) {
        self.qkey_base.store(
            self.sum(TRAFFIC + EVENTS + DropReason::BadQKey.index()),
            Relaxed,
        );
    }

    /// Returns the number of damaged packets, which failed parsing or the ICRC check.
    pub(crate) fn damaged(&self) -> u64 {
        use DropReason::{
            BadIcrc,
            BadLength,
            BadVersion,
            TooShort,
            UnknownOpcode, //
        };
        [TooShort, BadVersion, BadLength, UnknownOpcode, BadIcrc]
            .into_iter()
            .fold(0, |sum, reason| {
                sum.wrapping_add(self.sum(TRAFFIC + EVENTS + reason.index()))
            })
    }

    /// Returns the total of one kind of traffic.
    pub(crate) fn total(&self, what: Traffic) -> u64 {
        self.sum(what.index())
    }

    /// Stores a value that is counted elsewhere into what [`read_without`](Self::read_without)
    /// filled in.
    pub(crate) fn put(to: &mut [u64], what: Traffic, n: u64) {
        if let Some(to) = to.get_mut(what.index()) {
            *to = n;
        }
    }

    /// Writes all sums to `to`, less those of `others`, whose counts are included here.
    pub(crate) fn read_without(&self, others: &Self, to: &mut [u64]) {
        for (index, to) in to.iter_mut().enumerate().take(LEN) {
            let others = others.sum(index);
            *to = self.sum(index).saturating_sub(others);
        }
    }
}
