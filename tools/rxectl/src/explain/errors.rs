// SPDX-License-Identifier: GPL-2.0
//! Errors of calls: what the driver returns, and what the RDMA core, the RDMA CM and the loader of
//! modules return for it. The texts are those of `strerror`, and of modprobe where they differ.

use super::{
    Entry, Look, CM_IDS, DOCTOR, LIMITS, LINKS, NEIGHBOURS, PING, PKEYS, REASONS, ROUTE, WHO,
};

/// The objects of the device.
const OBJECTS: Look = (
    "rdma resource show",
    "How many objects of each kind the device has; rdma resource show qp and the like say whose.",
);

/// The limit of pinned memory.
const MEMLOCK: Look = (
    "ulimit -l; grep VmPin /proc/PID/status",
    "The limit of pinned memory, and how much a process has pinned.",
);

/// Where the RDMA CM tells why it rejects a connection.
const REJECTED: Look = (
    "rxectl explain RDMA_CM_EVENT_REJECTED",
    "The values of the status of this event, and their causes.",
);

/// Where the RDMA CM tells why a peer does not answer.
const UNREACHABLE: Look = (
    "rxectl explain RDMA_CM_EVENT_UNREACHABLE",
    "Why a peer does not answer the RDMA CM.",
);

/// The TCP ports of programs that exchange their parameters that way.
const TCP_PORTS: Look = (
    "ss -tlnp",
    "At the server: the TCP ports that programs listen on, and the programs.",
);

/// The addresses of the host.
const ADDRESSES: Look = (
    "ip address",
    "The addresses of this network namespace, and their network devices.",
);

/// The routes of the host.
const ROUTES: Look = (
    "ip route; ip -6 route",
    "The routes of this network namespace.",
);

/// What the kernel said about a module that it did not load.
const LOADING: Look = (
    "dmesg",
    "The reason for which the kernel refused the module.",
);

/// All errors, in the order of their numbers.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "EPERM",
        number: Some(1),
        also: &["Operation not permitted"],
        reported: true,
        what: "The caller lacks a permission.",
        causes: &[
            "ibv_reg_mr, ibv_rereg_mr, rxe_rs_mr_add: RLIMIT_MEMLOCK is 0, and the process lacks CAP_IPC_LOCK.",
            "ibv_create_qp: RAW_PACKET takes CAP_NET_RAW.",
            "ibv_modify_qp: a Q_Key with the most significant bit takes CAP_NET_RAW, or rdma \
             system set privileged-qkey on.",
            "ibv_open_device: the device belongs to another network namespace, and the RDMA core \
             is in the exclusive mode (rdma system show).",
            "Writing to pkey_table (rxectl pkey): takes CAP_NET_ADMIN in the user namespace that \
             owns the network namespace.",
            "rdma link add, rdma link del and other changes by rdma: take CAP_NET_ADMIN in the \
             initial user namespace. Root of a container with a user namespace of its own lacks \
             it; root of the host can make the link there (nsenter -t PID -n rdma link add ...).",
            "sendto and the like to UDP port 4791: the egress guard lets only processes with \
             CAP_NET_RAW send there.",
            "modprobe rxe_rs, insmod rxe_rs.ko: the kernel is locked down, and the module has no \
             signature of a key that the kernel knows. The kernel log says: unsigned module \
             loading is restricted.",
            "modprobe, insmod, rmmod: take CAP_SYS_MODULE in the initial user namespace, and \
             kernel.modules_disabled must be 0.",
        ],
        look: &[
            ("grep Cap /proc/PID/status", "The capabilities of a process: CapEff."),
            MEMLOCK,
            (
                "cat /sys/kernel/security/lockdown; sysctl kernel.modules_disabled",
                "A word in brackets other than [none]: modules need a signature. 1: no module is \
                 loaded or unloaded until the host boots again.",
            ),
            DOCTOR,
            (
                "dmesg | grep 'UDP port 4791 refused'",
                "Datagrams that the egress guard refused.",
            ),
            REASONS,
        ],
    },
    Entry {
        name: "ENOENT",
        number: Some(2),
        also: &["No such file or directory", "Unknown symbol in module"],
        reported: true,
        what: "There is no such object, or no longer.",
        causes: &[
            "ibv_rereg_mr, rxe_rs_mr_add, rxe_rs_mr_remove, rxe_rs_mr_tie: the key of the region \
             has been released with its last segment, or revoked with the queue pair that it is \
             tied to. Only ibv_dereg_mr still succeeds.",
            "rxe_rs_mr_remove: no segment has the handle.",
            "All calls: the object has been destroyed, perhaps by another thread.",
            "insmod rxe_rs.ko: a module that it needs is not loaded. The kernel log names the \
             functions (Unknown symbol). modprobe loads those modules, insmod does not.",
        ],
        look: &[
            ("rxectl mr DEV", "The regions, and how many segments each has."),
            (
                "modinfo -F depends rxe_rs.ko",
                "The modules that must be loaded before it.",
            ),
            REASONS,
        ],
    },
    Entry {
        name: "EINTR",
        number: Some(4),
        also: &["Interrupted system call"],
        reported: true,
        what: "A signal ended the call.",
        causes: &[
            "ibv_get_cq_event, ibv_get_async_event: a signal arrived while they waited. Repeat the \
             call.",
            "ibv_reg_mr, ibv_advise_mr: the process is being killed.",
        ],
        look: &[(
            "strace -f -e trace=read,ioctl -p PID",
            "The calls of the process, and the signals that it gets.",
        )],
    },
    Entry {
        name: "EIO",
        number: Some(5),
        also: &["Input/output error"],
        reported: true,
        what: "The device has been removed while the process had it open. The event \
               IBV_EVENT_DEVICE_FATAL says the same.",
        causes: &[
            "All calls: the link was deleted, the network device or its namespace was removed, or \
             the module was unloaded.",
        ],
        look: &[
            LINKS,
            ("dmesg", "Messages about the network device and the module."),
        ],
    },
    Entry {
        name: "ENOEXEC",
        number: Some(8),
        also: &["Exec format error", "Invalid module format"],
        reported: true,
        what: "The kernel cannot load the file as a module.",
        causes: &[
            "modprobe rxe_rs, insmod rxe_rs.ko: the module is built for another kernel: another \
             release, or another flavour of the same one (amd64, cloud-amd64, rt-amd64). The kernel \
             log has both (version magic).",
            "The same: the file is incomplete, as after a copy to a full disk.",
        ],
        look: &[
            (
                "uname -r; modinfo -F vermagic rxe_rs.ko",
                "The running kernel, and the one that the module is built for.",
            ),
            (
                "rxectl doctor --module rxe_rs.ko",
                "Whether the file is for the running kernel.",
            ),
            LOADING,
        ],
    },
    Entry {
        name: "EBADF",
        number: Some(9),
        also: &["Bad file descriptor"],
        reported: true,
        what: "A file descriptor is not open.",
        causes: &[
            "ibv_reg_dmabuf_mr, rxe_rs_mr_add_dmabuf: that of the DMA buffer.",
            "All calls: the program closed the descriptor of the device.",
        ],
        look: &[("ls -l /proc/PID/fd", "The open descriptors of a process.")],
    },
    Entry {
        name: "EAGAIN",
        number: Some(11),
        also: &["Resource temporarily unavailable", "EWOULDBLOCK"],
        reported: true,
        what: "A limit of the rdma cgroup was reached, or a non-blocking read found nothing.",
        causes: &[
            "ibv_open_device, ibv_create_*, ibv_alloc_*, ibv_reg_mr: hca_handle or hca_object of \
             the rdma cgroup. The RDMA core returns it.",
            "ibv_get_cq_event, ibv_get_async_event: the descriptor is non-blocking, and there is \
             no event.",
            "ibv_advise_mr: the page tables of the process keep changing.",
        ],
        look: &[(
            "cat /sys/fs/cgroup/PATH/rdma.max /sys/fs/cgroup/PATH/rdma.current",
            "The limits of a cgroup, and what it uses.",
        )],
    },
    Entry {
        name: "ENOMEM",
        number: Some(12),
        also: &["Cannot allocate memory"],
        reported: true,
        what: "Memory, or the limit for it, is exhausted; or a queue is full.",
        causes: &[
            "ibv_reg_mr, ibv_rereg_mr, rxe_rs_mr_add: the pages would exceed RLIMIT_MEMLOCK of a \
             process without CAP_IPC_LOCK.",
            "All calls: the limit of the memory cgroup, which objects, rings and their tables are \
             charged to; or the host has no memory.",
            "ibv_post_send, ibv_post_recv, ibv_post_srq_recv: the queue is full. Poll completions \
             first, or create it for more requests.",
            "ibv_attach_mcast: more groups (8192), queue pairs in the group (256) or memberships \
             (65536) than the device has room for.",
        ],
        look: &[
            MEMLOCK,
            DOCTOR,
            (
                "cat /sys/fs/cgroup/PATH/memory.max /sys/fs/cgroup/PATH/memory.current",
                "The limit of a cgroup, and what it uses.",
            ),
            REASONS,
        ],
    },
    Entry {
        name: "EACCES",
        number: Some(13),
        also: &["Permission denied"],
        reported: true,
        what: "The caller may not use a device node, or a port, in this way.",
        causes: &[
            "ibv_open_device, rdma_create_event_channel: the user may not open \
             /dev/infiniband/uverbsN or /dev/infiniband/rdma_cm.",
            "All calls: the process changed its user or its capabilities after it had opened the \
             device. The RDMA core refuses that.",
            "rdma_bind_addr: a port below 1024 takes CAP_NET_BIND_SERVICE in the initial user \
             namespace.",
        ],
        look: &[
            ("ls -l /dev/infiniband", "Owners and modes of the nodes."),
            DOCTOR,
        ],
    },
    Entry {
        name: "EFAULT",
        number: Some(14),
        also: &["Bad address"],
        reported: true,
        what: "Memory is not mapped as the call needs it, or the kernel cannot access it.",
        causes: &[
            "ibv_reg_mr, ibv_rereg_mr, rxe_rs_mr_add: a part of the range is not mapped, or is \
             read-only while the region has IBV_ACCESS_LOCAL_WRITE.",
            "The same calls: memory that the kernel cannot read, such as memfd_secret, mapped \
             registers of a device (VM_PFNMAP, VM_IO), or a damaged page.",
            "ibv_advise_mr: an L_Key of no region with on-demand paging in the protection domain, \
             a range outside of it, addresses that are not mapped, or prefetching for writing \
             without IBV_ACCESS_LOCAL_WRITE.",
            "All calls: the response cannot be written to the memory of the program.",
        ],
        look: &[
            ("cat /proc/PID/maps", "What is mapped, and with which rights."),
            REASONS,
        ],
    },
    Entry {
        name: "EBUSY",
        number: Some(16),
        also: &["Device or resource busy"],
        reported: true,
        what: "Something else still uses the object.",
        causes: &[
            "ibv_dereg_mr, ibv_rereg_mr, rxe_rs_mr_remove of the last segment: a memory window is \
             bound to the region.",
            "ibv_dealloc_pd, ibv_destroy_cq, ibv_destroy_srq, ibv_destroy_qp: objects created from \
             it exist, or the queue pair is attached to a multicast group.",
            "rxe_rs_mr_add, rxe_rs_mr_remove, rxe_rs_mr_tie: another call for the region is in \
             progress.",
            "ibv_advise_mr: the page tables of the process keep changing.",
            "rxectl pkey: the last valid P_Key cannot be removed.",
            "modprobe rxe_rs, and rdma link add if both were loaded at the same moment: rdma_rxe is \
             loaded. modprobe rdma_rxe: rxe_rs is loaded.",
            "rmmod rxe_rs: a page fault that does not end (FUSE, NFS, userfaultfd) still runs.",
        ],
        look: &[
            OBJECTS,
            PKEYS,
            ("lsmod | grep rxe", "Which driver is loaded, and who uses it."),
            REASONS,
        ],
    },
    Entry {
        name: "EEXIST",
        number: Some(17),
        also: &["File exists"],
        reported: true,
        what: "There is one already.",
        causes: &[
            "rdma link add: the network device has a link already.",
            "rxectl pkey: another entry holds the P_Key.",
            "rxe_rs_mr_add: the segment overlaps another one.",
            "rxe_rs_mr_tie: the region is tied to a queue pair already.",
            "ibv_attach_mcast: the queue pair is attached to the group by another LID; LIDs have \
             no meaning here.",
        ],
        look: &[LINKS, PKEYS, REASONS],
    },
    Entry {
        name: "ENODEV",
        number: Some(19),
        also: &["No such device"],
        reported: true,
        what: "There is no such device, or it is going away.",
        causes: &[
            "rdma_resolve_addr, RDMA_CM_EVENT_ADDR_ERROR with status -19: the network device of \
             the route to the address has no link in this network namespace, or its link has no \
             GID for the source address.",
            "rdma_bind_addr: the network device that has the address has no link. That of \
             127.0.0.1 and ::1 is lo.",
            "ibv_attach_mcast: the network device is being removed, or has no IPv4 configuration \
             for an IPv4 group.",
            "rdma link add: the network device does not exist, or the module is being unloaded.",
        ],
        look: &[
            LINKS,
            ROUTE,
            ADDRESSES,
            ("ip -d link show dev NETDEV", "The network device."),
            DOCTOR,
        ],
    },
    Entry {
        name: "EINVAL",
        number: Some(22),
        also: &["Invalid argument"],
        reported: true,
        what: "An argument is not valid here. The driver logs the reason at debug level.",
        causes: &[
            "ibv_modify_qp: a change of state that does not exist, attributes that are missing or \
             that the change cannot have, or values beyond the limits of the device.",
            "ibv_modify_qp: path_mtu above what the network device carries, or above what IPsec \
             leaves room for; pkey_index of an empty entry; a port other than 1; source and \
             destination GID of different address families, or of a GID that is not RoCE v2.",
            "ibv_modify_qp: the queue pair failed meanwhile, or cur_qp_state is not its state.",
            "ibv_create_qp, ibv_create_cq, ibv_create_srq, ibv_modify_srq: sizes beyond the limits \
             of the device, or 0 for a completion queue or shared receive queue.",
            "ibv_resize_cq, ibv_modify_srq: more entries are in use than would fit, or the limit \
             is above the size.",
            "ibv_reg_mr: remote write or atomic without local write, a range that is empty or \
             wraps, an iova whose offset in the page is not that of the address, or flush to \
             persistence of memory that is not persistent.",
            "ibv_post_send: the queue pair is in RESET, INIT or RTR. Its requests are discarded.",
            "ibv_post_recv: more scatter/gather entries than the queue has, or, for consumers in \
             the kernel, a queue pair in RESET or one with a shared receive queue.",
            "ibv_create_ah: no source GID, one that is not RoCE v2, or another address family.",
            "ibv_detach_mcast: the queue pair is not attached.",
            "ibv_advise_mr: the key of a memory window, or unknown flags.",
            "rxe_rs_mr_add, rxe_rs_mr_remove: misaligned, empty or wrapping ranges, a range \
             without memory, or a key that is not that of the region.",
            "rdma link add: the network device is a VLAN device. Make the link on the device \
             below.",
            "rdma link add: no driver has the type. The module is not loaded, or has the other \
             type (its parameter link_type_rxe).",
            "rxectl pkey: an index beyond the table, or a P_Key of partition 0.",
        ],
        look: &[
            REASONS,
            LIMITS,
            (
                "rxectl status DEV",
                "The active MTU, the GIDs and their types, and the P_Keys.",
            ),
        ],
    },
    Entry {
        name: "ENFILE",
        number: Some(23),
        also: &["Too many open files in system"],
        reported: true,
        what: "The name of a device is taken. The RDMA core returns it, and means no files.",
        causes: &["rdma link add: an RDMA device of any driver has the name."],
        look: &[("rdma link show", "The RDMA devices and their names.")],
    },
    Entry {
        name: "EMFILE",
        number: Some(24),
        also: &["Too many open files"],
        reported: true,
        what: "The process has too many open files. The kernel returns it before it calls the \
               driver.",
        causes: &[
            "ibv_open_device: each context has two files, and RLIMIT_NOFILE limits them.",
            "ibv_create_comp_channel, rdma_create_event_channel: each is a file.",
        ],
        look: &[(
            "ulimit -n; ls /proc/PID/fd | wc -l",
            "The limit, and how many files a process has open.",
        )],
    },
    Entry {
        name: "ENOSPC",
        number: Some(28),
        also: &["No space left on device"],
        reported: true,
        what: "The device has no number left for another object.",
        causes: &[
            "ibv_reg_mr, ibv_alloc_mw: all 16777215 keys are in use.",
            "ibv_alloc_pd, ibv_create_ah, ibv_create_srq: 1048576 of them exist.",
            "ibv_create_qp: all 16777213 numbers are in use, by the devices of the host together.",
            "rxe_rs_mr_add, rxe_rs_mr_remove: the region has 4096 segments, parts of segments that \
             were cut included.",
            "rdma link add: the namespace has too many devices.",
            "Writing to pkey_table (rxectl pkey add): every entry is in use.",
        ],
        look: &[OBJECTS, LIMITS, REASONS],
    },
    Entry {
        name: "EPROTONOSUPPORT",
        number: Some(93),
        also: &["Protocol not supported"],
        reported: true,
        what: "The driver of the device has no such calls.",
        causes: &[
            "rxe_rs_mr_add, rxe_rs_mr_remove, rxe_rs_mr_tie: the device belongs to rdma_rxe or \
             another driver.",
        ],
        look: &[WHO],
    },
    Entry {
        name: "EOPNOTSUPP",
        number: Some(95),
        also: &["Operation not supported", "ENOTSUP"],
        reported: true,
        what: "The device does not support what was requested.",
        causes: &[
            "ibv_rereg_mr, ibv_reg_dmabuf_mr, and ibv_advise_mr before rdma-core 59: librxe has no \
             such call. The driver has it, for programs that call the kernel themselves; \
             rxe_rs_mr_add_dmabuf of librxe_rs adds a DMA buffer to a region.",
            "ibv_create_qp: XRC, create_flags, an indirection table, or RAW_PACKET on a network \
             device without Ethernet frames.",
            "ibv_create_cq: flags, such as timestamps.",
            "ibv_reg_mr: unknown access flags; file system DAX memory, which cannot be pinned.",
            "ibv_reg_dmabuf_mr, rxe_rs_mr_add_dmabuf: the CPU cannot access the buffer, because \
             its exporter maps it for devices only.",
            "ibv_rereg_mr: a change between pinned memory and on-demand paging without a new \
             translation.",
            "rxe_rs_mr_add, rxe_rs_mr_remove: a region with on-demand paging, or fields that the \
             driver does not know.",
            "ibv_advise_mr: an unknown advice.",
            "All other calls: the operation is not implemented.",
            "modprobe rxe_rs: rdma_rxe is built into the kernel.",
        ],
        look: &[REASONS, LIMITS],
    },
    Entry {
        name: "EADDRINUSE",
        number: Some(98),
        also: &["Address already in use"],
        reported: true,
        what: "A port is taken in this network namespace.",
        causes: &[
            "rdma link add: a program has a socket on UDP port 4791, or a tunnel (VXLAN and the \
             like) uses it.",
            "rdma_bind_addr, rdma_listen: another identifier of the RDMA CM is bound to the same \
             address and port. The ports of the RDMA CM are not those of TCP and UDP.",
            "bind of a program that exchanges its parameters over TCP, such as ib_write_bw and \
             ibv_rc_pingpong: another one listens already (by default on TCP port 18515).",
        ],
        look: &[
            DOCTOR,
            ("ss -ulnp 'sport = :4791'", "The process that has the UDP port."),
            CM_IDS,
            ("ss -tlnp 'sport = :18515'", "The process that has the TCP port."),
        ],
    },
    Entry {
        name: "EADDRNOTAVAIL",
        number: Some(99),
        also: &["Cannot assign requested address"],
        reported: true,
        what: "The address is not one of this host, or its port is not free.",
        causes: &[
            "rdma_bind_addr, and rdma_resolve_addr with a source address: no network device of \
             this network namespace has the address. An IPv6 address counts once duplicate address \
             detection has ended (no longer tentative).",
            "rdma_bind_addr, rdma_listen: another identifier of the RDMA CM is bound to the port, \
             and one of the two to all addresses (0.0.0.0 or ::).",
            "rdma_resolve_addr, and rdma_bind_addr without a port: all ports of \
             net.ipv4.ip_local_port_range are in use.",
        ],
        look: &[ADDRESSES, CM_IDS],
    },
    Entry {
        name: "ENETUNREACH",
        number: Some(101),
        also: &["Network is unreachable"],
        reported: true,
        what: "There is no route to the destination.",
        causes: &[
            "rdma_resolve_addr: this network namespace has no route to the address.",
            "ibv_modify_qp to RTR, ibv_create_ah: there is no route to a destination GID with an \
             IPv6 address over the network device of the source GID. For IPv4 the kernel assumes a \
             neighbour then, and the call ends with ETIMEDOUT.",
            "connect of a program that exchanges its parameters over TCP, such as ib_write_bw: the \
             same.",
        ],
        look: &[
            ROUTE,
            ROUTES,
            ("rxectl status DEV", "The GIDs, and their network devices."),
        ],
    },
    Entry {
        name: "ETIMEDOUT",
        number: Some(110),
        also: &["Connection timed out"],
        reported: true,
        what: "A peer, or a host on the way to it, did not answer in time.",
        causes: &[
            "ibv_modify_qp to RTR, ibv_create_ah: no host on the network has the address of the \
             destination GID, or it does not respond to ARP or neighbour discovery; or there is no \
             route to an IPv4 address. The RDMA core returns it before it calls the driver.",
            "rdma_resolve_addr, RDMA_CM_EVENT_ADDR_ERROR with status -110: nobody responds to ARP \
             or neighbour discovery for the address, or for the gateway.",
            "rdma_connect, RDMA_CM_EVENT_UNREACHABLE with status -110: the peer does not answer the \
             RDMA CM, because a firewall drops UDP packets to port 4791, or the peer has no link.",
            "RDMA_CM_EVENT_DISCONNECTED with status -110: the peer did not answer the request to \
             disconnect.",
            "connect of a program that exchanges its parameters over TCP, such as ib_write_bw: a \
             firewall drops the packets to its TCP port.",
        ],
        look: &[
            NEIGHBOURS,
            ROUTE,
            PING,
            UNREACHABLE,
            ("rxectl status DEV", "At the peer: its GIDs."),
        ],
    },
    Entry {
        name: "ECONNREFUSED",
        number: Some(111),
        also: &["Connection refused"],
        reported: true,
        what: "The peer refused the connection.",
        causes: &[
            "rdma_connect, rconnect: the peer rejected the connection (RDMA_CM_EVENT_REJECTED), \
             mostly with status 8: no program listens on the port. librdmacm returns the error \
             where the program does not read the events itself.",
            "connect of a program that exchanges its parameters over TCP, such as ib_write_bw: its \
             server has not been started, or uses another TCP port; or a firewall resets \
             connections.",
        ],
        look: &[
            REJECTED,
            (
                "rdma resource show cm_id",
                "At the peer: the addresses and ports on which programs listen (state LISTEN).",
            ),
            TCP_PORTS,
        ],
    },
    Entry {
        name: "EHOSTUNREACH",
        number: Some(113),
        also: &["No route to host"],
        reported: true,
        what: "The destination cannot be reached.",
        causes: &[
            "connect of a program that exchanges its parameters over TCP, such as ib_write_bw: \
             nobody responds to ARP or neighbour discovery for the address, or a firewall answers \
             that the host is prohibited. The RDMA CM returns ETIMEDOUT for the former.",
            "rdma_resolve_addr, ibv_modify_qp to RTR, ibv_create_ah: the route to the address is \
             one of the type unreachable.",
        ],
        look: &[NEIGHBOURS, ROUTE, ROUTES, PING],
    },
    Entry {
        name: "EKEYREJECTED",
        number: Some(129),
        also: &["Key was rejected by service"],
        reported: true,
        what: "The kernel refused a module because of its signature.",
        causes: &[
            "modprobe rxe_rs, insmod rxe_rs.ko: the module has no signature, and the kernel demands \
             one (Secure Boot, module.sig_enforce=1). Sign it: make deb SIGN_KEY=KEY \
             SIGN_CERT=CERTIFICATE.",
            "modprobe rxe_rs, insmod rxe_rs.ko: the kernel does not know the key of the signature. \
             Enrol it: mokutil --import CERTIFICATE (DKMS: /var/lib/dkms/mok.pub), and reboot.",
            "The same: the file was changed after it had been signed.",
        ],
        look: &[
            ("modinfo -F signer rxe_rs", "The name in the certificate of the signature."),
            (
                "mokutil --test-key CERTIFICATE",
                "Whether the key is enrolled.",
            ),
            LOADING,
            DOCTOR,
        ],
    },
];
