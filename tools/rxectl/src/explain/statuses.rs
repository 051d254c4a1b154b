// SPDX-License-Identifier: GPL-2.0
//! Completion statuses. The numbers are those of `enum ibv_wc_status`, and the texts those of
//! `ibv_wc_status_str` and, where it differs, of the kernel.

use super::{Entry, Look, CAPTURE, DECODE, LIMITS, OTHER_DRIVER, QUEUE_PAIRS, STATUS_OF_BOTH, WHO};

/// The debug message about a request that completes in error.
const FAILED: Look = (
    "echo 'module rxe_rs +p' >/sys/kernel/debug/dynamic_debug/control; dmesg -w",
    "The kernel log names the queue pair, its queue and the status of requests that complete in \
     error. Flushed ones are left out, so the first line is that of the cause.",
);

/// What a peer counts that refuses requests.
const PEER_REFUSES: Look = (
    "rxectl counters DEV --watch 1",
    "At the peer: resp_invalid_request_err or resp_remote_access_err grows with each request that \
     it refuses.",
);

/// The regions of a host.
const REGIONS: Look = (
    "rxectl mr DEV",
    "The regions, their lengths and rights; as root also their keys. Compare them with what the \
     request named.",
);

/// All completion statuses, in the order of their numbers.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "IBV_WC_SUCCESS",
        number: Some(0),
        also: &["success"],
        reported: true,
        what: "The request completed.",
        causes: &[
            "RC: the peer has acknowledged the SEND or WRITE, or the response to the READ, ATOMIC, \
             ATOMIC WRITE or FLUSH has arrived.",
            "UC, UD and RAW_PACKET: the last packet was passed on for transmission. That does not \
             say that anybody received it.",
        ],
        look: &[(
            "rxectl counters DEV --watch 1",
            "rdma_sends and rdma_recvs grow with the SENDs and receive requests that complete. If \
             messages of UC or UD do not arrive, the counters of the receiver say why.",
        )],
    },
    Entry {
        name: "IBV_WC_LOC_LEN_ERR",
        number: Some(1),
        also: &["local length error"],
        reported: true,
        what: "A message was too long. After a receive request of RC the queue pair is in the \
               error state, and the peer's request has completed with IBV_WC_REM_INV_REQ_ERR. \
               After a send request an RC queue pair is in the error state, any other in SQE.",
        causes: &[
            "Receive, RC: the SEND of the peer is longer than the receive request that it met.",
            "Receive, UC with a shared receive queue: the same, but the queue pair goes on. \
             Without one, and on UD, such messages are dropped and counted as no_receive_buffer.",
            "Send, UD: a datagram is one packet. It may be as long as the active MTU of the port \
             was when the queue pair entered INIT.",
            "Send: more inline data than the queue pair was created with (max_inline_data).",
            "Send: a message or FLUSH of more than 1 GiB, or a buffer of less than 8 bytes for the \
             result of an ATOMIC.",
            "Send, RAW_PACKET: a frame shorter than an Ethernet header, or longer than the MTU of \
             the network device allows.",
        ],
        look: &[FAILED, LIMITS],
    },
    Entry {
        name: "IBV_WC_LOC_QP_OP_ERR",
        number: Some(2),
        also: &["local QP operation error"],
        reported: true,
        what: "The request is malformed, or the queue pair cannot execute it. No packet of it was \
               sent. An RC queue pair is in the error state now; any other is in SQE after a send \
               request, and in the error state after a receive request.",
        causes: &[
            "READ, ATOMIC, ATOMIC WRITE or FLUSH on a queue pair with max_rd_atomic 0. With the \
             connection manager that is the peer's responder_resources of 0.",
            "An operation that the transport does not have, such as READ on UC, or that this \
             driver does not have, such as RDMA_READ_WITH_INV.",
            "A send or receive request with more scatter/gather entries than its queue was created \
             with.",
            "ATOMIC or ATOMIC WRITE to an address that is no multiple of 8.",
            "ATOMIC WRITE by ibv_post_send: only ibv_wr_atomic_write passes the data on.",
            "FLUSH without a placement type, or with an unknown one.",
            "UD: the address handle was destroyed before the datagram was sent, or belongs to \
             another protection domain.",
        ],
        look: &[
            FAILED,
            LIMITS,
            (
                "rxectl qp DEV",
                "The type and the state of the queue pair.",
            ),
        ],
    },
    Entry {
        name: "IBV_WC_LOC_EEC_OP_ERR",
        number: Some(3),
        also: &["local EE context operation error"],
        reported: false,
        what: "An end-to-end context could not execute a request. This driver never reports it: \
               the status is for reliable datagrams, which no RoCE device has.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_LOC_PROT_ERR",
        number: Some(4),
        also: &["local protection error"],
        reported: true,
        what: "A scatter/gather entry of the request names memory that it may not use. An RC queue \
               pair is in the error state now; any other is in SQE after a send request, and in \
               the error state after a receive request. If the request was a receive request of \
               RC, the peer's completes with IBV_WC_REM_OP_ERR.",
        causes: &[
            "The L_Key is wrong, or its region has been deregistered or revoked.",
            "The region belongs to another protection domain than the queue pair. For requests of \
             a shared receive queue its domain counts.",
            "The addresses are not all inside the region, or include a part from which the memory \
             was removed. Re-registration may have changed both, the rights and the domain.",
            "Data arrive (receive, READ, ATOMIC) for a region without IBV_ACCESS_LOCAL_WRITE.",
            "On-demand paging: the address is not mapped, is not writable, or is memory that the \
             kernel cannot read.",
            "The memory is damaged: unreadable_memory grows then.",
        ],
        look: &[
            FAILED,
            REGIONS,
            (
                "rxectl counters DEV",
                "unreadable_memory: it was allowed, but the memory could not be read or written.",
            ),
        ],
    },
    Entry {
        name: "IBV_WC_WR_FLUSH_ERR",
        number: Some(5),
        also: &["Work Request Flushed Error", "WR flushed"],
        reported: true,
        what: "The request was not executed: the queue pair had failed or was stopped before. The \
               cause is elsewhere.",
        causes: &[
            "An earlier request completed in error: look for the first completion of the queue \
             pair that is not flushed.",
            "The program, or rdma_disconnect, moved the queue pair to the error state, or it was \
             posted to in that state.",
            "A request of the peer was refused. The queue pair then has an event, \
             IBV_EVENT_QP_ACCESS_ERR or IBV_EVENT_QP_REQ_ERR, or a receive request that completed \
             in error.",
            "A completion queue overflowed (IBV_EVENT_CQ_ERR), which fails its queue pairs.",
            "Sends only: a send request of UC, UD or RAW_PACKET failed, and the queue pair is in \
             SQE. ibv_modify_qp to RTS lets it go on.",
        ],
        look: &[
            FAILED,
            QUEUE_PAIRS,
            (
                "rxectl cq DEV",
                "OVERFLOWED is 1 for a completion queue that lost completions.",
            ),
        ],
    },
    Entry {
        name: "IBV_WC_MW_BIND_ERR",
        number: Some(6),
        also: &["memory management operation error", "memory bind operation error"],
        reported: true,
        what: "A memory window was not bound, or a key was not invalidated or registered. Nothing \
               has changed for the keys. The queue pair is in the error state (RC) or in SQE (UC).",
        causes: &[
            "Bind: window, region and queue pair are not in one protection domain.",
            "Bind: the region lacks IBV_ACCESS_MW_BIND, or lacks IBV_ACCESS_LOCAL_WRITE while the \
             window is to grant remote write or atomic.",
            "Bind: the range is not inside the region, or the region has no memory in a part of \
             it.",
            "Bind: a window of type 2 is bound already, and must be invalidated first, or its \
             length is 0.",
            "Bind: the new key of the window does not keep the upper 24 bits of the old one.",
            "Bind: a region that work requests register (kernel consumers), or one that is being \
             deregistered.",
            "Invalidate: the key is not the current one, is that of an ordinary region or of a \
             window of type 1, or the window is bound for another queue pair.",
            "Register (kernel consumers): the region is registered already, is longer than its \
             page list, or remote write or atomic lacks local write.",
        ],
        look: &[FAILED, REGIONS],
    },
    Entry {
        name: "IBV_WC_BAD_RESP_ERR",
        number: Some(7),
        also: &["bad response error"],
        reported: true,
        what: "A response of the peer does not match the request. The queue pair is in the error \
               state.",
        causes: &[
            "READ: a packet of the response is shorter or longer than the path MTU and the length \
             of the READ require. The usual reason is that the two sides have different path MTUs.",
            "ATOMIC WRITE or FLUSH: the response carries data.",
            "The peer's implementation is faulty.",
        ],
        look: &[CAPTURE, DECODE, STATUS_OF_BOTH],
    },
    Entry {
        name: "IBV_WC_LOC_ACCESS_ERR",
        number: Some(8),
        also: &["local access error"],
        reported: true,
        what: "A WRITE with immediate of the peer was refused when it had taken a receive request. \
               That has this status, both queue pairs are in the error state, and the peer's \
               request completes with IBV_WC_REM_ACCESS_ERR.",
        causes: &[
            "The region was deregistered or revoked, the key was invalidated, or memory was \
             removed from the region, between the first and the last packet.",
            "On-demand paging: the address is not mapped, or is not writable.",
            "The memory is damaged: unreadable_memory grows then.",
        ],
        look: &[FAILED, REGIONS, PEER_REFUSES],
    },
    Entry {
        name: "IBV_WC_REM_INV_REQ_ERR",
        number: Some(9),
        also: &["remote invalid request error"],
        reported: true,
        what: "The peer refused the request as invalid. Both queue pairs are in the error state. \
               (On a receive request: the peer's SEND was to invalidate a key that cannot be \
               invalidated.)",
        causes: &[
            "The message is longer than the receive request that it met: the peer's completes with \
             IBV_WC_LOC_LEN_ERR.",
            "The peer's queue pair does not allow the operation: its qp_access_flags lack remote \
             read, write, atomic, or the kind of FLUSH.",
            "More READs, ATOMICs, ATOMIC WRITEs or FLUSHes were outstanding than the peer allows: \
             max_rd_atomic here is above its max_dest_rd_atomic.",
            "The path MTUs of the two sides differ, and a message has several packets.",
            "ATOMIC or ATOMIC WRITE to an address that is no multiple of 8, or a message above 1 \
             GiB.",
            "On a receive request: SEND with invalidate names a key that is unknown, unbound or \
             without remote rights.",
        ],
        look: &[
            PEER_REFUSES,
            (
                "dmesg",
                "At the peer, with debug messages on (rxectl explain IBV_WC_LOC_LEN_ERR): the \
                 status of its receive request.",
            ),
            STATUS_OF_BOTH,
        ],
    },
    Entry {
        name: "IBV_WC_REM_ACCESS_ERR",
        number: Some(10),
        also: &["remote access error"],
        reported: true,
        what: "The peer refused the access to its memory. Both queue pairs are in the error state; \
               the peer's has the event IBV_EVENT_QP_ACCESS_ERR, unless a receive request reports \
               it.",
        causes: &[
            "The R_Key is wrong or old: the region was deregistered or revoked, or the window \
             invalidated.",
            "The range is not all inside the region or window, or memory was removed from it. \
             Re-registration keeps the key and may change the range, the rights and the domain.",
            "The region does not grant the right: remote read, write, atomic or flush.",
            "The region belongs to another protection domain than the peer's queue pair, or the \
             window of type 2 to another queue pair.",
            "On-demand paging at the peer: the address is not mapped, is not writable, or is \
             memory that the kernel cannot read.",
            "SEND with invalidate names a key that cannot be invalidated.",
        ],
        look: &[
            PEER_REFUSES,
            (
                "rxectl mr DEV",
                "At the peer, as root: the keys, lengths and rights of its regions.",
            ),
        ],
    },
    Entry {
        name: "IBV_WC_REM_OP_ERR",
        number: Some(11),
        also: &["remote operation error"],
        reported: true,
        what: "The peer could not execute the request because its own receive request is faulty. \
               Both queue pairs are in the error state.",
        causes: &[
            "A scatter/gather entry of the peer's receive request names memory that it may not \
             use: that completes with IBV_WC_LOC_PROT_ERR.",
            "The peer's receive request is malformed: it completes with IBV_WC_LOC_QP_OP_ERR.",
        ],
        look: &[(
            "dmesg",
            "At the peer, with debug messages on (rxectl explain IBV_WC_LOC_PROT_ERR): the queue \
             pair and the status of its receive request.",
        )],
    },
    Entry {
        name: "IBV_WC_RETRY_EXC_ERR",
        number: Some(12),
        also: &["transport retry counter exceeded"],
        reported: true,
        what: "The peer did not acknowledge the request, in spite of retry_cnt retransmissions. \
               The queue pair is in the error state. Whether the peer executed the request is \
               unknown.",
        causes: &[
            "The peer or its process is gone, or has moved its queue pair to the error state.",
            "A firewall drops UDP port 4791, or the path to the peer is broken.",
            "The two sides do not agree: number of the queue pair, first PSN, GID or P_Key. The \
             peer drops the packets, and its counters say why.",
            "The peer's queue pair is not in RTR yet: rx_not_ready grows there.",
            "Packets are too long for the path: the network drops them, or, with IPsec, this host \
             does (tx_too_long).",
            "IPsec: this host has no key for the peer (send_err), or the peer refuses unprotected \
             packets (rx_policy_refused).",
            "timeout and retry_cnt are too small for the path, or its loss is high.",
            "The peer's memory uses on-demand paging, and its page faults take longer than all \
             retries.",
        ],
        look: &[
            (
                "rxectl counters DEV --watch 1",
                "On both hosts. Here local_ack_timeout_err, rcvd_seq_err, send_err and \
                 tx_too_long; at the peer the dropped packets by reason, or no packets at all.",
            ),
            ("rxectl doctor", "On both hosts: links, MTU, GIDs, IPsec and the UDP port."),
            (
                "ip route get PEER",
                "The route; ping -M do -s SIZE PEER shows which sizes pass.",
            ),
            ("nft list ruleset", "Rules for UDP port 4791, on both hosts."),
            CAPTURE,
            DECODE,
        ],
    },
    Entry {
        name: "IBV_WC_RNR_RETRY_EXC_ERR",
        number: Some(13),
        also: &["RNR retry counter exceeded"],
        reported: true,
        what: "The peer had no receive request posted, and none appeared during rnr_retry retries. \
               The queue pair here is in the error state; the peer's is not affected.",
        causes: &[
            "The peer posts fewer receive requests than messages arrive, or posts them late. SEND \
             and WRITE with immediate need one each.",
            "rnr_retry is small: 7 retries forever. min_rnr_timer of the peer says how long each \
             retry waits.",
            "The peer's program hangs, or does not poll its completion queue.",
        ],
        look: &[(
            "rxectl counters DEV --watch 1",
            "rcvd_rnr_err here, send_rnr_err at the peer: how often it had no receive request.",
        )],
    },
    Entry {
        name: "IBV_WC_LOC_RDD_VIOL_ERR",
        number: Some(14),
        also: &["local RDD violation error"],
        reported: false,
        what: "The domain of a reliable datagram did not match. This driver never reports it: no \
               RoCE device has reliable datagrams.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_REM_INV_RD_REQ_ERR",
        number: Some(15),
        also: &["remote invalid RD request"],
        reported: false,
        what: "The peer refused a reliable datagram. This driver never reports it: no RoCE device \
               has reliable datagrams. Should a peer send the NAK for it, the request completes \
               with IBV_WC_REM_INV_REQ_ERR.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_REM_ABORT_ERR",
        number: Some(16),
        also: &["aborted error", "operation aborted"],
        reported: false,
        what: "The requester aborted the operation. This driver never reports it.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_INV_EECN_ERR",
        number: Some(17),
        also: &["invalid EE context number"],
        reported: false,
        what: "The number of an end-to-end context was invalid. This driver never reports it: the \
               status is for reliable datagrams.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_INV_EEC_STATE_ERR",
        number: Some(18),
        also: &["invalid EE context state"],
        reported: false,
        what: "An end-to-end context was in the wrong state. This driver never reports it: the \
               status is for reliable datagrams.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_FATAL_ERR",
        number: Some(19),
        also: &["fatal error"],
        reported: false,
        what: "The device failed. This driver never reports it: a device that disappears fails all \
               calls with EIO and raises IBV_EVENT_DEVICE_FATAL.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_RESP_TIMEOUT_ERR",
        number: Some(20),
        also: &["response timeout error"],
        reported: false,
        what: "A response did not arrive in time. This driver never reports it: a request without \
               a response completes with IBV_WC_RETRY_EXC_ERR. The management services of the \
               kernel use this status for datagrams to which nobody replied.",
        causes: &[
            OTHER_DRIVER,
            "In a message of the kernel about a management datagram: the peer did not reply to it.",
        ],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_GENERAL_ERR",
        number: Some(21),
        also: &["general error"],
        reported: false,
        what: "An error that has no other status. This driver never reports it.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_TM_ERR",
        number: Some(22),
        also: &["TM error"],
        reported: false,
        what: "Tag matching failed. This driver never reports it: it has no tag matching.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_WC_TM_RNDV_INCOMPLETE",
        number: Some(23),
        also: &["TM software rendezvous"],
        reported: false,
        what: "Tag matching left a rendezvous to the program. This driver never reports it: it has \
               no tag matching.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
];
