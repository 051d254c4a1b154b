# SPDX-License-Identifier: GPL-2.0
"""Every system call by which a program can send a datagram, for sockets of both families. Each function returns the error number or 0."""
import ctypes
import errno
import mmap
import os
import socket
import struct

libc = ctypes.CDLL(None, use_errno=True)

UDP_SEGMENT, SOL_UDP = 103, 17
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
IP_OPTIONS, IPV6_RTHDR = 4, 57
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
IO_URING_SETUP, IO_URING_ENTER = 425, 426
OP_SENDMSG, OP_WRITE, OP_SEND = 9, 23, 26
SETUP_SQPOLL, IOSQE_ASYNC = 2, 16
AF_RXRPC, SOL_RXRPC, RXRPC_USER_CALL_ID = 33, 272, 1


def error_of(what):
    """Returns the error number of a call, or 0."""
    try:
        what()
        return 0
    except OSError as error:
        return error.errno


def sendto(sock, data, to):
    return error_of(lambda: sock.sendto(data, to))


def connected_send(sock, data, to):
    sock.connect(to)
    return error_of(lambda: sock.send(data))


def connected_write(sock, data, to):
    sock.connect(to)
    return error_of(lambda: os.write(sock.fileno(), data))


def writev(sock, data, to):
    sock.connect(to)
    return error_of(lambda: os.writev(sock.fileno(), [data[:5], data[5:]]))


def sendmsg(sock, data, to):
    return error_of(lambda: sock.sendmsg([data[:7], data[7:]], [], 0, to))


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


class Mmsghdr(ctypes.Structure):
    _fields_ = [("hdr", Msghdr), ("len", ctypes.c_uint32)]


def address(to):
    """A `struct sockaddr_in` or `sockaddr_in6`."""
    host, port, *rest = to
    if ":" not in host:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)
    flow, scope = (rest + [0, 0])[:2]
    return (struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, flow) + socket.inet_pton(socket.AF_INET6, host)
            + struct.pack("=I", scope))


class Message:
    """A `struct msghdr` with its address and buffers."""

    def __init__(self, data, to):
        raw = address(to)
        self.data = ctypes.create_string_buffer(data, len(data))
        self.name = ctypes.create_string_buffer(raw, len(raw))
        self.iov = Iovec(ctypes.addressof(self.data), len(data))
        self.hdr = Msghdr(ctypes.addressof(self.name), len(raw), ctypes.addressof(self.iov), 1, None, 0, 0)


def sendmmsg(sock, data, to):
    messages = [Message(data, to) for _ in range(3)]
    vector = (Mmsghdr * 3)(*(Mmsghdr(message.hdr, 0) for message in messages))
    sent = libc.sendmmsg(sock.fileno(), vector, 3, 0)
    return 0 if sent == 3 else ctypes.get_errno()


def segmented(sock, data, to):
    """UDP_SEGMENT: three datagrams in one buffer."""
    rest = bytes(len(data))
    control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(data)))]
    return error_of(lambda: sock.sendmsg([data, rest, rest], control, 0, to))


def fragmented(sock, data, to):
    """A datagram that exceeds the MTU of the network device."""
    return error_of(lambda: sock.sendto(data + bytes(6000), to))


def corked(sock, data, to):
    """MSG_MORE: the second call sends; only the first one has the address."""
    first = error_of(lambda: sock.sendto(data[:4], socket.MSG_MORE, to))
    return first or error_of(lambda: sock.sendto(data[4:], to))


def zero_copy(sock, data, to):
    sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    # Shorter data is copied in spite of MSG_ZEROCOPY.
    return error_of(lambda: sock.sendto(data + bytes(1200 - len(data)), MSG_ZEROCOPY, to))


def spliced(sock, data, to):
    sock.connect(to)
    out, into = os.pipe()
    os.write(into, data)
    error = error_of(lambda: os.splice(out, sock.fileno(), len(data)))
    os.close(out)
    os.close(into)
    return error


def sent_file(sock, data, to):
    sock.connect(to)
    file = os.memfd_create("data")
    os.write(file, data)
    error = error_of(lambda: os.sendfile(sock.fileno(), file, 0, len(data)))
    os.close(file)
    return error


def ip_options(sock, data, to):
    """IPv4: a Record Route option, so that the UDP header is not at its usual offset."""
    sock.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, bytes((7, 7, 4, 0, 0, 0, 0, 0)))
    return error_of(lambda: sock.sendto(data, to))


def routing_header(sock, data, to):
    """IPv6: a segment routing header with no segments left, the only extension header that needs no privilege."""
    segment = socket.inet_pton(socket.AF_INET6, to[0])
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RTHDR, struct.pack("!BBBBBBH", 0, 2, 4, 0, 0, 0, 0) + segment)
    return error_of(lambda: sock.sendto(data, to))


class IoUring:
    """A minimal io_uring, for one request."""

    def __init__(self, flags=0):
        params = bytearray(120)
        struct.pack_into("=IIIII", params, 0, 0, 0, flags, 0, 100)
        raw = (ctypes.c_char * 120).from_buffer(params)
        self.fd = libc.syscall(IO_URING_SETUP, 8, raw)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        self.polled = bool(flags & SETUP_SQPOLL)
        _, self.tail, self.mask, _, self.flags, _, self.array = struct.unpack_from("=7I", params, 40)
        self.cq_head, _, _, _, _, self.cqes = struct.unpack_from("=6I", params, 80)
        self.rings = mmap.mmap(self.fd, 4096, offset=0)
        self.entries = mmap.mmap(self.fd, 4096, offset=0x10000000)

    def submit(self, opcode, fd, addr, length, flags):
        """Submits one request and returns its result."""
        self.entries[:64] = struct.pack("=BBHiQQII", opcode, flags, 0, fd, 0, addr, length, 0) + bytes(32)
        struct.pack_into("=I", self.rings, self.array, 0)
        struct.pack_into("=I", self.rings, self.tail, 1)
        # Waits for the completion; wakes the submission thread if it sleeps.
        if libc.syscall(IO_URING_ENTER, self.fd, 0 if self.polled else 1, 1, 3, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        result, = struct.unpack_from("=i", self.rings, self.cqes + 8)
        return result

    def close(self):
        self.rings.close()
        self.entries.close()
        os.close(self.fd)


def by_io_uring(sock, data, to, opcode, flags=0, setup=0):
    ring = IoUring(setup)
    message = Message(data, to)
    if opcode == OP_SENDMSG:
        where, length = ctypes.addressof(message.hdr), 1
    else:
        sock.connect(to)
        where, length = ctypes.addressof(message.data), len(data)
    result = ring.submit(opcode, sock.fileno(), where, length, flags)
    ring.close()
    return -min(result, 0)


def ring_send(sock, data, to):
    return by_io_uring(sock, data, to, OP_SEND)


def ring_sendmsg(sock, data, to):
    return by_io_uring(sock, data, to, OP_SENDMSG)


def ring_worker(sock, data, to):
    """Sent by an io_uring worker thread."""
    return by_io_uring(sock, data, to, OP_SENDMSG, flags=IOSQE_ASYNC)


def ring_poller(sock, data, to):
    """Sent by the io_uring submission queue polling thread."""
    return by_io_uring(sock, data, to, OP_WRITE, setup=SETUP_SQPOLL)


ANY = [sendto, connected_send, connected_write, writev, sendmsg, sendmmsg, segmented, fragmented, corked, zero_copy, spliced, sent_file,
       ring_send, ring_sendmsg, ring_worker, ring_poller]
ONLY = {socket.AF_INET: [ip_options], socket.AF_INET6: [routing_header]}


def methods(family):
    return ANY + ONLY[family]


def rxrpc(data, to):
    """An RxRPC call, whose datagrams the kernel sends through a socket of its own."""
    sock = libc.socket(AF_RXRPC, socket.SOCK_DGRAM, socket.AF_INET)
    if sock < 0:
        return ctypes.get_errno()
    raw = address(to)
    name = struct.pack("=HHHH", AF_RXRPC, 1, socket.SOCK_DGRAM, 16) + raw
    # A `struct sockaddr_rxrpc` is large enough for an IPv6 address.
    name += bytes(36 - len(name))
    message = Message(data, to)
    buffer = ctypes.create_string_buffer(name, len(name))
    message.hdr.name, message.hdr.namelen = ctypes.addressof(buffer), len(name)
    control = ctypes.create_string_buffer(struct.pack("=QiiQ", 24, SOL_RXRPC, RXRPC_USER_CALL_ID, 7), 24)
    message.hdr.control, message.hdr.controllen = ctypes.addressof(control), 24
    sent = libc.sendmsg(sock, ctypes.byref(message.hdr), 0)
    return 0 if sent >= 0 else ctypes.get_errno()


NAMES = {number: name for number, name in errno.errorcode.items()}
