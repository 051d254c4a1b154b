// SPDX-License-Identifier: GPL-2.0
//! Counters of traffic and of protocol events: those of `rxe_proto::engine::backend::Count`, and
//! those of the driver's `Traffic`. Dropped packets are in [`super::drops`].

use super::{Entry, Look, CAPTURE, DECODE, DOCTOR, OTHER_DRIVER, QUEUE_PAIRS, RATE, WHO};
use crate::counters::TOO_LONG;

/// The same at the peer.
const BOTH: Look = (
    "rxectl counters DEV --watch 1",
    "On both hosts: losses show as sequence NAKs at the receiver and timeouts at the sender, and \
     drops at the receiver have a counter for each reason.",
);

/// The queues of this host.
const LOCAL_QUEUES: Look = (
    "tc -s qdisc show dev NETDEV; ip -s link show dev NETDEV",
    "Packets that the queues of this host dropped.",
);

/// Counters of single queue pairs.
const BY_QUEUE_PAIR: Look = (
    "rdma statistic qp set link DEV/1 auto type on",
    "Queue pairs created from now on get counters by their type: rdma statistic qp show link \
     DEV/1.",
);

/// Causes of counters that only show that there is traffic.
const TRAFFIC: &str = "Traffic: it grows while the device is used.";

/// The cause of most retransmissions.
const LOSS: &str = "The network loses or reorders packets, or a queue on the way is full.";

/// What forged packets of attackers who cannot see the connection do.
const FORGED: &str = "Forged packets: somebody guesses numbers of queue pairs and PSNs. rxectl \
                      doctor says whether it goes on.";

/// Why the MSN of a genuine peer does not match.
const OTHER_MSN: &str =
    "A peer that counts messages differently: msn_resync grows as well, and after three of those \
     the queue pair no longer checks the MSN.";

/// All counters but those of dropped packets, and one of `rdma_rxe`.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "sent_pkts",
        number: None,
        also: &[],
        reported: true,
        what: "Packets sent, retransmissions and acknowledgements included.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "sent_bytes",
        number: None,
        also: &[],
        reported: true,
        what: "Bytes of the packets sent, with the RoCE headers and the ICRC.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rcvd_pkts",
        number: None,
        also: &[],
        reported: true,
        what: "Packets received that passed all checks. Dropped ones are counted by reason.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rcvd_bytes",
        number: None,
        also: &[],
        reported: true,
        what: "Bytes of the packets received that passed all checks.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rcvd_without_icrc",
        number: None,
        also: &[],
        reported: true,
        what: "Packets received without an ICRC. They come from queue pairs of this kernel and have \
               not left its memory.",
        causes: &[
            "A connection over lo, veth or other devices without hardware, which needs no ICRC. \
             With the parameter same_host_icrc=1 of the module the packets have one.",
        ],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rcvd_merged",
        number: None,
        also: &[],
        reported: true,
        what: "Packets received with the payload of several, from queue pairs of this kernel.",
        causes: &[
            "A connection over lo, veth or other devices without hardware: a packet carries up to \
             64 KiB there. Each counts as several in rcvd_pkts. With the parameter \
             same_host_icrc=1 of the module there are none.",
        ],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rcvd_by_reference",
        number: None,
        also: &[],
        reported: true,
        what: "Packets received without their payload, which was copied from the sender's memory.",
        causes: &[
            "SENDs, WRITEs and READ responses of several packets between queue pairs of this \
             kernel: the payload is copied once instead of twice. With the parameter \
             same_host_copy=1 of the module there are none.",
        ],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "send_err",
        number: None,
        also: &[],
        reported: true,
        what: "Packets that were not sent. To a connection they are lost packets, which it \
               retransmits; messages of UC and UD are lost.",
        causes: &[
            "The queueing discipline of the network device was full.",
            "A firewall rule of this host drops or rejects outgoing packets.",
            "There is no route to the destination.",
            "IPsec: a policy requires ESP, and there is no key for the peer yet.",
            "The packet is too long for the path (counted as tx_too_long as well).",
            "The P_Key of the queue pair was removed from the table.",
        ],
        look: &[
            LOCAL_QUEUES,
            ("nft list ruleset", "Rules for outgoing packets to UDP port 4791."),
            (
                "ip xfrm policy; ip xfrm state",
                "Whether a policy applies to the peer, and has a key.",
            ),
            ("rxectl pkey list DEV", "The P_Keys in use."),
        ],
    },
    Entry {
        name: TOO_LONG,
        number: None,
        also: &[],
        reported: true,
        what: "Packets that were not sent because IPsec makes them longer than their path allows. \
               RC ends with IBV_WC_RETRY_EXC_ERR.",
        causes: &[
            "IPsec policies or keys were installed after the connection had been established with \
             a path MTU that leaves no room for them.",
            "The MTU of the network device or of the route was reduced.",
        ],
        look: &[
            DOCTOR,
            (
                "ip link show dev NETDEV",
                "The MTU. 84 bytes more are room for ESP, 124 in a tunnel.",
            ),
        ],
    },
    Entry {
        name: "link_downed",
        number: None,
        also: &[],
        reported: true,
        what: "How often the network device was set down or lost its carrier.",
        causes: &[
            "A cable, a transceiver or the other side of the link failed.",
            "Somebody set it down: ip link set NETDEV down, a network manager, or a change that \
             restarts it.",
        ],
        look: &[
            ("dmesg", "Messages of the network device."),
            ("rxectl status DEV", "The state of the port now."),
        ],
    },
    Entry {
        name: "out_of_seq_request",
        number: None,
        also: &[],
        reported: true,
        what: "Requests that arrived ahead of the expected PSN. RC asks for the missing packet \
               with a NAK; UC drops the message.",
        causes: &[
            LOSS,
            "rq_psn here is not the sq_psn of the peer.",
            "Some per lost packet are normal, because all that follow it are ahead.",
        ],
        look: &[BOTH, LOCAL_QUEUES, CAPTURE, DECODE],
    },
    Entry {
        name: "reference_gone",
        number: None,
        also: &[],
        reported: true,
        what: "Packets by reference whose payload the sender no longer granted access to: dropped.",
        causes: &[
            "The sender's queue pair failed or was destroyed, or its memory was deregistered, while \
             the packet was on its way between queue pairs of this kernel.",
        ],
        look: &[BOTH],
    },
    Entry {
        name: "kept_out_of_seq",
        number: None,
        also: &[],
        reported: true,
        what: "Packets of RC ahead of a missing one that were kept until it arrived.",
        causes: &[
            LOSS,
            "Some per lost packet are normal, because all that follow it are ahead.",
        ],
        look: &[BOTH, LOCAL_QUEUES],
    },
    Entry {
        name: "duplicate_request",
        number: None,
        also: &[],
        reported: true,
        what: "Requests of RC that had been executed before. They are acknowledged or answered \
               again, and not executed again.",
        causes: &[
            "The peer retransmitted because an acknowledgement or response was lost or late.",
            "A probe: a peer that receives nothing for some round trips sends its last packet \
             again. Some of these are normal.",
            LOSS,
            "The timeout of the peer is shorter than this host needs.",
        ],
        look: &[BOTH, CAPTURE, DECODE],
    },
    Entry {
        name: "send_rnr_err",
        number: None,
        also: &[],
        reported: true,
        what: "RNR NAKs sent: a message arrived, and no receive request was posted.",
        causes: &[
            "The program here posts receive requests too late, or too few.",
            "The program is slow, or waits for something else.",
        ],
        look: &[RATE, QUEUE_PAIRS],
    },
    Entry {
        name: "rcvd_rnr_err",
        number: None,
        also: &[],
        reported: true,
        what: "RNR NAKs received: the peer had no receive request posted.",
        causes: &[
            "The peer's program posts receive requests too late, or too few. If rnr_retry is \
             exhausted, the request completes with IBV_WC_RNR_RETRY_EXC_ERR.",
        ],
        look: &[
            (
                "rxectl qp DEV",
                "RNR: the retries left. Without a limit (rnr_retry 7) they stay at 7.",
            ),
            RATE,
        ],
    },
    Entry {
        name: "send_seq_err",
        number: None,
        also: &[],
        reported: true,
        what: "Sequence NAKs sent: an expected packet was missing.",
        causes: &[LOSS, FORGED],
        look: &[BOTH, LOCAL_QUEUES],
    },
    Entry {
        name: "rcvd_seq_err",
        number: None,
        also: &[],
        reported: true,
        what: "Sequence NAKs received: a packet did not reach the peer. It is sent again, with \
               those that followed.",
        causes: &[
            LOSS,
            "The peer dropped the packet, and counted why.",
            "sq_psn here is not the rq_psn of the peer.",
        ],
        look: &[BOTH, LOCAL_QUEUES],
    },
    Entry {
        name: "selective_repeat",
        number: None,
        also: &[],
        reported: true,
        what: "Sequence NAKs after which only the lost packets were sent again. The peer has kept \
               those that followed.",
        causes: &[LOSS],
        look: &[BOTH, LOCAL_QUEUES],
    },
    Entry {
        name: "implied_nak_seq_err",
        number: None,
        also: &[],
        reported: true,
        what: "Responses that were missing, as a later one arrived. The READ, ATOMIC, ATOMIC WRITE \
               or FLUSH is requested again.",
        causes: &[LOSS],
        look: &[BOTH, LOCAL_QUEUES],
    },
    Entry {
        name: "local_ack_timeout_err",
        number: None,
        also: &[],
        reported: true,
        what: "Acknowledgement timers that expired. No acknowledgement or response arrived in \
               time, and the packets were sent again.",
        causes: &[
            "The peer is gone, or its queue pair is in the error state.",
            "A firewall or a broken path: no packet arrives in one direction.",
            "The peer drops the packets, and counts why.",
            "The timeout of the queue pair is too short for the path. Below 8 ms the driver waits \
             up to four times as long.",
            LOSS,
        ],
        look: &[
            QUEUE_PAIRS,
            BOTH,
            (
                "ping PEER",
                "Whether the peer can be reached, and the round-trip time.",
            ),
        ],
    },
    Entry {
        name: "retry_exceeded_err",
        number: None,
        also: &[],
        reported: true,
        what: "Queue pairs that failed because no retry was left. Their oldest request completed \
               with IBV_WC_RETRY_EXC_ERR.",
        causes: &["Those of IBV_WC_RETRY_EXC_ERR."],
        look: &[
            (
                "rxectl explain IBV_WC_RETRY_EXC_ERR",
                "The causes, and what to look at.",
            ),
            BOTH,
        ],
    },
    Entry {
        name: "retry_rnr_exceeded_err",
        number: None,
        also: &[],
        reported: true,
        what: "Queue pairs that failed because the peer had no receive request for too long. Their \
               oldest request completed with IBV_WC_RNR_RETRY_EXC_ERR.",
        causes: &["Those of IBV_WC_RNR_RETRY_EXC_ERR."],
        look: &[
            (
                "rxectl explain IBV_WC_RNR_RETRY_EXC_ERR",
                "The causes, and what to look at.",
            ),
            RATE,
        ],
    },
    Entry {
        name: "unmatched_response",
        number: None,
        also: &[],
        reported: true,
        what: "Acknowledgements and responses for packets that are not in flight. They are \
               ignored.",
        causes: &[
            "Late duplicates after a retransmission: harmless.",
            "First PSNs that the two sides do not agree on.",
            FORGED,
        ],
        look: &[BOTH, CAPTURE, DECODE],
    },
    Entry {
        name: "no_receive_buffer",
        number: None,
        also: &[],
        reported: true,
        what: "Messages that were dropped because no receive request, or one too short, was \
               posted. This is for UC, UD and RAW_PACKET. RC sends an RNR NAK instead \
               (send_rnr_err), or refuses the message.",
        causes: &[
            "The program posts receive requests too late, or too few for the rate of messages.",
            "UD: a receive buffer needs 40 bytes more than the message, for the network header.",
            "RAW_PACKET: every queue pair receives every frame of the network device.",
        ],
        look: &[RATE, BY_QUEUE_PAIR, QUEUE_PAIRS],
    },
    Entry {
        name: "unexpected_packet",
        number: None,
        also: &[],
        reported: true,
        what: "Packets that the state or the type of the queue pair does not accept.",
        causes: &[
            "UC: a message of which an earlier packet was lost, or a request without the right, \
             key or length for it. UC has no NAK, so the message is dropped silently.",
            "An acknowledgement or a response that belongs to no request, or for a queue pair in \
             RTR.",
            "A peer whose implementation is faulty, or forged packets.",
        ],
        look: &[RATE, QUEUE_PAIRS, CAPTURE, DECODE],
    },
    Entry {
        name: "resp_remote_access_err",
        number: None,
        also: &[],
        reported: true,
        what: "Requests of peers that were refused because they may not access the memory. The \
               connection ends: the peer's request completes with IBV_WC_REM_ACCESS_ERR.",
        causes: &["Those of IBV_WC_REM_ACCESS_ERR, on this side."],
        look: &[
            (
                "rxectl explain IBV_WC_REM_ACCESS_ERR",
                "The causes, and what to look at.",
            ),
            (
                "rxectl mr DEV",
                "As root: the keys, lengths and rights of the regions.",
            ),
        ],
    },
    Entry {
        name: "resp_invalid_request_err",
        number: None,
        also: &[],
        reported: true,
        what: "Requests of peers that were refused as invalid. The connection ends: the peer's \
               request completes with IBV_WC_REM_INV_REQ_ERR.",
        causes: &["Those of IBV_WC_REM_INV_REQ_ERR, on this side."],
        look: &[
            (
                "rxectl explain IBV_WC_REM_INV_REQ_ERR",
                "The causes, and what to look at.",
            ),
            QUEUE_PAIRS,
        ],
    },
    Entry {
        name: "np_ecn_marked_roce_packets",
        number: None,
        also: &[],
        reported: true,
        what: "Packets received that a router or a queue had marked as having met congestion (CE).",
        causes: &[
            "A queue on the path grows, and its discipline marks instead of dropping: congestion \
             control at work.",
        ],
        look: &[
            (
                "rxectl counters DEV --watch 1",
                "np_cnp_sent here, rp_cnp_handled at the sender, which should follow.",
            ),
            LOCAL_QUEUES,
        ],
    },
    Entry {
        name: "np_cnp_sent",
        number: None,
        also: &[],
        reported: true,
        what: "Congestion notification packets (CNPs) sent to peers whose packets were marked. \
               Each queue pair sends one in 50 microseconds at most.",
        causes: &["A queue on the path from the peer grows: congestion control at work."],
        look: &[BOTH],
    },
    Entry {
        name: "rp_cnp_handled",
        number: None,
        also: &[],
        reported: true,
        what: "Congestion notification packets (CNPs) received that reduced the rate of a queue \
               pair.",
        causes: &[
            "A queue on the path to the peer grows: congestion control at work. The rate recovers \
             when no more of them arrive.",
        ],
        look: &[
            (
                "rdma -dd resource show qp link DEV",
                "drv_bytes_per_ms: the rate, while it is limited.",
            ),
            BOTH,
        ],
    },
    Entry {
        name: "rp_cnp_ignored",
        number: None,
        also: &[],
        reported: true,
        what: "Congestion notification packets (CNPs) that cannot be genuine, and were ignored.",
        causes: &[
            "They arrived while the queue pair had sent nothing, more of them than it had sent \
             packets, or without BECN: forged.",
            "A peer that sends several of them for one marked packet.",
        ],
        look: &[RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "page_fault_dropped",
        number: None,
        also: &[],
        reported: true,
        what: "Packets dropped because too many waited for page faults, or for room in a completion \
               queue, already. Frames of RAW_PACKET never wait: they are dropped if their memory \
               is not present or the queue has no room. RC retransmits its packets.",
        causes: &[
            "A process that has filled its completion queue consumes nothing, although messages \
             arrive.",
            "Memory with on-demand paging is swapped out, or on a slow file system (FUSE, NFS), or \
             userfaultfd handles its page faults.",
            "Memory is received into for the first time: touch it before, or prefetch it with \
             rdma-core 59 or newer.",
            "The host has no memory left for packets that wait.",
        ],
        look: &[
            RATE,
            ("vmstat 1", "Swapping (si, so) and tasks that wait (b)."),
            ("rxectl mr DEV", "The regions."),
        ],
    },
    Entry {
        name: "rdma_sends",
        number: None,
        also: &[],
        reported: true,
        what: "SEND requests that completed, successfully or in error.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rdma_recvs",
        number: None,
        also: &[],
        reported: true,
        what: "Receive requests that completed successfully.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "completer_retry_err",
        number: None,
        also: &[],
        reported: true,
        what: "Retransmissions that used up a retry of their queue pair.",
        causes: &[
            LOSS,
            "The peer does not respond: see local_ack_timeout_err.",
        ],
        look: &[
            (
                "rxectl qp DEV",
                "RETRIES: how many are left. An acknowledgement restores them.",
            ),
            BOTH,
        ],
    },
    Entry {
        name: "suspect_ack",
        number: None,
        also: &[],
        reported: true,
        what: "Acknowledgements that were ignored: their MSN does not match their PSN.",
        causes: &[
            FORGED,
            OTHER_MSN,
        ],
        look: &[DOCTOR, RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "suspect_nak",
        number: None,
        also: &[],
        reported: true,
        what: "NAKs that were ignored: their MSN does not match their PSN.",
        causes: &[
            FORGED,
            OTHER_MSN,
        ],
        look: &[DOCTOR, RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "suspect_mark",
        number: None,
        also: &[],
        reported: true,
        what: "Packets that were dropped because their reserved bits are not those of the \
               connection. From then on the connection does not use these bits \
               for selective repeat. The PSN was the expected one.",
        causes: &[
            "A peer that uses reserved bits for something else. The connection works.",
            "A packet that was forged with a correct PSN: very unlikely.",
        ],
        look: &[RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "msn_resync",
        number: None,
        also: &[],
        reported: true,
        what: "How often the MSN of a peer was taken over. It did not match the PSN of an \
               acknowledgement, but that was exactly the expected one.",
        causes: &[
            "A peer that counts messages differently. The connection works.",
            "An acknowledgement that was forged with a correct PSN: very unlikely.",
        ],
        look: &[RATE],
    },
    Entry {
        name: "implausible_psn",
        number: None,
        also: &[],
        reported: true,
        what: "Requests that were dropped: their PSN is further ahead than the peer can have sent.",
        causes: &[
            FORGED,
            "rq_psn here is not the sq_psn of the peer, by far.",
        ],
        look: &[DOCTOR, RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "spurious_nak",
        number: None,
        also: &[],
        reported: true,
        what: "Sequence NAKs for packets that had not been lost. For a second the queue pair \
               delays further ones.",
        causes: &[
            "The network reorders packets, such as over several paths.",
            FORGED,
        ],
        look: &[DOCTOR, BOTH, CAPTURE, DECODE],
    },
    Entry {
        name: "duplicate_mismatch",
        number: None,
        also: &[],
        reported: true,
        what: "Duplicates of READs, ATOMICs and the like that differ from the original. They are \
               dropped, and so are those whose original is no longer stored. ATOMIC WRITE and \
               FLUSH are counted, too.",
        causes: &[
            "A duplicate that arrived very late: the responder resources serve newer requests now.",
            FORGED,
        ],
        look: &[DOCTOR, RATE, CAPTURE, DECODE],
    },
    Entry {
        name: "tx_gso_fallback",
        number: None,
        also: &[],
        reported: true,
        what: "How often a queue pair stopped using segmentation offload (GSO). Of its buffers \
               only the first packet of each had arrived, or none. It sends single packets for a \
               minute, and twice as long each further time, up to 64 minutes.",
        causes: &[
            "A network device that segments does not increment the IPv4 identification, so the \
             ICRC of the following packets is wrong.",
            "A network device takes the buffers for datagrams to be fragmented, as the adapter igb \
             that QEMU emulates does.",
            "Something on the path drops packets that follow each other closely.",
        ],
        look: &[
            DOCTOR,
            (
                "rxectl counters DEV",
                "At the peer: rx_bad_icrc grows if the packets are damaged.",
            ),
            (
                "ethtool -K NETDEV tx-udp-segmentation off",
                "If the counter no longer grows, the network device is the cause.",
            ),
        ],
    },
    Entry {
        name: "unreadable_memory",
        number: None,
        also: &[],
        reported: true,
        what: "Accesses that a region permits, to memory that could not be read or written. The \
               request completes with IBV_WC_LOC_PROT_ERR, or that of the peer with \
               IBV_WC_REM_ACCESS_ERR.",
        causes: &[
            "The memory is damaged (a machine check).",
            "The memory is no longer in the kernel's linear map.",
        ],
        look: &[
            (
                "dmesg | grep -i -e 'memory failure' -e mce",
                "Pages that the kernel found damaged.",
            ),
            RATE,
        ],
    },
    Entry {
        name: "rx_read_requests",
        number: None,
        also: &[],
        reported: true,
        what: "READ requests of peers that were accepted.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rx_write_requests",
        number: None,
        also: &[],
        reported: true,
        what: "WRITE requests of peers that were executed, with and without immediate data.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "rx_atomic_requests",
        number: None,
        also: &[],
        reported: true,
        what: "ATOMIC and ATOMIC WRITE requests of peers that were executed.",
        causes: &[TRAFFIC],
        look: &[RATE, BY_QUEUE_PAIR],
    },
    Entry {
        name: "ack_deferred",
        number: None,
        also: &[],
        reported: false,
        what: "A counter of rdma_rxe. This driver does not have it: it counts hops between work \
               queues of rdma_rxe.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
];
