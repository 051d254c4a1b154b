// SPDX-License-Identifier: GPL-2.0
//! Types of asynchronous events. The numbers are those of `enum ibv_event_type`, and the texts
//! those of `ibv_event_type_str` and, where it differs, of the kernel.

use super::{Entry, Look, CAPTURE, DECODE, OTHER_DRIVER, PKEYS, QUEUE_PAIRS, WHO};

/// The state of the port and its addresses.
const PORT: Look = (
    "rxectl status DEV",
    "The state of the port, its MTU, GIDs and P_Keys.",
);

/// Messages about links.
const LINK: Look = (
    "ip -d link show dev NETDEV",
    "The network device: its state, its MTU and what it belongs to.",
);

/// All event types, in the order of their numbers.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "IBV_EVENT_CQ_ERR",
        number: Some(0),
        also: &["CQ error"],
        reported: true,
        what: "A completion queue overflowed, and completions were lost. All queue pairs that \
               complete to it are moved to the error state (IBV_EVENT_QP_FATAL).",
        causes: &[
            "The completion queue is smaller than the number of requests that can be outstanding \
             in all of its queue pairs, receive requests included.",
            "The program does not poll it, or polls too slowly for that.",
        ],
        look: &[
            (
                "rxectl cq DEV",
                "WAITING: completions that have not been polled. OVERFLOWED: 1 for this queue.",
            ),
            QUEUE_PAIRS,
        ],
    },
    Entry {
        name: "IBV_EVENT_QP_FATAL",
        number: Some(1),
        also: &["local work queue catastrophic error", "QP fatal error"],
        reported: true,
        what: "A queue pair failed for a reason that no completion reports. It is in the error \
               state.",
        causes: &["One of its completion queues overflowed: IBV_EVENT_CQ_ERR."],
        look: &[(
            "rxectl cq DEV",
            "OVERFLOWED is 1 for a completion queue that lost completions.",
        )],
    },
    Entry {
        name: "IBV_EVENT_QP_REQ_ERR",
        number: Some(2),
        also: &["invalid request local work queue error", "QP request error"],
        reported: true,
        what: "The peer sent an invalid request. The queue pair is in the error state, and the \
               peer's request completes with IBV_WC_REM_INV_REQ_ERR.",
        causes: &[
            "The queue pair here does not allow the operation: qp_access_flags lack remote read, \
             write, atomic, or the kind of FLUSH.",
            "The peer had more READs, ATOMICs, ATOMIC WRITEs or FLUSHes outstanding than \
             max_dest_rd_atomic here.",
            "The path MTUs of the two sides differ.",
            "ATOMIC or ATOMIC WRITE to an address that is no multiple of 8, or a message above 1 \
             GiB.",
        ],
        look: &[
            (
                "rxectl counters DEV",
                "resp_invalid_request_err counts such requests.",
            ),
            CAPTURE,
            DECODE,
        ],
    },
    Entry {
        name: "IBV_EVENT_QP_ACCESS_ERR",
        number: Some(3),
        also: &["local access violation work queue error", "QP access error"],
        reported: true,
        what: "The peer requested an access to memory that it does not have. The queue pair is in \
               the error state, and the peer's request completes with IBV_WC_REM_ACCESS_ERR.",
        causes: &[
            "The R_Key is wrong or old, or the range is not all inside the region or window.",
            "The region does not grant the right, or belongs to another protection domain.",
            "The region was deregistered or revoked, or the key invalidated, while the peer still \
             used it.",
            "On-demand paging: the address is not mapped, or is not writable.",
        ],
        look: &[
            (
                "rxectl counters DEV",
                "resp_remote_access_err counts such requests; unreadable_memory those that met \
                 memory which could not be read.",
            ),
            (
                "rxectl mr DEV",
                "As root: the keys, lengths and rights of the regions.",
            ),
        ],
    },
    Entry {
        name: "IBV_EVENT_COMM_EST",
        number: Some(4),
        also: &["communication established"],
        reported: true,
        what: "The first packet of the peer arrived while the queue pair was in RTR.",
        causes: &[
            "The peer started to send before this side moved its queue pair to RTS. That is \
             normal: rdma_notify passes it to the connection manager, if the program uses it.",
        ],
        look: &[QUEUE_PAIRS],
    },
    Entry {
        name: "IBV_EVENT_SQ_DRAINED",
        number: Some(5),
        also: &["send queue drained"],
        reported: true,
        what: "All send requests that had been started have completed after a change to SQD.",
        causes: &["The program moved the queue pair to SQD, and asked for the event."],
        look: &[QUEUE_PAIRS],
    },
    Entry {
        name: "IBV_EVENT_PATH_MIG",
        number: Some(6),
        also: &["path migrated", "path migration successful"],
        reported: false,
        what: "A connection migrated to its alternate path. This driver never raises it: path \
               migration is not possible on RoCE.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_EVENT_PATH_MIG_ERR",
        number: Some(7),
        also: &["path migration request error", "path migration error"],
        reported: false,
        what: "A connection could not migrate. This driver never raises it: path migration is not \
               possible on RoCE.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_EVENT_DEVICE_FATAL",
        number: Some(8),
        also: &["local catastrophic error", "device fatal error"],
        reported: true,
        what: "The device was removed. It is the last event; all calls fail with EIO from now on.",
        causes: &[
            "Somebody deleted the link (rdma link del) or unloaded the module.",
            "The network device or its network namespace was removed.",
            "The device was moved to another network namespace (rdma dev set DEV netns).",
        ],
        look: &[
            ("rdma link show", "The links of this network namespace."),
            ("dmesg", "Messages about the network device and the module."),
            (
                "rdma link add DEV type rxe_rs netdev NETDEV",
                "Creates the link again. Programs must open the device again.",
            ),
        ],
    },
    Entry {
        name: "IBV_EVENT_PORT_ACTIVE",
        number: Some(9),
        also: &["port active"],
        reported: true,
        what: "The port became active.",
        causes: &["The network device came up, and has a carrier."],
        look: &[PORT, LINK],
    },
    Entry {
        name: "IBV_EVENT_PORT_ERR",
        number: Some(10),
        also: &["port error"],
        reported: true,
        what: "The port went down. Queue pairs keep their state, and retransmit until their \
               retries are exhausted.",
        causes: &[
            "The network device was set down, or lost its carrier: a cable, a switch, or the other \
             end of a veth pair.",
        ],
        look: &[
            PORT,
            LINK,
            ("rxectl counters DEV", "link_downed: how often it went down."),
        ],
    },
    Entry {
        name: "IBV_EVENT_LID_CHANGE",
        number: Some(11),
        also: &["LID change"],
        reported: false,
        what: "The port got another LID. This driver never raises it: RoCE has no LIDs.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_EVENT_PKEY_CHANGE",
        number: Some(12),
        also: &["P_Key change"],
        reported: true,
        what: "The P_Key table changed. Packets are checked against the new table at once.",
        causes: &[
            "An administrator edited it: rxectl pkey, or the sysfs attribute pkey_table.",
        ],
        look: &[PKEYS],
    },
    Entry {
        name: "IBV_EVENT_SM_CHANGE",
        number: Some(13),
        also: &["SM change"],
        reported: false,
        what: "The subnet manager changed. This driver never raises it: RoCE has none.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_EVENT_SRQ_ERR",
        number: Some(14),
        also: &["SRQ catastrophic error", "SRQ error"],
        reported: false,
        what: "A shared receive queue failed. This driver never raises it: no condition makes one \
               fail.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_EVENT_SRQ_LIMIT_REACHED",
        number: Some(15),
        also: &["SRQ limit reached"],
        reported: true,
        what: "A shared receive queue has fewer requests than its limit. The event is raised once: \
               ibv_modify_srq sets a new limit.",
        causes: &[
            "Messages used up receive requests, and the program has not posted new ones yet.",
            "The limit was set while fewer requests than that were posted: the event comes with \
             the next message.",
        ],
        look: &[(
            "rxectl counters DEV --watch 1",
            "send_rnr_err and no_receive_buffer grow if the queue becomes empty.",
        )],
    },
    Entry {
        name: "IBV_EVENT_QP_LAST_WQE_REACHED",
        number: Some(16),
        also: &["last WQE reached"],
        reported: true,
        what: "A queue pair with a shared receive queue entered the error state. It takes no \
               further requests from it.",
        causes: &[
            "The queue pair failed, or the program moved it to the error state. The requests in \
             the shared receive queue stay there for the others.",
        ],
        look: &[QUEUE_PAIRS],
    },
    Entry {
        name: "IBV_EVENT_CLIENT_REREGISTER",
        number: Some(17),
        also: &["client reregistration", "client reregister"],
        reported: true,
        what: "Attributes of the port changed: query them again.",
        causes: &["The MTU of the network device changed, and perhaps the active MTU with it."],
        look: &[PORT, LINK],
    },
    Entry {
        name: "IBV_EVENT_GID_CHANGE",
        number: Some(18),
        also: &["GID table change", "GID changed"],
        reported: true,
        what: "The GID table changed.",
        causes: &[
            "An address was added to the network device or removed from it, or from a device above \
             it, such as a VLAN or a bridge.",
        ],
        look: &[
            PORT,
            ("ip address", "The addresses that the GIDs come from."),
        ],
    },
    Entry {
        name: "IBV_EVENT_WQ_FATAL",
        number: Some(19),
        also: &["WQ fatal"],
        reported: false,
        what: "A work queue failed. This driver never raises it: it has no work queues apart from \
               those of queue pairs.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "IBV_EVENT_DEVICE_SPEED_CHANGE",
        number: Some(20),
        also: &["device speed change"],
        reported: false,
        what: "The speed of the device changed. This driver never raises it.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
];
