// SPDX-License-Identifier: GPL-2.0
//! Types of events of the RDMA CM. The names and numbers are those of `enum rdma_cm_event_type`,
//! which librdmacm prints, and the texts those of `rdma_event_msg` of the kernel.
//!
//! The RDMA CM raises them for links of this driver as for those of others, except for one that
//! only InfiniBand has.

use super::{
    Entry, Look, CAPTURE, CM_IDS, DECODE, DOCTOR, LINKS, NEIGHBOURS, OTHER_DRIVER, PING,
    QUEUE_PAIRS, REASONS, ROUTE, STATUS_OF_BOTH, WHO,
};

/// The reasons of the RDMA CM.
const CM_REASONS: Look = (
    "echo 'module rdma_cm +p' >/sys/kernel/debug/dynamic_debug/control",
    "Repeat the call, then dmesg: the RDMA CM names the reasons of rejections and of addresses \
     that were not resolved.",
);

/// The rules that packets pass.
const FIREWALL: Look = (
    "nft list ruleset",
    "On both hosts: whether a rule drops UDP packets to port 4791, whatever their source port.",
);

/// Whether packets arrive at the peer.
const ARRIVING: Look = (
    "rxectl counters DEV --watch 1",
    "At the peer: rcvd_pkts and the reasons of drops. Whether the packets arrive at all.",
);

/// The memberships of a network device.
const GROUPS: Look = (
    "ip maddress show dev NETDEV",
    "The multicast groups that the network device has joined.",
);

/// All event types, in the order of their numbers.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "RDMA_CM_EVENT_ADDR_RESOLVED",
        number: Some(0),
        also: &["address resolved"],
        reported: true,
        what: "The destination address is resolved, and the identifier belongs to an RDMA device.",
        causes: &["rdma_resolve_addr succeeded. The program calls rdma_resolve_route next."],
        look: &[CM_IDS],
    },
    Entry {
        name: "RDMA_CM_EVENT_ADDR_ERROR",
        number: Some(1),
        also: &["address error"],
        reported: true,
        what: "The destination address was not resolved to an RDMA device and a neighbour. The \
               status is a negative error number. Errors that are found at once, such as \
               ENETUNREACH, are returned by rdma_resolve_addr, and no event follows.",
        causes: &[
            "Status -19 (ENODEV): the network device of the route to the address has no link in \
             this network namespace, or its link has no GID for the source address.",
            "Status -110 (ETIMEDOUT): nobody responds to ARP or neighbour discovery for the \
             address, or for the gateway of the route to it.",
            "Status -22 (EINVAL), after rdma_connect with RDMA_PS_UDP: the Q_Key of the peer is \
             another one than that of the identifier.",
        ],
        look: &[ROUTE, LINKS, NEIGHBOURS, CM_REASONS, DOCTOR],
    },
    Entry {
        name: "RDMA_CM_EVENT_ROUTE_RESOLVED",
        number: Some(2),
        also: &["route resolved"],
        reported: true,
        what: "The path to the destination is known.",
        causes: &["rdma_resolve_route succeeded. The program calls rdma_connect next."],
        look: &[CM_IDS],
    },
    Entry {
        name: "RDMA_CM_EVENT_ROUTE_ERROR",
        number: Some(3),
        also: &["route error"],
        reported: false,
        what: "The subnet manager knows no path to the destination. This driver never causes it: \
               RoCE has no subnet manager, and rdma_resolve_route returns its errors itself.",
        causes: &[OTHER_DRIVER],
        look: &[WHO],
    },
    Entry {
        name: "RDMA_CM_EVENT_CONNECT_REQUEST",
        number: Some(4),
        also: &["connect request"],
        reported: true,
        what: "A peer requests a connection, or a datagram service (RDMA_PS_UDP).",
        causes: &[
            "The peer called rdma_connect. The program calls rdma_accept or rdma_reject for the \
             identifier in the event.",
        ],
        look: &[CM_IDS],
    },
    Entry {
        name: "RDMA_CM_EVENT_CONNECT_RESPONSE",
        number: Some(5),
        also: &["connect response"],
        reported: true,
        what: "The peer accepted the connection, and this side has to complete it. A program gets \
               the event if its queue pair is not one of rdma_create_qp.",
        causes: &[
            "The peer called rdma_accept. The program moves its queue pair to RTR and RTS, and \
             calls rdma_establish.",
        ],
        look: &[CM_IDS, QUEUE_PAIRS],
    },
    Entry {
        name: "RDMA_CM_EVENT_CONNECT_ERROR",
        number: Some(6),
        also: &["connect error"],
        reported: true,
        what: "The peer accepted the connection, but this side could not move its queue pair to \
               RTR or RTS. A status of -1 is no error number: the driver logs the reason.",
        causes: &[
            "The path MTU of the connection exceeds the active MTU, in which IPsec policies leave \
             less room.",
            "The link, its address or its network device was removed meanwhile.",
            "ibv_modify_qp failed for another reason: EINVAL and ETIMEDOUT have its causes.",
        ],
        look: &[DOCTOR, REASONS, QUEUE_PAIRS],
    },
    Entry {
        name: "RDMA_CM_EVENT_UNREACHABLE",
        number: Some(7),
        also: &["unreachable"],
        reported: true,
        what: "The peer does not answer the RDMA CM, or refuses a datagram service. The status is \
               a negative error number, or a positive one from the answer of the peer.",
        causes: &[
            "Status -110 (ETIMEDOUT), more than a minute after rdma_connect: the requests or the \
             answers to them are lost. A firewall of one of the hosts drops UDP packets to port \
             4791, which both sides send to.",
            "Status -110: the network device of the peer that has the address has no link.",
            "Status -110: the program at the peer does not fetch its events, so that the backlog \
             of rdma_listen is full. The RDMA CM drops further requests, and does not reject them.",
            "Status -110, at the side that accepted: the other side did not confirm the connection.",
            "Status -110, on an established connection: the MAC address of the peer changed, and the \
             RDMA CM takes the connection for lost.",
            "Status 1 (RDMA_PS_UDP): no program listens on the port at the peer. 2: the program \
             rejected the request.",
        ],
        look: &[FIREWALL, PING, ARRIVING, STATUS_OF_BOTH, CAPTURE, DECODE],
    },
    Entry {
        name: "RDMA_CM_EVENT_REJECTED",
        number: Some(8),
        also: &["rejected"],
        reported: true,
        what: "The peer rejected the connection. The status is the reason, with the numbers of the \
               InfiniBand architecture (enum ib_cm_rej_reason of the kernel).",
        causes: &[
            "Status 8 (invalid service ID): no program listens on the port at the peer, or only on \
             the address of another link or in another port space (RDMA_PS_TCP, RDMA_PS_UDP). The \
             ports of the RDMA CM are not those of TCP.",
            "Status 28 (consumer defined): the program at the peer called rdma_reject, or ended \
             before it accepted.",
            "Status 28: the RDMA CM of the peer found no listener for the request, because its \
             network device is down, its route back to the address of this side leads over \
             another network device, or the program listens on another address of the link or in \
             another network namespace.",
            "Status 10 (stale connection): the peer still has a connection with the queue pair, \
             in use or waiting for old packets. A new queue pair has another number.",
            "Status 12 (invalid GID): the peer has no path to the GID of this side.",
            "Status 4 (timeout), at the side that listens: the other side gave up before the \
             program accepted.",
        ],
        look: &[
            (
                "rdma resource show cm_id",
                "At the peer: the addresses and ports on which programs listen (state LISTEN).",
            ),
            CM_REASONS,
            (
                "ip route get ADDRESS",
                "At the peer, for the address of this side: the network device of the route back.",
            ),
        ],
    },
    Entry {
        name: "RDMA_CM_EVENT_ESTABLISHED",
        number: Some(9),
        also: &["established"],
        reported: true,
        what: "The connection is established, or the peer has answered with its datagram service.",
        causes: &["The connection was accepted, and the other side confirmed it."],
        look: &[CM_IDS, QUEUE_PAIRS],
    },
    Entry {
        name: "RDMA_CM_EVENT_DISCONNECTED",
        number: Some(10),
        also: &["disconnected"],
        reported: true,
        what: "The connection has ended.",
        causes: &[
            "This program or the peer called rdma_disconnect or rdma_destroy_id, or ended.",
            "Status -110 (ETIMEDOUT): the peer did not answer the request to disconnect. Its host \
             has failed, or the network between.",
            "A peer whose host fails sends nothing, so no event tells: requests complete with \
             IBV_WC_RETRY_EXC_ERR.",
        ],
        look: &[CM_IDS, QUEUE_PAIRS, PING],
    },
    Entry {
        name: "RDMA_CM_EVENT_DEVICE_REMOVAL",
        number: Some(11),
        also: &["device removal"],
        reported: true,
        what: "The RDMA device of the identifier was removed. The program must destroy the \
               identifier and all objects of the device.",
        causes: &[
            "Somebody deleted the link (rdma link del) or unloaded the module.",
            "The network device or its network namespace was removed.",
            "The device was moved to another network namespace (rdma dev set DEV netns).",
        ],
        look: &[
            LINKS,
            ("dmesg", "Messages about the network device and the module."),
        ],
    },
    Entry {
        name: "RDMA_CM_EVENT_MULTICAST_JOIN",
        number: Some(12),
        also: &["multicast join"],
        reported: true,
        what: "The identifier has joined a multicast group.",
        causes: &["rdma_join_multicast succeeded."],
        look: &[GROUPS],
    },
    Entry {
        name: "RDMA_CM_EVENT_MULTICAST_ERROR",
        number: Some(13),
        also: &["multicast error"],
        reported: true,
        what: "The identifier has not joined a multicast group. A status of -1 is no error number: the \
               driver logs the reason.",
        causes: &[
            "ibv_attach_mcast failed, which librdmacm calls for the queue pair of the identifier. \
             ENODEV, ENOMEM and EEXIST have its causes.",
            "The network device was removed meanwhile.",
        ],
        look: &[GROUPS, REASONS, LINKS],
    },
    Entry {
        name: "RDMA_CM_EVENT_ADDR_CHANGE",
        number: Some(14),
        also: &["address change"],
        reported: true,
        what: "The network device of the identifier has another MAC address. The event is a hint: the \
               connection stays as it is.",
        causes: &["A bond changed its active device, and took the MAC address of that."],
        look: &[
            ("cat /proc/net/bonding/NETDEV", "The active device of the bond."),
            ("ip link show dev NETDEV", "The MAC address."),
        ],
    },
    Entry {
        name: "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        number: Some(15),
        also: &["timewait exit"],
        reported: true,
        what: "No packet of an ended connection can arrive any more. The program may connect its \
               queue pair again.",
        causes: &["The time that the architecture demands after a disconnection is over."],
        look: &[CM_IDS, QUEUE_PAIRS],
    },
    Entry {
        name: "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        number: Some(16),
        also: &[],
        reported: true,
        what: "A name or a service is resolved to addresses.",
        causes: &["rdma_resolve_addrinfo succeeded, on RoCE by DNS (RAI_DNS)."],
        look: &[("getent ahosts NAME", "The addresses of a name.")],
    },
    Entry {
        name: "RDMA_CM_EVENT_ADDRINFO_ERROR",
        number: Some(17),
        also: &[],
        reported: true,
        what: "A name or a service was not resolved to addresses.",
        causes: &[
            "rdma_resolve_addrinfo: DNS does not know the name or the service (RAI_DNS).",
            "With RAI_SA the call itself fails (EOPNOTSUPP): RoCE has no subnet administrator.",
        ],
        look: &[("getent ahosts NAME", "The addresses of a name.")],
    },
    Entry {
        name: "RDMA_CM_EVENT_USER",
        number: Some(18),
        also: &[],
        reported: true,
        what: "A program sent the event to its own identifier. The RDMA CM passes its status and \
               its argument on.",
        causes: &["A thread of the program called rdma_write_cm_event."],
        look: &[CM_IDS],
    },
    Entry {
        name: "RDMA_CM_EVENT_INTERNAL",
        number: Some(19),
        also: &[],
        reported: true,
        what: "librdmacm sent the event to itself, and does not pass it on to programs.",
        causes: &["rdma_resolve_addrinfo: the answer of DNS arrived."],
        look: &[CM_IDS],
    },
];
