// SPDX-License-Identifier: GPL-2.0
//! Reasons of dropped packets: the counters of `rxe_proto::drop::DropReason`, and that of the
//! egress guard.

use super::{Entry, CAPTURE, DECODE, DOCTOR, PKEYS, QUEUE_PAIRS, RATE};
use crate::counters::GUARD;

/// Where packets come from that are damaged or malformed.
const DAMAGED: &str = "A peer whose implementation is faulty, or a program that forges packets.";

/// Why late packets arrive.
const LATE: &str = "A few when connections end: packets of the peer that were in flight.";

/// All drop reasons.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "rx_too_short",
        number: None,
        also: &[],
        reported: true,
        what: "A datagram to the RoCE port was shorter than its headers and the ICRC.",
        causes: &[
            "A program that sends something other than RoCE to UDP port 4791, such as a port scan.",
            DAMAGED,
        ],
        look: &[RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "rx_bad_version",
        number: None,
        also: &[],
        reported: true,
        what: "The version of the transport header was not 0.",
        causes: &[
            "A program that sends something other than RoCE to UDP port 4791, such as a port scan.",
            DAMAGED,
        ],
        look: &[RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "rx_bad_length",
        number: None,
        also: &[],
        reported: true,
        what: "The payload or the pad of a packet had a length that its opcode does not allow.",
        causes: &[
            "Payload and pad are no multiple of four bytes, or the pad is longer than the payload.",
            "A datagram (UD) is longer than the MTU of the port: the sender has a larger one.",
            "A packet that carries no data, such as an acknowledgement or a READ request, has \
             some.",
            DAMAGED,
        ],
        look: &[
            (
                "rxectl status DEV",
                "On both hosts: the active MTU, which should be the same.",
            ),
            CAPTURE,
            DECODE,
        ],
    },
    Entry {
        name: "rx_unknown_opcode",
        number: None,
        also: &[],
        reported: true,
        what: "The opcode belongs to a transport that the driver does not have, or is reserved and not of RC.",
        causes: &[
            "A peer that uses XRC or reliable datagrams.",
            "A program that sends something other than RoCE to UDP port 4791.",
        ],
        look: &[RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "rx_wrong_transport",
        number: None,
        also: &[],
        reported: true,
        what: "The opcode belongs to another transport than the queue pair.",
        causes: &[
            "The two sides created queue pairs of different types, such as RC and UC.",
            "The peer has the wrong number of a queue pair.",
        ],
        look: &[
            (
                "rxectl qp DEV",
                "On both hosts: types and numbers of the queue pairs.",
            ),
            CAPTURE,
            DECODE,
        ],
    },
    Entry {
        name: "rx_no_qp",
        number: None,
        also: &[],
        reported: true,
        what: "There is no queue pair with the number in the packet.",
        causes: &[
            LATE,
            "The peer does not know that the queue pair or the process here is gone, and \
             retransmits: it ends with IBV_WC_RETRY_EXC_ERR there.",
            "The two sides exchanged a wrong number.",
            "Many, from one address: somebody tries numbers.",
        ],
        look: &[RATE, QUEUE_PAIRS, DOCTOR, CAPTURE, DECODE],
    },
    Entry {
        name: "rx_not_ready",
        number: None,
        also: &[],
        reported: true,
        what: "The queue pair is in RESET or INIT, and cannot receive yet.",
        causes: &[
            "The peer sends before this side is in RTR. RC and the connection manager make up for \
             it by retransmitting; messages of UC and UD are lost.",
            "The program never moved the queue pair to RTR.",
        ],
        look: &[QUEUE_PAIRS, RATE],
    },
    Entry {
        name: "rx_bad_state",
        number: None,
        also: &[],
        reported: true,
        what: "The queue pair is in the error state, and receives nothing.",
        causes: &[
            "It failed, or the program stopped it, and the peer still sends. If it failed, a \
             completion or an event says why.",
            "The peer has not been told to disconnect: it ends with IBV_WC_RETRY_EXC_ERR.",
        ],
        look: &[QUEUE_PAIRS, RATE],
    },
    Entry {
        name: "rx_bad_pkey",
        number: None,
        also: &["bad_pkey_cntr"],
        reported: true,
        what: "The P_Key of the packet does not match that of the queue pair. The packet was \
               intact: damaged ones are counted as rx_bad_icrc. bad_pkey_cntr of the port shows \
               the same number.",
        causes: &[
            "The peer is in another partition, or both sides are limited members of it.",
            "An entry of the P_Key table was changed or emptied while the queue pair uses it.",
            "QP1: no entry of the table matches, so the peer cannot connect at all.",
        ],
        look: &[PKEYS, RATE],
    },
    Entry {
        name: "rx_bad_qkey",
        number: None,
        also: &["qkey_viol_cntr"],
        reported: true,
        what: "The Q_Key of a datagram is not that of the queue pair. The packet was intact: \
               damaged ones are counted as rx_bad_icrc. qkey_viol_cntr of the port shows the same \
               number, unless it was reset.",
        causes: &[
            "The sender uses another Q_Key than the receiver set in INIT.",
            "The sender passed a Q_Key with the most significant bit: then its queue pair's own \
             Q_Key is sent.",
            "Many, from one address: somebody tries keys.",
        ],
        look: &[RATE, CAPTURE, DECODE, DOCTOR],
    },
    Entry {
        name: "rx_bad_peer",
        number: None,
        also: &[],
        reported: true,
        what: "The packet does not belong to the connection. It does not come from the address of \
               the peer, is not for that of this side, or (UD, too) arrived by a network device \
               that does not belong to the link.",
        causes: &[
            "The two sides do not agree on their GIDs: one uses another source address than the \
             other expects. Several addresses on one network device are the usual reason.",
            "Address translation (NAT) on the path.",
            "The packet arrived by another network device than that of the link: two links in one \
             network, or an asymmetric route.",
            "Forged packets.",
        ],
        look: &[
            (
                "rxectl status DEV",
                "On both hosts: the GIDs. Each side must use the address that the other expects.",
            ),
            (
                "ip route get PEER",
                "The network device and the source address for the peer.",
            ),
            CAPTURE,
            DECODE,
            DOCTOR,
        ],
    },
    Entry {
        name: "rx_bad_icrc",
        number: None,
        also: &[],
        reported: true,
        what: "The ICRC of the packet is wrong.",
        causes: &[
            "The packet was damaged on the path.",
            "A network device that segments the sender's buffers does not increment the IPv4 \
             identification, or fragments the buffers: all but the first packets of each buffer are \
             affected, or all. RC notices \
             (tx_gso_fallback at the sender), UC and UD do not.",
            "Something on the path changes headers that the ICRC covers, such as NAT.",
            "The peer computes the ICRC differently.",
        ],
        look: &[
            RATE,
            CAPTURE,
            (
                "rxectl decode FILE.pcap",
                "Which packets are bad. In a capture of the receiver, all but the first of a row \
                 hint at segmentation.",
            ),
            (
                "ethtool -K NETDEV tx-udp-segmentation off",
                "At the sender: if that helps, its network device is the cause.",
            ),
        ],
    },
    Entry {
        name: "rx_no_mcast_group",
        number: None,
        also: &[],
        reported: true,
        what: "No queue pair is attached to the multicast group.",
        causes: &[
            "The last member has left, and the network still delivers the group.",
            "Another program of this host is a member of the same IP group.",
            "The program joined the group by an address, but did not attach its queue pair.",
        ],
        look: &[
            (
                "ip maddress show dev NETDEV",
                "The groups that the network device is a member of.",
            ),
            RATE,
        ],
    },
    Entry {
        name: "rx_no_gid",
        number: None,
        also: &[],
        reported: true,
        what: "A datagram (UD, QP1) is for an address that is no GID of the device. Also counted: \
               those to a multicast address that name a single queue pair.",
        causes: &[
            "The address belongs to another network device of this host.",
            "The address was removed, and the sender does not know yet.",
            "The datagram was sent to a broadcast address.",
        ],
        look: &[
            ("rxectl status DEV", "The GIDs of the device."),
            (
                "ip address",
                "Which network device has the address that the peer uses.",
            ),
            CAPTURE,
        ],
    },
    Entry {
        name: "rx_policy_refused",
        number: None,
        also: &[],
        reported: true,
        what: "The packet came unprotected although an IPsec policy of this host requires ESP.",
        causes: &[
            "The peer has no policy for this host, or no key yet.",
            "The policies of the two hosts do not agree on addresses or ports.",
            "Forged packets: nothing has to be done then, IPsec keeps them out.",
        ],
        look: &[
            DOCTOR,
            (
                "ip xfrm policy; ip xfrm state",
                "On both hosts: the policies and the keys. The output contains the keys: do not \
                 publish it.",
            ),
        ],
    },
    Entry {
        name: GUARD,
        number: None,
        also: &[],
        reported: true,
        what: "A process of this host without CAP_NET_RAW tried to send a datagram to UDP port \
               4791. Its call failed with EPERM. All devices of the network namespace report the \
               same number.",
        causes: &[
            "A program that implements RoCE itself, or a packet generator, runs without \
             CAP_NET_RAW.",
            "A local user tries to forge packets of the connections of others.",
        ],
        look: &[
            (
                "dmesg | grep 'UDP port 4791 refused'",
                "User, process and its name, at most five times a minute.",
            ),
            (
                "modinfo -p rxe_rs",
                "egress_guard=0 switches the guard off, for all local users.",
            ),
        ],
    },
];
