# SPDX-License-Identifier: GPL-2.0
"""The egress guard: who may send to the RoCE port from a namespace with a link, by all system calls that send datagrams.

Unprivileged datagrams are sent by a child process of user 65534 in namespace a; a packet socket at the destination shows what is sent.
Each case is repeated by a process with CAP_NET_RAW, which must succeed.
"""
import contextlib
import ctypes
import errno
import json
import os
import re
import socket
import struct
import subprocess
import time
import traceback

import pyverbs.enums as e

from lib import host, sending
from lib.child_process import child_process
from lib.case import skip
from lib.ends import End, completion, pair, soon
from lib.forging import EVIL, PATIENT, Requester, Responder
from lib.frames import CLONE_NEWUSER, PORT, enter, icrc, packet_socket, within

DEFAULTS = dict(driver="rxe_rs", reason="tests rxe_rs only")
PR_SET_KEEPCAPS, CAPSET, CAP_NET_RAW = 8, 126, 13
NOBODY = 65534
libc = ctypes.CDLL(None, use_errno=True)


def drop_privileges(capability=None):
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    assert libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    os.setresuid(NOBODY, NOBODY, NOBODY)
    bits = 0 if capability is None else 1 << capability
    header, data = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", bits, bits, 0, 0, 0, 0)
    assert libc.syscall(CAPSET, header, data) == 0, os.strerror(ctypes.get_errno())


def unprivileged(what, capability=None, netns="a"):
    """Returns what `what` returns in a process of another user in the namespace, with no capability or only one."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter(netns)
            drop_privileges(capability)
            result = json.dumps(what())
        except BaseException:
            result = json.dumps({"failed": traceback.format_exc()})
        os.write(into, result.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as file:
        result = json.loads(file.read())
    os.waitpid(pid, 0)
    if isinstance(result, dict):
        raise AssertionError(result["failed"])
    return result


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def new_socket(address):
    sock = socket.socket(family_of(address), socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    return sock


class Tap:
    """A packet socket on the network device where datagrams would arrive."""

    def __init__(self, netns, netdev):
        self.socket = packet_socket(netns, netdev)
        self.socket.settimeout(10)

    def received(self, token, to):
        """Whether a datagram that contains the token has arrived. Sends another datagram and waits for that, which would arrive later."""
        fence = os.urandom(16)
        sock = within("a", lambda: new_socket(to[0]))
        sock.sendto(fence, to)
        sock.close()
        seen = False
        while True:
            frame = self.socket.recv(1 << 17)
            seen = seen or token in frame
            if fence in frame:
                return seen


class Case:
    def __init__(self, family):
        self.names = host.names(family)
        self.device = self.names[0]
        self.source, self.target = host.ip("a", family), host.ip("b", family)
        self.expected = self.counter()

    def counter(self, name="egress_guard_drops", device=None):
        with open(f"/sys/class/infiniband/{device or self.device}/ports/1/hw_counters/{name}", encoding="ascii") as file:
            return int(file.read())

    def counted(self, count=1):
        """Waits until the counter has grown by `count` since the last call. The RDMA core shows values of up to 10 ms ago."""
        self.expected += count
        soon(lambda: self.counter() == self.expected, 5, f"egress_guard_drops is not {self.expected}")

    def end(self):
        """Checks that nothing else has been counted. The RDMA core shows values of up to 10 ms ago."""
        time.sleep(0.05)
        self.counted(0)

    def refused(self, tap, to, send, label, **who):
        """An unprivileged datagram is refused with EPERM, counted and not sent."""
        token = os.urandom(16)
        error = unprivileged(lambda: send(new_socket(to[0]), token, to), **who)
        assert error == errno.EPERM, f"{label} to {to}: {sending.NAMES.get(error, error)}"
        assert not tap.received(token, to), f"{label} to {to}: it was refused but sent"
        self.counted()

    def passes(self, tap, to, send, label, who=None):
        token = os.urandom(16)
        error = within("a", lambda: send(new_socket(to[0]), token, to)) if who is None else unprivileged(
            lambda: send(new_socket(to[0]), token, to), **who)
        assert error == 0, f"{label} to {to}: {sending.NAMES.get(error, error)}"
        assert tap.received(token, to), f"{label} to {to}: it did not arrive"

    def every_method(self, tap, to):
        for send in sending.methods(family_of(to[0])):
            self.refused(tap, to, send, send.__name__)
            self.passes(tap, to, send, send.__name__)


@contextlib.contextmanager
def guarded(family=4):
    case = Case(family)
    yield case
    case.end()


def attack(case, names, to):
    """Forged packets to an RC queue pair of another user: a SEND and a WRITE, then, while it has a request in flight, a CNP, an ACK and a NAK.
    They are refused without privilege and accepted with it."""
    def send(data):
        sock = new_socket(to)
        sock.bind((case.source, 0))
        if ":" not in to:
            sock.setsockopt(socket.IPPROTO_IP, sending.IP_MTU_DISCOVER, sending.IP_PMTUDISC_DO)
        return sending.sendto(sock, data + icrc(case.source, to, sock.getsockname()[1], data), (to, PORT))

    def privileged_send(data):
        error = within("a", lambda: send(data))
        assert error == 0, sending.NAMES.get(error, error)

    a, b = pair(names, **PATIENT)
    for victim in (lambda: Responder(b, 0xFFFFFE), lambda: Requester(b, a, names[2], 0x000123)):
        victim = victim()
        for data in victim.packets():
            error = unprivileged(lambda: send(data))
            assert error == errno.EPERM, f"opcode {data[0]:#x}: {sending.NAMES.get(error, error)}"
            case.counted()
        victim.unharmed()
        victim.harmed_by(privileged_send)


def test_attack_ipv4(_names):
    with guarded(4) as case:
        attack(case, case.names, case.target)


def test_attack_ipv6(_names):
    with guarded(6) as case:
        attack(case, case.names, case.target)


def test_attack_loopback_ipv4(_names):
    with guarded(4) as case:
        attack(case, case.names[:2] * 2, case.source)


def test_attack_loopback_ipv6(_names):
    with guarded(6) as case:
        attack(case, case.names[:2] * 2, case.source)


def test_own_queue_pairs(_names):
    """By verbs an unprivileged user sends from the address of its host to any queue pair number, but the PSN must be right: on RC nothing
    happens otherwise. UC accepts a SEND with any PSN."""
    def send(qp_type, psn):
        """Sends from a queue pair of the user that is connected to b's; b answers its own peer only. Returns the status."""
        end = End(case.names[0], int(case.names[1]), qp_type=qp_type)
        end.mr.write(EVIL, len(EVIL))
        end.connect(b, psn, 0x000123, retries=0, timeout=14)
        end.post(e.IBV_WR_SEND, end.sge(len(EVIL)))
        return completion(end.cq, 20).status

    with guarded() as case:
        for qp_type, psns, unanswered in ((e.IBV_QPT_RC, (0x000001, 0x500000, 0xFFFFFD, 0xFFFFFE), e.IBV_WC_RETRY_EXC_ERR),
                                          (e.IBV_QPT_UC, (0x500000,), e.IBV_WC_SUCCESS)):
            a, b = pair(case.names, qp_type=qp_type)
            b.mr.write(bytes(4096), 4096)
            b.recv(b.sge(4096))
            for psn in psns[:-1]:
                assert unprivileged(lambda: send(qp_type, psn)) == unanswered
                b.no_completion()
                assert b.mr.read(4096, 0) == bytes(4096), f"a SEND with PSN {psn:#x} was accepted"
                assert b.state() == a.state() == e.IBV_QPS_RTS
            assert unprivileged(lambda: send(qp_type, psns[-1])) == unanswered
            assert b.complete().byte_len == len(EVIL)


def test_every_way_ipv4(_names):
    with guarded(4) as case:
        case.every_method(Tap("b", "vb"), (case.target, PORT))


def test_every_way_ipv6(_names):
    with guarded(6) as case:
        case.every_method(Tap("b", "vb"), (case.target, PORT))


def test_every_way_loopback_ipv4(_names):
    with guarded(4) as case:
        every_method_over_loopback(case)


def test_every_way_loopback_ipv6(_names):
    with guarded(6) as case:
        every_method_over_loopback(case)


def every_method_over_loopback(case):
    tap = Tap("a", "lo")
    case.every_method(tap, (case.source, PORT))
    for to in ("127.0.0.1", "::1"):
        case.refused(tap, (to, PORT), sending.sendto, "sendto")
        case.passes(tap, (to, PORT), sending.sendto, "sendto")


def test_destinations(_names):
    """Multicast, broadcast and IPv4-mapped destinations are guarded; other ports are not."""
    with guarded() as case:
        tap = Tap("b", "vb")
        index = within("a", lambda: socket.if_nametoindex("va"))

        def grouped(sock, data, to):
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            else:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(case.source))
            return sending.sendto(sock, data, to)

        for to in ("239.77.0.9", "ff02::77", "ff0e::77", "10.77.0.255", "::ffff:10.77.0.2"):
            send = grouped if to[:3] in ("239", "ff0") else sending.sendto
            token = os.urandom(16)
            assert unprivileged(lambda: send(new_socket(to), token, (to, PORT))) == errno.EPERM, to
            case.counted()
            assert not tap.received(token, (case.target, PORT)), to
            assert within("a", lambda: send(new_socket(to), token, (to, PORT))) == 0, to
            assert tap.received(token, (case.target, PORT)), to
        for port in (PORT - 1, PORT + 1, 53):
            case.passes(tap, (case.target, port), sending.sendto, f"port {port}", who={})


def test_capabilities(_names):
    """The process that opened the socket and the one that sends need CAP_NET_RAW, in the user namespace that owns the netns."""
    with guarded() as case:
        tap, to = Tap("b", "vb"), (case.target, PORT)
        case.refused(tap, to, sending.sendto, "with CAP_NET_ADMIN alone", capability=12)
        case.passes(tap, to, sending.sendto, "with CAP_NET_RAW alone", who={"capability": CAP_NET_RAW})

        inherited = within("a", lambda: new_socket(to[0]))
        case.refused(tap, to, lambda sock, data, to: sending.sendto(inherited, data, to), "a privileged process's socket")

        # A socket of an unprivileged process that is passed to a privileged one, such as its standard error.
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

        def pass_socket():
            sock = new_socket(to[0])
            socket.send_fds(one, [b"x"], [sock.fileno()])

        unprivileged(pass_socket)
        passed = socket.socket(fileno=socket.recv_fds(other, 1, 1)[1][0])
        token = os.urandom(16)
        assert sending.sendto(passed, token, to) == errno.EPERM
        assert not tap.received(token, to)
        case.counted()

        def in_own_namespace(sock, data, to):
            sock.close()
            if libc.unshare(CLONE_NEWUSER) != 0:
                return -1
            return sending.sendto(new_socket(to[0]), data, to)

        if os.path.exists("/proc/self/ns/user"):
            case.refused(tap, to, in_own_namespace, "root of a user namespace")


def test_kernel_socket(_names):
    """Unprivileged users can make the kernel send through its own socket, by RxRPC: only to other ports."""
    if subprocess.run(["modprobe", "rxrpc"], stderr=subprocess.DEVNULL).returncode:
        skip("this kernel has no RxRPC")
    with guarded() as case:
        tap, token = Tap("b", "vb"), os.urandom(16)
        # On a busy machine the first call after loading the module has failed before. A call ends with the process, also if the kernel has
        # not sent its datagram yet.
        deadline = time.monotonic() + 10
        error = None
        while error or not tap.received(token, (case.target, PORT)):
            assert time.monotonic() < deadline, f"no RxRPC call was sent to another port: {os.strerror(error or 0)}"
            error = unprivileged(lambda: sending.rxrpc(token, (case.target, PORT + 1)))
        token, before = os.urandom(16), case.counter()

        def is_counted():
            unprivileged(lambda: sending.rxrpc(token, (case.target, PORT)))
            return case.counter() != before
        soon(is_counted, 10, "an RxRPC call was not counted")
        assert not tap.received(token, (case.target, PORT))
        # The kernel may have retried.
        case.expected = case.counter()


def test_query(_names):
    """The owner of a queue pair gets PSNs and peer with every mask; another process that inherited it, only those in the mask."""
    with guarded() as case:
        a, _ = pair(case.names)
        psns = e.IBV_QP_SQ_PSN | e.IBV_QP_RQ_PSN | e.IBV_QP_DEST_QPN

        def query_psns(mask):
            attr, _ = a.qp.query(mask)
            return [attr.sq_psn, attr.rq_psn, attr.dest_qp_num]

        whole = query_psns(0)
        assert whole[0] == 0xFFFFFE and whole[1] == 0x000123 and whole[2], whole
        assert unprivileged(lambda: query_psns(psns)) == whole
        assert unprivileged(lambda: query_psns(e.IBV_QP_SQ_PSN)) == [whole[0], 0, 0]
        assert unprivileged(lambda: query_psns(e.IBV_QP_STATE)) == [0, 0, 0]
        # As the owner again, without any privilege.
        drop_privileges()
        assert query_psns(0) == query_psns(psns) == whole


def test_forwarded(_names):
    """Forwarded datagrams from another namespace are not guarded, but left to firewalls."""
    host.shell("""
        ip netns add c
        ip link add ca netns a type veth peer name c0 netns c
        ip -n a addr add 10.88.0.1/24 dev ca
        ip -n c addr add 10.88.0.2/24 dev c0
        ip -n a link set ca up
        ip -n c link set c0 up
        ip -n c route add default via 10.88.0.1
        on a sysctl -qw net.ipv4.ip_forward=1""")
    try:
        with guarded() as case:
            tap, token = Tap("b", "vb"), os.urandom(16)
            assert unprivileged(lambda: sending.sendto(new_socket(case.target), token, (case.target, PORT)), netns="c") == 0
            deadline = time.monotonic() + 10
            while not tap.received(token, (case.target, PORT)):
                assert time.monotonic() < deadline, "the datagram was not forwarded"
    finally:
        host.shell("on a sysctl -qw net.ipv4.ip_forward=0; ip netns del c")


def test_disabled(_names):
    """With egress_guard=0, datagrams are neither refused nor counted."""
    with host.reloaded("egress_guard=0"), child_process(without_guard):
        pass


def without_guard():
    with guarded() as case:
        case.passes(Tap("b", "vb"), (case.target, PORT), sending.sendto, "without the guard", who={})
        assert case.expected == 0


def send_many(count):
    """Sends unprivileged datagrams, each of which is counted by devices of the namespace only. Returns the kernel log of that time."""
    host.shell("mark flood")
    with guarded() as case:
        elsewhere = case.counter(device=case.names[2])

        def send():
            sock = new_socket(case.target)
            return sum(sending.sendto(sock, b"x", (case.target, PORT)) == errno.EPERM for _ in range(count))

        assert unprivileged(send) == count
        case.counted(count)
        assert case.counter(device=case.names[2]) == elsewhere, "counted in another namespace"
    return host.shell("since flood").splitlines()


def test_flood(_names):
    """Log messages about refused datagrams are rate-limited."""
    lines = [line for line in send_many(2000) if re.search("uid 65534.*port 4791", line)]
    assert len(lines) <= 10, f"{len(lines)} lines in the log"


def test_logged(_names):
    """A log message has user and process of a refused datagram."""
    host.shell("no_links; links")
    said = r"rxe_rs: uid 65534, process [0-9]+ \([^)]*\): datagram to UDP port 4791 refused"
    lines = send_many(2000)
    assert any(re.search(said, line) for line in lines), lines


def test_only_with_a_link(_names):
    """In a namespace without a link, and after the last link was deleted, datagrams to the port are not refused."""
    def send():
        return unprivileged(lambda: sending.sendto(new_socket("10.77.0.2"), b"x", ("10.77.0.2", PORT)))

    assert send() == errno.EPERM
    host.shell("del a; soon eval '! have a'")
    assert send() == 0
    host.shell("add a")
    assert send() == errno.EPERM
