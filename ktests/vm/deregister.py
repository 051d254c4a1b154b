# SPDX-License-Identifier: GPL-2.0
"""Deregistration of regions, deallocation of windows: afterwards nothing accesses their memory, and the cost is low."""
import ctypes
import mmap
import os
import resource
import signal
import socket
import struct
import time

from pyverbs.cq import CQ
from pyverbs.mr import MR, MW
from pyverbs.wr import SGE
import pyverbs.enums as e

from lib import host, uverbs
from lib.counters import counter
from lib.ends import ACCESS, End, pair, pattern
from lib.keys import ACCESS_, PAGE, TRANS, bind, page_buffer, rereg
from lib.segments import add, remove
from lib.traced import Traced

DEFAULTS = dict(timeout=90, driver="rxe_rs", reason="tests rxe_rs only")
MIB = 1 << 20
LOCAL = e.IBV_ACCESS_LOCAL_WRITE


def statuses(end, count, seconds=30):
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += [wc.status for wc in end.cq.poll(count)[1] or []]
    assert len(found) == count, f"{len(found)} completions of {count}"
    return found


def ends_with(done, refusals):
    """Checks statuses: some succeeded, then one was refused, the rest was flushed."""
    ok = done.count(e.IBV_WC_SUCCESS)
    assert done[:ok] == [e.IBV_WC_SUCCESS] * ok, done
    assert ok == len(done) or done[ok] in refusals and set(done[ok + 1:]) <= {e.IBV_WC_WR_FLUSH_ERR}, done


def ended_while_used(names, begin, refusal, access=ACCESS):
    """Closes the target of 20 messages at different moments while they arrive: each is written before, or not at all.

    `begin` posts them and returns functions that fill the memory, read it, and close objects, the first of them during the traffic.
    """
    for iteration in range(12):
        a, b = pair(names, size=MIB, access=access)
        a.mr.write(pattern(MIB, iteration), MIB)
        put, get, *close = begin(a, b)
        time.sleep(0.002 * iteration)
        close.pop(0)()
        # From now on only this process may change the memory.
        put(bytes(MIB))
        time.sleep(0.03)
        assert get() == bytes(MIB), "memory was written after it was closed"
        for rest in close:
            rest()
        ends_with(statuses(a, 20), {refusal})


def memory():
    """Returns a mapping and its address."""
    target = mmap.mmap(-1, MIB)
    return target, ctypes.addressof(ctypes.c_char.from_buffer(target))


def test_written_by_peer(names):
    """Deregisters a region while a peer writes to it: nothing is written afterwards."""
    def begin(a, b):
        target, address = memory()
        mr = MR(b.pd, MIB, ACCESS, address=address)
        for _ in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(address, mr.rkey))
        return lambda data: target.__setitem__(slice(None), data), lambda: target[:], mr.close

    ended_while_used(names, begin, e.IBV_WC_REM_ACCESS_ERR)


def test_duplicate_read_afterwards(names):
    """Deregisters regions as soon as they have been read, while the network delivers packets twice: a duplicate of a READ request that
    arrives afterwards does not end the connection."""
    a, b = pair(names)
    _target, address = memory()
    before = counter(names[2], "duplicate_request")
    netdev = host.netdev("a")
    host.shell('modprobe sch_netem; on a tc qdisc add dev "$1" root netem delay 3ms 3ms duplicate 50%', netdev)
    try:
        for _ in range(60):
            mr = MR(b.pd, PAGE, ACCESS, address=address)
            a.post(e.IBV_WR_RDMA_READ, a.sge(1000), remote=(address, mr.rkey))
            a.complete()
            mr.close()
    finally:
        host.shell('on a tc qdisc del dev "$1" root', netdev)
    assert counter(names[2], "duplicate_request") >= before + 10, "hardly any duplicate arrived"


def test_received(names):
    """The same for the memory of posted receives."""
    def begin(a, b):
        target, address = memory()
        mr = MR(b.pd, MIB, LOCAL, address=address)
        for _ in range(20):
            b.recv(SGE(address, MIB, mr.lkey))
        for _ in range(20):
            a.post(e.IBV_WR_SEND, a.sge())
        return lambda data: target.__setitem__(slice(None), data), lambda: target[:], mr.close

    ended_while_used(names, begin, e.IBV_WC_REM_OP_ERR)


def test_through_window(names):
    """The same for a bound window, which is deallocated; then the region can be deregistered at once."""
    def begin(a, b):
        mw = MW(b.pd, e.IBV_MW_TYPE_2)
        key = bind(b, mw, 0, MIB, e.IBV_ACCESS_REMOTE_WRITE)
        b.complete()
        for _ in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, key))
        return lambda data: b.mr.write(data, MIB), lambda: b.mr.read(MIB, 0), mw.close, b.mr.close

    ended_while_used(names, begin, e.IBV_WC_REM_ACCESS_ERR, ACCESS | e.IBV_ACCESS_MW_BIND)


def test_process_exit(names):
    """A process with very many regions exits quickly: releasing a region does not wait for an RCU grace period."""
    count, limit = (5000, 5) if host.is_slow() else (100000, 2)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ready, ready_in = os.pipe()
    begin = time.monotonic()
    child = os.fork()
    if not child:
        end = End(names[0], int(names[1]))
        page = mmap.mmap(-1, mmap.PAGESIZE)
        address, pd, fd = ctypes.addressof(ctypes.c_char.from_buffer(page)), end.pd.handle, end.ctx.cmd_fd
        response = ctypes.create_string_buffer(12)
        request = struct.pack("=IHHQQQQII", uverbs.REG_MR, 12, 3, ctypes.addressof(response), address, 4096, address, pd, ACCESS)
        for _ in range(count):
            os.write(fd, request)
        os.write(ready_in, b"x")
        signal.pause()
    os.close(ready_in)
    assert os.read(ready, 1) == b"x", "the process ended early"
    making, begin = time.monotonic() - begin, time.monotonic()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    elapsed = time.monotonic() - begin
    print(f"{count} regions were registered in {making:.2f} s and released in {elapsed:.2f} s")
    # A slow machine or a busy host delays registration, too. A grace period for each region would take longer by far.
    assert elapsed < max(limit, making / 3), f"{count} regions took {elapsed:.1f} s"


def test_waits_for_no_grace_period(names):
    """No call that destroys or changes an object waits for an RCU grace period: a process could call it in a loop."""
    functions = ("synchronize_rcu", "synchronize_rcu_expedited", "rcu_barrier")
    with Traced(**{function: function for function in functions}) as traced:
        # A packet socket that is closed waits for one: the probes record it.
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
        assert traced.calls(os.getpid()), "a grace period was not recorded"
        a, b = pair(names)
        buffer = page_buffer(8)
        for _ in range(20):
            mr = MR(b.pd, 4 * PAGE, ACCESS | e.IBV_ACCESS_MW_BIND, address=buffer)
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(64), remote=(buffer, mr.rkey))
            a.complete()
            for flags in (ACCESS_, TRANS, TRANS | ACCESS_):
                assert rereg(mr, b, flags, addr=buffer, length=4 * PAGE, access=ACCESS | e.IBV_ACCESS_MW_BIND) == 0
            add(b, mr, buffer + 4 * PAGE, PAGE)
            remove(b, mr, start=buffer, length=2 * PAGE)
            windows = [MW(b.pd, kind) for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2)]
            bind(b, windows[1], 2 * PAGE, PAGE, e.IBV_ACCESS_REMOTE_WRITE, mr)
            b.complete()
            for closed in (*windows, mr, CQ(b.ctx, 16)):
                closed.close()
        for end in (a, b):
            for closed in (end.qp, end.cq, end.mr, end.pd):
                closed.close()
        calls = traced.calls(os.getpid())
    assert not calls, f"{len(calls)} calls wait for grace periods: {sorted(set(calls))}"
