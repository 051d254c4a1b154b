// SPDX-License-Identifier: GPL-2.0
//! Whether somebody is trying numbers or sends what IPsec should protect: which counters grow while
//! doctor looks on.

use super::Report;
use crate::device::Device;
use crate::host::Host;
use rxe_proto::drop::DropReason;
use rxe_proto::engine::backend::Count;
use std::thread;
use std::time::{Duration, Instant};

/// For how long the counters are watched.
const WATCH: Duration = Duration::from_millis(500);

/// What to do about packets from strangers.
const FIX: &str = "rxectl capture shows the packets: if they carry a peer's address but do not come from it, \
    have the network drop forged source addresses (BCP 38), or protect the traffic between the two hosts \
    by IPsec; what an attacker would have to guess is in SECURITY.md";

/// What to do about packets that came without the protection of IPsec.
const FIX_PLAIN: &str = "rxectl capture shows their addresses: if they are a peer's, the two hosts do not agree on \
    what IPsec protects, or the peer has no key yet, and connections between them time out: compare ip xfrm policy \
    and ip xfrm state on both, and the log of the IKE daemon; if not, nothing has to be done: IPsec keeps them out";

/// A counter that packets from strangers move.
struct Sign {
    counter: &'static str,
    /// Put before what is found while it grows.
    suspicion: &'static str,
    fix: &'static str,
    /// Growth in a second from which it is a sign.
    least: f64,
    /// Whether it is worth a word if it has stopped growing.
    lasting: bool,
    means: &'static str,
}

const ATTACK: &str = "under attack? ";

fn signs() -> [Sign; 9] {
    let sure = |count: Count, means| Sign {
        counter: count.name(),
        suspicion: ATTACK,
        fix: FIX,
        least: 1.0,
        lasting: true,
        means,
    };
    let scan = |drop: DropReason, means| Sign {
        counter: drop.as_str(),
        suspicion: ATTACK,
        fix: FIX,
        least: 200.0,
        lasting: false,
        means,
    };
    [
        sure(
            Count::SuspectAck,
            "acknowledgements whose MSN does not go with their PSN: forged, or a peer that counts otherwise",
        ),
        sure(
            Count::SuspectNak,
            "NAKs whose MSN does not go with their PSN: forged, or a peer that counts otherwise",
        ),
        sure(
            Count::ImplausiblePsn,
            "requests further ahead than a peer can be: somebody knows the number of a queue pair and guesses PSNs",
        ),
        sure(
            Count::DuplicateMismatch,
            "repeated requests that name something else than the original: somebody guesses PSNs",
        ),
        Sign {
            counter: Count::SpuriousNak.name(),
            suspicion: ATTACK,
            fix: FIX,
            least: 5.0,
            lasting: false,
            means: "packets ahead of others that were not lost: guessed PSNs, or a network that changes the order",
        },
        scan(
            DropReason::NoQp,
            "packets for numbers that no queue pair has: somebody tries them",
        ),
        scan(
            DropReason::BadPeer,
            "packets for connections that are not from their peers",
        ),
        scan(
            DropReason::BadQKey,
            "datagrams with wrong Q_Keys: somebody tries them",
        ),
        Sign {
            counter: DropReason::Policy.as_str(),
            suspicion: "",
            fix: FIX_PLAIN,
            least: 1.0,
            lasting: true,
            means: "packets that came unprotected where an IPsec policy requires ESP were dropped",
        },
    ]
}

/// Watches the counters of `devices` for a moment and reports those that strangers seem to move.
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
            } else if sign.lasting && now > 0 {
                report.note(
                    &device.name,
                    format!("{counter} is {now}, and does not grow now: {means}"),
                    *fix,
                );
            }
        }
    }
}
