# SPDX-License-Identifier: GPL-2.0
"""Abnormal ends: processes killed at any moment, peers that disappear, objects that are destroyed twice or while they are in use.

RXE_SEED repeats a run, RXE_SECONDS makes it longer; on debug kernels it is longer by default.
"""
import ctypes
import errno
import mmap
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from types import SimpleNamespace

from pyverbs.addr import AH
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
import pyverbs.enums as e

from lib import host, rings, uverbs
from lib.bystander import Bystander
from lib.case import case
from lib.ends import ACCESS, End, datagram, datagram_pair, pair, soon, ah_attr
from lib.keys import BINDABLE, WRITE, bind
from lib.odp import dropping_pages, sides
from lib.srq import connected

DEFAULTS = dict(timeout=120)
# The longest life of a victim in seconds: long enough for its set-up in an emulated machine.
LIFE = 1.2
AT_ONCE = 2


def afterwards():
    """No object is left for which deleting a device would wait."""
    host.shell("for n in a b; do timeout 5 rdma link del rxe_$n; done")


def post_continually(rng, pairs, operations):
    """Posts requests of all sizes, as many as fit, with receives. Their statuses do not matter."""
    while True:
        a, b = rng.choice(pairs)[::rng.choice((1, -1))]
        length = rng.choice((0, 8, 1000, 5000, a.size))
        for _ in range(rng.randrange(1, 8)):
            try:
                b.recv(b.sge())
                operation = rng.choice(operations)
                a.post(operation, a.sge(length), remote=(b.mr.buf, b.mr.rkey), imm=1)
            except PyverbsError:
                break
        for end in (a, b):
            end.cq.poll(16)


def connections(rng, names):
    post_continually(rng, [pair(names, retries=7, timeout=12, rnr_retries=7) for _ in range(3)],
                     (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ))


def unreliable(rng, names):
    post_continually(rng, [pair(names, qp_type=e.IBV_QPT_UC)], (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM))


def datagrams(_, names):
    a, b, ah = datagram_pair(names)
    while True:
        try:
            b.recv(b.sge(500))
            datagram(a, b, ah, 1)
        except PyverbsError:
            a.cq.poll(16)
            b.cq.poll(16)


def uses_srq(rng, names):
    pool, pairs = connected(names, members=3)
    while True:
        a, b = rng.choice(pairs)
        try:
            pool.recv(1)
            a.post(e.IBV_WR_SEND, a.sge(900))
        except PyverbsError:
            a.cq.poll(16)
            b.cq.poll(16)


def on_demand(rng, names):
    a, b = sides(names, retries=7, timeout=14)
    with dropping_pages(a.area, b.area):
        while True:
            a.end.post(rng.choice((e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ)), a.sge(1 << 18), remote=b.remote())
            a.end.complete()


def windows(_, names):
    a, b = pair(names)
    while True:
        mr, mw = MR(b.pd, 65536, BINDABLE), MW(b.pd, e.IBV_MW_TYPE_2)
        key = bind(b, mw, 0, 65536, WRITE, mr)
        b.complete()
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(60000), remote=(mr.buf, key))
        a.complete()
        mw.close()
        mr.close()


def objects_of_all_types(rng, names):
    end = End(names[0], int(names[1]))
    while True:
        pd = PD(end.ctx)
        cq = CQ(end.ctx, 100, None, None, 0)
        made = [pd, cq, MR(pd, 1 << rng.randrange(12, 22), ACCESS), SRQ(pd, SrqInitAttr(SrqAttr(max_wr=50, max_sge=2))),
                QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=60, max_recv_wr=60))), AH(pd, attr=ah_attr(end, end))]
        for thing in reversed(made):
            thing.close()


VICTIMS = (connections, unreliable, datagrams, uses_srq, on_demand, windows, objects_of_all_types)


def run_in_child(work, *arguments):
    """Runs `work` in a child process, whose status says whether it succeeded."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work(*arguments)
            status = 0
        except BaseException as error:
            print(f"{work.__name__}: {error!r}", flush=True)
        finally:
            os._exit(status)
    return child


def kill(child):
    """Kills a child process. Returns whether it was still running."""
    died, _ = os.waitpid(child, os.WNOHANG)
    if died:
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def test_killed_at_any_moment(names):
    """Processes that use all kinds of objects are killed at random moments: a bystander is not affected, and nothing is left."""
    rng = host.random_of_run()
    seconds = float(host.setting("RXE_SECONDS", "60" if host.is_debug() else "12"))
    bystander = Bystander(names)
    end, number, killed = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end or number < len(VICTIMS):
        victims = [run_in_child(VICTIMS[(number + n) % len(VICTIMS)], random.Random(rng.random()), names) for n in range(AT_ONCE)]
        number += AT_ONCE
        for child in victims:
            time.sleep(rng.random() * LIFE)
            killed += kill(child)
    print(f"{number} processes, {killed} of them killed")
    assert killed == number, "some ended by themselves"
    bystander.end(10)


def remote(sock, gid):
    """What one end has to know of an end in another process."""
    qpn, address, key = struct.unpack("=IQI", sock.recv(16))
    return SimpleNamespace(ctx=SimpleNamespace(query_gid=lambda *_: gid), gid_index=0, qp=SimpleNamespace(qp_num=qpn), at=(address, key))


def send_address(sock, end):
    sock.send(struct.pack("=IQI", end.qp.qp_num, end.mr.buf, end.mr.rkey))


def peer_process(sock, names):
    end = End(names[2], int(names[3]))
    send_address(sock, end)
    peer = remote(sock, Context(name=names[0]).query_gid(1, int(names[1])))
    end.connect(peer, 7, 9, retries=2, timeout=12)
    for n in range(30):
        end.recv(end.sge())
    sock.send(b"ready")
    while True:
        for _ in range(end.cq.poll(16)[0]):
            end.recv(end.sge())


GONE = (e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_REM_ACCESS_ERR)
FIRST = {e.IBV_WR_SEND: (e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_REM_OP_ERR), e.IBV_WR_RDMA_WRITE: GONE, e.IBV_WR_RDMA_READ: GONE}


def test_peer_killed(names):
    """After its peer was killed, an end gets the right statuses for its requests, and can connect to another peer."""
    rng = host.random_of_run()
    survivor = End(names[0], int(names[1]))
    gid = Context(name=names[2]).query_gid(1, int(names[3]))
    for n, operation in enumerate((e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND)):
        own, other = socket.socketpair()
        child = run_in_child(peer_process, other, names)
        send_address(own, survivor)
        peer = remote(own, gid)
        if n:
            survivor.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        survivor.connect(peer, 9, 7, retries=2, timeout=12, rnr_retries=7)
        assert own.recv(5) == b"ready"
        killer = threading.Timer(0.1 + rng.random() * 0.3, kill, [child])
        killer.start()
        posted, ended, deadline = 0, [], time.monotonic() + 30
        while len(ended) < posted or not ended or ended[-1].status == e.IBV_WC_SUCCESS:
            # Keep eight in flight until one fails.
            while posted < len(ended) + 8 and (not ended or ended[-1].status == e.IBV_WC_SUCCESS):
                survivor.post(operation, survivor.sge(), remote=peer.at, wr_id=posted)
                posted += 1
            ended += survivor.cq.poll(16)[1]
            assert time.monotonic() < deadline, f"{posted} requests, {len(ended)} completions"
        killer.join()
        good = sum(wc.status == e.IBV_WC_SUCCESS for wc in ended)
        print(f"{operation}: {good} succeeded, {posted - good} failed, the first with status {ended[good].status}")
        assert [wc.wr_id for wc in ended] == list(range(posted)), [wc.wr_id for wc in ended]
        # The kernel may destroy the objects of a process in any order, such as its regions before its queue pairs.
        assert good > 0 and ended[good].status in FIRST[operation]
        assert {wc.status for wc in ended[good + 1:]} <= {e.IBV_WC_WR_FLUSH_ERR}
        assert survivor.state() == e.IBV_QPS_ERR


# Command numbers (`enum ib_uverbs_write_cmds` in rdma/ib_user_verbs.h) and lengths of their responses.
CALLS = {"QP": (27, 4), "MW": (16, 0), "MR": (13, 0), "AH": (8, 0), "SRQ": (35, 4), "CQ": (20, 8), "PD": (4, 0)}
HANDLES = 24


def destroy(ctx, kind, handle, response):
    number, size = CALLS[kind]
    body = struct.pack("=QII", response, handle, 0) if size else struct.pack("=II", handle, 0)[:4]
    try:
        uverbs.command(ctx.cmd_fd, number, body, size)
        return None
    except OSError as error:
        return error.errno


def test_destroyed_twice(names):
    """Destroys by arbitrary handles: of another object type, of objects in use, of destroyed objects."""
    end = End(names[0], int(names[1]))
    pd = end.pd
    end.others = [SRQ(pd, SrqInitAttr(SrqAttr(max_wr=10, max_sge=1))), MW(pd, e.IBV_MW_TYPE_2), AH(pd, attr=ah_attr(end, end))]
    room = ctypes.create_string_buffer(16)
    response = ctypes.addressof(room)
    attempts = {kind: [destroy(end.ctx, kind, n, response) for n in range(HANDLES)] for kind in ("CQ", "PD")}
    for kind, got in attempts.items():
        assert None not in got and got.count(errno.EBUSY) == 1, f"{kind} in use: {got}"
    # In an order in which no object is in use when it is destroyed.
    for kind in CALLS:
        first = [destroy(end.ctx, kind, n, response) for n in range(HANDLES)]
        again = [destroy(end.ctx, kind, n, response) for n in range(HANDLES)]
        assert first.count(None) == 1, f"{kind}: {first}"
        assert None not in again, f"{kind} twice: {again}"
    for n in (HANDLES, 1 << 16, 0x7FFFFFFF, 0xFFFFFFFF):
        for kind in CALLS:
            assert destroy(end.ctx, kind, n, response), (kind, n)
    sys.stdout.flush()
    # The library would destroy its objects again.
    os._exit(0)


def second_mappings(earlier):
    """Maps the queues that librxe has mapped once more, without librxe's knowledge, and returns the addresses. `earlier` has the addresses
    from earlier calls."""
    libc = rings.LIBC
    found = []
    with open("/proc/self/maps", encoding="ascii") as maps:
        lines = [line.split() for line in maps if "uverbs" in line]
    fds = {os.readlink(f"/proc/self/fd/{fd}"): int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    for area, _, offset, _, _, device in lines:
        start, end = (int(word, 16) for word in area.split("-"))
        if start in earlier:
            continue
        address = libc.mmap(None, end - start, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fds[device], int(offset, 16))
        assert address not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        found.append(address)
    return found


@case(cpus=2)
def test_rings_written_when_gone(names):
    """A process keeps pages of a queue mapped after the queue was destroyed and writes to them: the kernel must not have its own data in
    them, not even while it waits for RCU readers before it frees them. Small queues and large ones have different kinds of memory."""
    ctx = Context(name=names[0])
    pd = PD(ctx)
    running, areas, all_areas, rounds = True, [], set(), 0

    def overwrite():
        nonlocal rounds
        while running:
            for address in list(areas):
                ctypes.memset(address, 0x5A, 64)
            rounds += 1
            # The other thread needs the interpreter, which would change hands only every few milliseconds.
            time.sleep(0)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for depth in (16, 1000) * 50:
            cq = CQ(ctx, depth)
            srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=depth, max_sge=1)))
            cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1)
            qps = [QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)) for _ in range(4)]
            new = second_mappings(all_areas)
            all_areas.update(new)
            # While the queues are in use, the driver uses their pages.
            for thing in (*qps, srq, cq):
                thing.close()
            areas[:] = new
            written = rounds
            soon(lambda: rounds > written + 2)
    finally:
        running = False
        writer.join()
