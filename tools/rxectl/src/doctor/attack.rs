// SPDX-License-Identifier: GPL-2.0
//! Signs of attacks and of unprotected packets: counters that grow while doctor observes them.

use super::Report;
use crate::device::Device;
use crate::host::Host;
use rxe_proto::drop::DropReason;
use rxe_proto::engine::backend::Count;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which the counters are observed.
const WATCH: Duration = Duration::from_millis(500);

/// Remedy for packets from hosts that are not the peer.
const FIX: &str = "tcpdump -n -i any udp port 4791 shows the packets: if they carry a peer's address but do \
    not come from it, have the network drop forged source addresses (BCP 38), or protect the traffic between \
    the two hosts by IPsec; what an attacker would have to guess is in SECURITY.md of the source";

/// Remedy for packets that arrived without the protection of IPsec.
const FIX_PLAIN: &str = "tcpdump -n -i any udp port 4791 shows their addresses: if they are a peer's, the two hosts \
    do not agree on what IPsec protects, or the peer has no key yet, and connections between them time out: compare \
    ip xfrm policy and ip xfrm state on both, and the log of the IKE daemon; if not, nothing has to be done: IPsec \
    keeps them out";

/// A counter that grows under attack.
struct Sign {
    counter: &'static str,
    /// Prefix of the finding while it grows.
    suspicion: &'static str,
    fix: &'static str,
    /// Minimum rate per second that counts as a sign.
    least: f64,
    /// Whether a nonzero value is reported even if it does not grow.
    reported_at_rest: bool,
    means: &'static str,
}

const ATTACK: &str = "under attack? ";

/// Returns the counters that grow during an attack.
fn signs() -> [Sign; 9] {
    let sure = |count: Count, means| Sign {
        counter: count.name(),
        suspicion: ATTACK,
        fix: FIX,
        least: 1.0,
        reported_at_rest: true,
        means,
    };
    let scan = |drop: DropReason, means| Sign {
        counter: drop.name(),
        suspicion: ATTACK,
        fix: FIX,
        least: 200.0,
        reported_at_rest: false,
        means,
    };
    [
        sure(
            Count::SuspectAck,
            "acknowledgements whose MSN does not match their PSN: forged, or the peer counts differently",
        ),
        sure(
            Count::SuspectNak,
            "NAKs whose MSN does not match their PSN: forged, or the peer counts differently",
        ),
        sure(
            Count::ImplausiblePsn,
            "requests further ahead than the peer can be: an attacker knows a QP number and guesses PSNs",
        ),
        sure(
            Count::DuplicateMismatch,
            "duplicate requests that differ from the original: an attacker guesses PSNs",
        ),
        Sign {
            counter: Count::SpuriousNak.name(),
            suspicion: ATTACK,
            fix: FIX,
            least: 5.0,
            reported_at_rest: false,
            means: "packets ahead of others that were not lost: guessed PSNs, or reordering in the network",
        },
        scan(
            DropReason::NoQp,
            "packets to QP numbers that do not exist: an attacker tries numbers",
        ),
        scan(
            DropReason::BadPeer,
            "packets to connected queue pairs that are not from their peers",
        ),
        scan(
            DropReason::BadQKey,
            "datagrams with wrong Q_Keys: an attacker tries keys",
        ),
        Sign {
            counter: DropReason::Policy.name(),
            suspicion: "",
            fix: FIX_PLAIN,
            least: 1.0,
            reported_at_rest: true,
            means: "packets that came unprotected where an IPsec policy requires ESP were dropped",
        },
    ]
}

/// Observes the counters of `devices` for [`WATCH`] and reports signs of an attack.
pub(super) fn examine(host: &Host, devices: &[Device], report: &mut Report) {
    let read = || -> Vec<Vec<Option<u64>>> {
        let of = |device: &Device| {
            let values = signs().map(|sign| device.counter(host, sign.counter));
            values.to_vec()
        };
        devices.iter().map(of).collect()
    };
    let before = read();
    let start = Instant::now();
    if before.iter().flatten().flatten().all(|value| *value == 0) {
        return;
    }
    thread::sleep(WATCH);
    let seconds = start.elapsed().as_secs_f64().max(1e-3);
    for ((device, before), now) in devices.iter().zip(before).zip(read()) {
        for ((sign, before), now) in signs().iter().zip(before).zip(now) {
            let (Some(before), Some(now)) = (before, now) else {
                continue;
            };
            let rate = now.saturating_sub(before) as f64 / seconds;
            let Sign {
                counter,
                suspicion,
                means,
                fix,
                ..
            } = sign;
            if rate >= sign.least {
                report.wrong(
                    &device.name,
                    format!("{suspicion}{counter} grows by {rate:.0}/s: {means}"),
                    *fix,
                );
            } else if sign.reported_at_rest && now > 0 {
                report.note(
                    &device.name,
                    format!("{counter} is {now}, and does not grow now: {means}"),
                    *fix,
                );
            }
        }
    }
}
