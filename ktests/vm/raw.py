# SPDX-License-Identifier: GPL-2.0
"""Raw packet queue pairs through pyverbs, with packet sockets as the peer.

The queue pair is on the device of a; the packet socket is in the network namespace of b.
"""
import ctypes
import json
import os
import socket
import stat
import subprocess
import time

from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from lib import host, uverbs
from lib.child_process import child_process
from lib.counters import counter
from lib.ends import completion, soon

DEFAULTS = dict(timeout=40, driver="rxe_rs", reason="rdma_rxe has no raw packet queue pairs")
ETHERTYPE = 0x88B5
CLONE_NEWNET = 0x40000000
SLOT = 16384
DONTNEED = 4


def mac_of(node):
    """The MAC address of the network device of a node."""
    netdev = json.loads(subprocess.check_output(["ip", "-n", node, "-j", "link", "show", host.netdev(node)]))[0]
    return bytes.fromhex(netdev["address"].replace(":", ""))


class Raw:
    """A raw packet queue pair with posted receives, in RTS if `ready` is true."""

    def __init__(self, name, receives=8, room=SLOT, inline=0, ready=True, access=e.IBV_ACCESS_LOCAL_WRITE):
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=4, max_recv_sge=1, max_inline_data=inline)
        init = QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, init)
        self.mr = MR(self.pd, 16 * SLOT, access)
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1), e.IBV_QP_STATE | e.IBV_QP_PORT)
        for n in range(receives):
            self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf + n * SLOT, room, self.mr.lkey)], wr_id=n))
        if ready:
            self.ready()

    def ready(self):
        for state in (e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            self.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)

    def send(self, frame, cuts=(), flags=e.IBV_SEND_SIGNALED, status=e.IBV_WC_SUCCESS):
        base = self.mr.buf + 15 * SLOT
        self.mr.write(frame, len(frame), 15 * SLOT)
        ends = [0, *cuts, len(frame)]
        sges = [SGE(base + a, b - a, self.mr.lkey) for a, b in zip(ends, ends[1:])]
        self.qp.post_send(SendWR(num_sge=len(sges), sg=sges, opcode=e.IBV_WR_SEND, send_flags=flags, wr_id=100))
        wc = self.poll(10, status)
        assert wc and wc.wr_id == 100, "the send did not complete"

    def poll(self, seconds, status=e.IBV_WC_SUCCESS):
        wc = completion(self.cq, seconds)
        assert not wc or wc.status == status, f"status {wc.status}, expected {status}"
        return wc

    def expect_frame(self, wanted):
        """Waits for the next frame of the test; others come from the network stack."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            wc = self.poll(1)
            if not wc:
                continue
            frame = self.mr.read(wc.byte_len, wc.wr_id * SLOT)
            if frame[12:14] == ETHERTYPE.to_bytes(2, "big") or frame[12:14] == b"\x81\0":
                assert frame == wanted, f"{len(frame)} bytes: {frame[:60]}"
                return
        raise AssertionError("nothing arrived")


class Peer:
    """A packet socket in another network namespace."""

    def __init__(self, netns, netdev, ethertype=ETHERTYPE):
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{netns}", os.O_RDONLY)
        os.setns(there, CLONE_NEWNET)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
        self.socket.bind((netdev, ethertype))
        os.setns(own, CLONE_NEWNET)
        self.socket.settimeout(10)


class Setup:
    def __init__(self, names, **options):
        self.device, self.mac, self.peer_mac = names[0], mac_of("a"), mac_of("b")
        self.peer = Peer("b", "vb")
        self.raw = Raw(self.device, **options)

    def frame(self, length, to_peer, seed=1):
        head = (self.peer_mac + self.mac) if to_peer else (self.mac + self.peer_mac)
        return head + ETHERTYPE.to_bytes(2, "big") + bytes((seed + i * 7) & 0xFF for i in range(length - 14))


def test_send(names):
    """Frames are sent unchanged from one or several SGEs."""
    s = Setup(names)
    for n, length in enumerate((14, 60, 61, 1000, 1514)):
        frame = s.frame(length, True, n)
        s.raw.send(frame, cuts=() if n % 2 else (6, 12))
        assert s.peer.socket.recv(4096) == frame, length


def test_send_inline(names):
    s = Setup(names, inline=200)
    frame = s.frame(180, True)
    s.raw.send(frame, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE)
    assert s.peer.socket.recv(4096) == frame


def test_send_refused(names):
    """A frame of an invalid length fails, and the queue pair enters the SQE state. Other opcodes than SEND fail."""
    for length in (0, 13, 1519, 9000):
        s = Setup(names)
        s.raw.send(s.frame(max(length, 14), True)[:length], status=e.IBV_WC_LOC_LEN_ERR)
        attr, _ = s.raw.qp.query(e.IBV_QP_STATE)
        assert attr.qp_state == e.IBV_QPS_SQE, attr.qp_state
    s = Setup(names)
    wr = SendWR(num_sge=1, sg=[SGE(s.raw.mr.buf, 60, s.raw.mr.lkey)], opcode=e.IBV_WR_SEND_WITH_IMM, wr_id=100)
    s.raw.qp.post_send(wr)
    assert s.raw.poll(10, e.IBV_WC_LOC_QP_OP_ERR)


def test_receive(names):
    """Frames that the network device receives arrive whole, in order."""
    s = Setup(names)
    for n, length in enumerate((14, 60, 999, 1514)):
        frame = s.frame(length, False, n)
        s.peer.socket.send(frame)
        s.raw.expect_frame(frame)


def test_receive_by_all(names):
    """Every raw packet queue pair receives a copy."""
    s = Setup(names)
    others = [Raw(s.device) for _ in range(3)]
    frame = s.frame(500, False)
    s.peer.socket.send(frame)
    for raw in [s.raw, *others]:
        raw.expect_frame(frame)
    others[0].qp.close()
    frame = s.frame(501, False)
    s.peer.socket.send(frame)
    for raw in [s.raw, *others[1:]]:
        raw.expect_frame(frame)


def test_receive_tagged(names):
    """A VLAN tag is part of the received frame."""
    s = Setup(names)
    frame = s.mac + s.peer_mac + b"\x81\x00\x00\x07" + ETHERTYPE.to_bytes(2, "big") + bytes(100)
    s.peer.socket.send(frame)
    s.raw.expect_frame(frame)


def test_receive_too_long(names):
    """A frame that is longer than the receive buffer is dropped; the receive is used for the next frame."""
    s = Setup(names, room=400)
    s.peer.socket.send(s.frame(600, False))
    frame = s.frame(400, False)
    s.peer.socket.send(frame)
    s.raw.expect_frame(frame)


def test_not_before_ready(names):
    """No frame is received in INIT; frames are received in RTS, and the error state flushes the receives."""
    s = Setup(names, ready=False)
    s.peer.socket.send(s.frame(100, False))
    assert not s.raw.poll(0.5), "a frame arrived in INIT"
    s.raw.ready()
    frame = s.frame(200, False)
    s.peer.socket.send(frame)
    s.raw.expect_frame(frame)
    s.raw.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert s.raw.poll(10, e.IBV_WC_WR_FLUSH_ERR)


def test_gso_segmented(names):
    """GSO buffers of TCP are received as frames of at most the MTU, and the network stack works as before."""
    server = subprocess.Popen(["ip", "netns", "exec", "a", "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    try:
        host.shell("soon eval 'on a ss -Hltn \"sport = :5201\" | grep -q .'")
        s = Setup(names, receives=15)
        client = subprocess.Popen(["ip", "netns", "exec", "b", "iperf3", "-c", host.ip("a", 4), "-t", "2"])
        try:
            long_frames(s)
        finally:
            status = client.wait(timeout=30)
        assert status == 0, "iperf3 failed"
    finally:
        server.kill()
        server.wait()


def long_frames(s):
    deadline, count = time.monotonic() + 10, 0
    while count < 10 and time.monotonic() < deadline:
        wc = s.raw.poll(1)
        if wc:
            assert wc.byte_len <= 1514, wc.byte_len
            s.raw.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(s.raw.mr.buf + wc.wr_id * SLOT, SLOT, s.raw.mr.lkey)],
                                      wr_id=wc.wr_id))
            count += wc.byte_len > 1400
    assert count >= 10, count


def test_on_demand(names):
    """A frame whose receive buffer is not present is dropped and counted, and causes a page fault, so that a later one arrives."""
    s = Setup(names, ready=False, access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_ON_DEMAND)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.madvise(ctypes.c_void_p(s.raw.mr.buf), ctypes.c_size_t(16 * SLOT), DONTNEED) == 0
    before = counter(names[0], "page_fault_dropped")
    s.raw.ready()
    frame = s.frame(600, False)
    deadline = time.monotonic() + 10
    while not s.raw.poll(0.1):
        assert time.monotonic() < deadline, "nothing arrived"
        s.peer.socket.send(frame)
    assert counter(names[0], "page_fault_dropped") > before, "the first frame was not lost, or not counted"


def test_needs_privilege(names):
    """Creating a raw packet queue pair without CAP_NET_RAW fails."""
    # With access to the device file, only the missing capability makes the call fail.
    path = uverbs.path_of(names[0])
    mode = stat.S_IMODE(os.stat(path).st_mode)
    os.chmod(path, 0o666)
    try:
        with child_process(lambda: check_unprivileged(names[0])):
            pass
    finally:
        os.chmod(path, mode)


def check_unprivileged(device):
    os.setgid(65534)
    os.setuid(65534)
    try:
        Raw(device)
    except PyverbsRDMAError as error:
        assert error.error_code in (1, 13), error
        return
    raise AssertionError("an unprivileged user has created a raw packet queue pair")


def taps():
    """The number of packet taps (ptype_all) on the network device of node a."""
    return sum(line.startswith("ALL") and " va " in line for line in host.shell("on a cat /proc/net/ptype").splitlines())


def test_tap_follows_queue_pairs(names):
    """A packet tap is registered while a raw packet queue pair exists, and is removed when its process dies."""
    assert taps() == 0, "there is a packet tap before the test"
    with child_process(lambda: Raw(names[0])) as end:
        soon(lambda: taps() == 1)
        end()
        soon(lambda: taps() == 0)


def test_delete_link_with_queue_pair(names):
    """Deleting the link removes the packet tap."""
    with child_process(lambda: Raw(names[0])):
        soon(lambda: taps() == 1)
        host.shell("del a; soon eval '! have a'")
        soon(lambda: taps() == 0)
    host.shell("links")
