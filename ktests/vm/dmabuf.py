# SPDX-License-Identifier: GPL-2.0
"""Regions of DMA buffers: both queue pairs in one process.

udmabuf creates most buffers from files in memory, through which the tests access their data. The module kmemory exports those that move.
"""
import errno
import os
import signal
import struct
import time

from pyverbs.mr import MR
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

from lib import host, keys, kmemory, segments, uverbs
from lib.case import case
from lib.debug_messages import DebugMessages, refusal_logged
from lib.dmabuf import ADD_DMABUF, PAGE, SIZE, Buffer, Region, add_buffer, register
from lib.ends import ACCESS, pair, pattern, soon
from lib.kmemory import DYNAMIC, STATIC, MovingBuffer

DEFAULTS = dict(driver="rxe_rs", reason="rdma_rxe registers no DMA buffers")


def afterwards():
    """All buffers must have been released."""
    host.shell("""
        mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
        soon grep -q "^Total 0 objects" /sys/kernel/debug/dma_buf/bufinfo""")


def test_operations(names):
    """Each operation with DMA buffers on both sides; the regions are not page-aligned."""
    a, b = pair(names)
    ra, rb = Region(a, 100, 500_000), Region(b, 3 * PAGE + 8, 600_001)
    data = pattern(400_000, 1)
    ra.put(data, 17)
    b.recv(rb.sge(400_000, 3))
    a.post(e.IBV_WR_SEND, ra.sge(400_000, 17))
    a.complete()
    b.complete()
    assert rb.get(400_000, 3) == data
    data = pattern(300_000, 2)
    ra.put(data)
    a.post(e.IBV_WR_RDMA_WRITE, ra.sge(300_000), remote=(rb.iova + 5, rb.rkey))
    a.complete()
    assert rb.get(300_000, 5) == data
    rb.put(pattern(300_000, 3), 77)
    a.post(e.IBV_WR_RDMA_READ, ra.sge(300_000), remote=(rb.iova + 77, rb.rkey))
    a.complete()
    assert ra.get(300_000) == pattern(300_000, 3)
    # The last byte of the region can be written, the bytes behind it cannot.
    behind = rb.get(1, 600_001)
    keys.write(a, rb.iova + 600_000, rb.rkey, 1)
    assert rb.get(1, 600_001) == behind
    rb.put(struct.pack("=Q", 40), 64)
    for opcode, operands, before, after in ((e.IBV_WR_ATOMIC_FETCH_AND_ADD, (2, 0), 40, 42), (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 99), 42, 99)):
        wr = SendWR(wr_id=5, num_sge=1, sg=[ra.sge(8)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_atomic(rb.rkey, rb.iova + 64, *operands)
        a.qp.post_send(wr)
        a.complete()
        assert struct.unpack("=QQ", ra.get(8) + rb.get(8, 64)) == (before, after)
    keys.write(a, rb.iova + 600_000, rb.rkey, 2, e.IBV_WC_REM_ACCESS_ERR)


def test_query(names):
    """QUERY_MR returns keys, length and address of a region of a DMA buffer."""
    _, b = pair(names)
    region = Region(b, 3 * PAGE + 8, 600_001)
    assert uverbs.query_mr(b.ctx.cmd_fd, region.handle) == (region.lkey, region.rkey, 600_001, region.iova)


def test_rights(names):
    """Access rights of a region of a DMA buffer are checked."""
    a, b = pair(names)
    region = Region(b, access=e.IBV_ACCESS_REMOTE_READ)
    region.put(b"right")
    assert keys.read(a, region.iova, region.rkey, 5) == b"right"
    keys.write(a, region.iova, region.rkey, 5, e.IBV_WC_REM_ACCESS_ERR)
    assert region.get(5) == b"right"


def test_buffer_closed(names):
    """The region holds a reference to the buffer, and releases it when it is deregistered."""
    a, b = pair(names)
    region = Region(b)
    region.close_files()
    data = keys.write(a, region.iova + 99, region.rkey, 9000)
    assert keys.read(a, region.iova + 99, region.rkey, 9000) == data
    region.deregister()
    keys.write(a, region.iova, region.rkey, 1, e.IBV_WC_REM_ACCESS_ERR)


def refused(code, *arguments, **more):
    """The driver must refuse the registration with this error, and log that."""
    with refusal_logged(code, "reg_user_mr_dmabuf"):
        refused_by_core(code, *arguments, **more)


def refused_by_core(code, *arguments, **more):
    try:
        Region(*arguments, **more)
    except OSError as error:
        assert error.errno == code, f"{arguments[1:]} {more}: {error}"
        return
    raise AssertionError(f"{arguments[1:]} {more} was accepted")


def test_bad(names):
    """Registration with invalid arguments fails with the right error."""
    _, b = pair(names)
    refused(errno.EBADF, b, fd=999)
    plain = os.memfd_create("no buffer")
    refused(errno.EINVAL, b, fd=plain)
    refused(errno.EINVAL, b, length=SIZE + 1)
    refused(errno.EINVAL, b, offset=SIZE, length=PAGE)
    refused(errno.EINVAL, b, length=0)
    refused(errno.EINVAL, b, offset=PAGE, length=(1 << 64) - PAGE)
    refused(errno.EINVAL, b, length=(1 << 64) - 1)
    refused_by_core(errno.EINVAL, b, iova=1)
    refused(errno.EINVAL, b, iova=(1 << 64) - PAGE, length=2 * PAGE)
    refused_by_core(errno.EINVAL, b, access=e.IBV_ACCESS_REMOTE_WRITE)
    refused_by_core(errno.EINVAL, b, access=ACCESS | e.IBV_ACCESS_ON_DEMAND)


def test_torn_down(names):
    """Regions are deregistered by a call and by the exit of their process while a peer writes to them."""
    for _ in range(5):
        a, b = pair(names)
        region = Region(b)
        region.close_files()
        for n in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(region.iova + 65536 * (n % 16), region.rkey))
        region.deregister()
        statuses = []
        deadline = time.monotonic() + 20
        while len(statuses) < 20:
            assert time.monotonic() < deadline
            statuses += [wc.status for wc in a.cq.poll(20)[1]]
        assert set(statuses) <= {e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_WR_FLUSH_ERR}, statuses
    ready, ready_in = os.pipe()
    child = os.fork()
    if not child:
        a, b = pair(names)
        region = Region(b)
        region.close_files()
        os.write(ready_in, b".")
        while True:
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(region.iova, region.rkey))
            a.complete()
    os.read(ready, 1)
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the process has failed"


# How often a buffer is attached, pinned, prepared for the CPU and mapped for it.
UNUSED, ONCE = (0, 0, 0, 0), (1, 1, 1, 1)
IOVA = 0x7000_0000_0000


@case(needs="kmemory")
def test_moving(names):
    """A buffer that its exporter moves otherwise stays in place while it has a region, and moves again afterwards."""
    a, b = pair(names)
    for kind in (STATIC, DYNAMIC):
        buffer = MovingBuffer(kind)
        assert buffer.moves() and buffer.uses() == UNUSED
        first, _, rkey = register(b, buffer.buffer, 0, kmemory.SIZE, IOVA)
        assert not buffer.moves(), "the buffer was moved while it has a region"
        assert buffer.uses() == ONCE
        data = keys.write(a, IOVA, rkey, kmemory.SIZE, seed=kind)
        assert buffer.get(kmemory.SIZE) == data == keys.read(a, IOVA, rkey, kmemory.SIZE)
        # Each region pins the buffer; both share the mapping of the exporter.
        second, _, rkey = register(b, buffer.buffer, PAGE, PAGE, IOVA)
        assert buffer.uses() == (2, 2, 2, 1)
        uverbs.dereg_mr(b.ctx.cmd_fd, first)
        assert not buffer.moves() and buffer.uses() == ONCE
        data = keys.write(a, IOVA, rkey, PAGE, seed=9)
        assert buffer.get(PAGE, PAGE) == data
        uverbs.dereg_mr(b.ctx.cmd_fd, second)
        assert buffer.uses() == UNUSED and buffer.moves()
        assert buffer.get(PAGE, PAGE) == data
        # The exit of a process ends its regions, too.
        child = os.fork()
        if not child:
            _, end = pair(names)
            register(end, buffer.buffer, 0, kmemory.SIZE, IOVA)
            os._exit(0 if buffer.uses() == ONCE else 1)
        assert os.waitpid(child, 0)[1] == 0, "the process has failed"
        soon(lambda: buffer.uses() == UNUSED)
        assert buffer.moves()
        buffer.close()


def refused_with_reason(buffer, code, operation, reason, call):
    """The driver must refuse a call with this error, log that and the reason, and leave the buffer alone."""
    log = DebugMessages()
    try:
        with refusal_logged(code, operation):
            try:
                call()
            except OSError as error:
                assert error.errno == code, error
            except segments.Refused as error:
                assert error.number == code, error
            else:
                raise AssertionError(f"{operation} was accepted")
        messages = log.read()
    finally:
        log.close()
    assert any(reason in message for message in messages), f"no message with '{reason}' in {messages}"
    assert buffer.uses() == UNUSED and buffer.moves(), buffer.uses()


@case(needs="kmemory")
def test_refused_by_exporter(names):
    """What the exporter refuses fails with its error, for regions and for segments; after every failure the buffer is as before."""
    _, b, mr, memory = segments.region(names)
    at = memory + 32 * PAGE
    for kind, code, reason in (
            (STATIC | kmemory.FAIL_ATTACH, errno.EBUSY, "attach"), (DYNAMIC | kmemory.FAIL_ATTACH, errno.EBUSY, "attach"),
            (DYNAMIC | kmemory.FAIL_PIN, errno.ENOSPC, "pin"),
            (STATIC | kmemory.FAIL_ACCESS, errno.EIO, "prepare"), (DYNAMIC | kmemory.FAIL_ACCESS, errno.EIO, "prepare"),
            (STATIC | kmemory.FAIL_MAP, errno.EOPNOTSUPP, "map"), (DYNAMIC | kmemory.FAIL_MAP, errno.EOPNOTSUPP, "map"),
            (STATIC | kmemory.DEVICE, errno.EOPNOTSUPP, "device's memory"), (DYNAMIC | kmemory.DEVICE, errno.EOPNOTSUPP, "device's memory")):
        buffer = MovingBuffer(kind)
        refused_with_reason(buffer, code, "reg_user_mr_dmabuf", reason, lambda: register(b, buffer.buffer, 0, PAGE, IOVA))
        refused_with_reason(buffer, code, "mr_add", reason, lambda: add_buffer(b, mr, buffer, 0, PAGE, at))
        buffer.close()
    # A range outside of the buffer is refused before that, addresses that wrap are refused when all is mapped.
    for kind in (STATIC, DYNAMIC):
        buffer = MovingBuffer(kind)
        refused_with_reason(buffer, errno.EINVAL, "reg_user_mr_dmabuf", "", lambda: register(b, buffer.buffer, PAGE, kmemory.SIZE, IOVA))
        refused_with_reason(buffer, errno.EINVAL, "reg_user_mr_dmabuf", "", lambda: register(b, buffer.buffer, 0, 2 * PAGE, (1 << 64) - PAGE))
        refused_with_reason(buffer, errno.EINVAL, "mr_add", "", lambda: add_buffer(b, mr, buffer, PAGE, kmemory.SIZE, at))
        buffer.close()


@case(needs="kmemory")
def test_segments_of_moving(names):
    """The same as `moving` for segments: the buffer stays in place until its last part is removed."""
    a, b, mr, memory = segments.region(names)
    at = memory + 32 * PAGE
    for kind in (STATIC, DYNAMIC):
        buffer = MovingBuffer(kind)
        add_buffer(b, mr, buffer, 0, kmemory.SIZE, at)
        assert not buffer.moves(), "the buffer was moved while it has a segment"
        assert buffer.uses() == ONCE
        data = keys.write(a, at, mr.rkey, kmemory.SIZE, seed=kind)
        assert buffer.get(kmemory.SIZE) == data
        # The rest of a segment that was cut still pins all of the buffer.
        segments.remove(b, mr, start=at + PAGE, length=2 * PAGE)
        assert not buffer.moves() and buffer.uses() == ONCE
        keys.write(a, at + 3 * PAGE, mr.rkey, PAGE, seed=7)
        assert buffer.get(PAGE, 3 * PAGE) == pattern(PAGE, 7)
        state = segments.remove(b, mr, start=at, length=kmemory.SIZE)
        assert state["segments"] == 1 and buffer.uses() == UNUSED and buffer.moves(), state
        buffer.close()


def test_segments_of_both(names):
    """A region with memory of the process and ranges of two buffers: accesses span them, and removed ranges are inaccessible."""
    a, b, mr, buffer = segments.region(names)
    start, before = buffer + 16 * PAGE, segments.pinned()
    one, two = Buffer(), Buffer()
    first = add_buffer(b, mr, one, 8 * PAGE, 4 * PAGE, start + 4 * PAGE)
    assert first["handle"] > segments.FIRST and (first["run_start"], first["run_length"]) == (start, 8 * PAGE), first
    segments.add(b, mr, buffer, PAGE, start + 8 * PAGE)
    add_buffer(b, mr, two, SIZE - 2 * PAGE, 2 * PAGE, start + 9 * PAGE)
    # The same pages again at another address.
    again = add_buffer(b, mr, one, 9 * PAGE, PAGE, start + 11 * PAGE)
    assert (again["run_length"], again["bytes"], again["segments"]) == (12 * PAGE, 12 * PAGE, 5), again
    assert segments.pinned() == before + PAGE
    two.close_files()
    data = keys.write(a, start, mr.rkey, 11 * PAGE)
    assert segments.get(start, 4 * PAGE) + one.get(4 * PAGE, 8 * PAGE) + segments.get(buffer, PAGE) == data[:9 * PAGE]
    assert keys.read(a, start, mr.rkey, 12 * PAGE) == data + data[5 * PAGE:6 * PAGE]
    b.recv(SGE(start + 7 * PAGE - 99, 3 * PAGE, mr.lkey))
    a.post(e.IBV_WR_SEND, a.sge(3 * PAGE))
    a.complete()
    b.complete()
    assert one.get(99, 12 * PAGE - 99) == a.mr.read(99, 0)
    one.put(struct.pack("=Q", 40), 12 * PAGE - 8)
    wr = SendWR(wr_id=5, num_sge=1, sg=[a.sge(8)], opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_atomic(mr.rkey, start + 8 * PAGE - 8, 2, 0)
    a.qp.post_send(wr)
    a.complete()
    assert one.get(8, 12 * PAGE - 8) == struct.pack("=Q", 42)
    # Remove a range across the end of the process's memory and the buffer, and a range within the buffer.
    state = segments.remove(b, mr, start=start + 3 * PAGE, length=2 * PAGE)
    assert (state["bytes"], state["segments"]) == (10 * PAGE, 5) and segments.pinned() == before, state
    state = segments.remove(b, mr, start=start + 6 * PAGE, length=PAGE)
    assert (state["bytes"], state["segments"]) == (9 * PAGE, 6), state
    one.put(bytes(SIZE))
    data = keys.write(a, start + 5 * PAGE, mr.rkey, PAGE, seed=9)
    assert one.get(PAGE, 9 * PAGE) == data == keys.read(a, start + 11 * PAGE, mr.rkey, PAGE)
    data = keys.write(a, start + 7 * PAGE, mr.rkey, PAGE, seed=10)
    assert one.get(PAGE, 11 * PAGE) == data
    state = segments.remove(b, mr, handle=first["handle"])
    assert (state["bytes"], state["segments"]) == (7 * PAGE, 4), state
    one.put(bytes(SIZE))
    keys.write(a, start + 7 * PAGE, mr.rkey, 1, e.IBV_WC_REM_ACCESS_ERR)
    assert one.get(SIZE) == bytes(SIZE)


def test_region_takes_segments(names):
    """A region of a buffer gets segments, loses its original memory, and is re-registered, all with the same keys."""
    a, b = pair(names)
    region, more = Region(b, 2 * PAGE, 4 * PAGE), keys.page_buffer(4)
    region.buf, before = region.iova, segments.pinned()
    segments.add(b, region, more, 2 * PAGE, region.iova + 4 * PAGE)
    data = keys.write(a, region.iova, region.rkey, 6 * PAGE)
    assert region.get(4 * PAGE) + segments.get(more, 2 * PAGE) == data
    add_buffer(b, region, region, 10 * PAGE, PAGE, region.iova + 6 * PAGE)
    segments.remove(b, region, handle=segments.FIRST)
    data = keys.write(a, region.iova + 4 * PAGE, region.rkey, 3 * PAGE, seed=4)
    assert segments.get(more, 2 * PAGE) + region.get(PAGE, 8 * PAGE) == data
    # Re-register the access rights of all segments; then replace all of them by memory of the process.
    assert keys.rereg(region, b, keys.ACCESS_, access=e.IBV_ACCESS_REMOTE_READ) == 0
    assert keys.read(a, region.iova + 4 * PAGE, region.rkey, 3 * PAGE) == data
    assert keys.rereg(region, b, keys.TRANS | keys.ACCESS_, addr=more, length=4 * PAGE, iova=0x10000, access=ACCESS) == 0
    assert segments.pinned() == before + 4 * PAGE
    data = keys.write(a, 0x10000, region.rkey, 4 * PAGE, seed=5)
    assert segments.get(more, 4 * PAGE) == data
    state = segments.remove(b, region, start=0, length=(1 << 64) - 1)
    assert state["flags"] == segments.RELEASED and segments.pinned() == before, state
    region.deregister()


def test_segments_at_random(names):
    """Adds and removes random ranges of memory and of buffers, and compares with a model of what is behind each page."""
    rng = host.random_of_run()
    a, b, mr, memory = segments.region(names, pages=4)
    space, zero = memory + 16 * PAGE, segments.pinned() - 4 * PAGE
    stores = [None, Buffer(), Buffer()]
    behind = {n: (None, 16 + n) for n in range(4)}
    for _ in range(100):
        at, length = rng.randrange(24), rng.randrange(1, 9)
        inside = set(range(at, at + length))
        if rng.randrange(5) < 3:
            store, page = rng.choice(stores), rng.randrange(64 - length)
            add = (lambda: add_buffer(b, mr, store, page * PAGE, length * PAGE, space + at * PAGE)) if store else \
                (lambda: segments.add(b, mr, memory + page * PAGE, length * PAGE, space + at * PAGE))
            if inside & set(behind):
                segments.refused(errno.EEXIST, add)
                continue
            state = add()
            behind |= {at + n: (store, page + n) for n in range(length)}
        elif inside & set(behind) and set(behind) - inside:
            state = segments.remove(b, mr, start=space + at * PAGE, length=length * PAGE)
            behind = {n: page for n, page in behind.items() if n not in inside}
        else:
            continue
        pinned = sum(store is None for store, _ in behind.values())
        assert state["bytes"] == len(behind) * PAGE and segments.pinned() == zero + pinned * PAGE, (state, behind)
        n = rng.choice(list(behind))
        store, page = behind[n]
        data = keys.write(a, space + n * PAGE, mr.rkey, 100, seed=rng.randrange(256))
        found = store.get(100, page * PAGE) if store else segments.get(memory + page * PAGE, 100)
        assert found == data, (n, page)
    holes = sorted(set(range(-1, 33)) - set(behind))
    keys.write(a, space + rng.choice(holes) * PAGE, mr.rkey, 1, e.IBV_WC_REM_ACCESS_ERR)


def test_bad_segments(names):
    """Invalid arguments fail with the right error and change nothing."""
    a, b, mr, memory = segments.region(names)
    at, buffer = memory + 32 * PAGE, Buffer()
    plain, refused = os.memfd_create("no buffer"), segments.refused
    for code, offset, length, iova, more in (
            (errno.EBADF, 0, PAGE, at, {"fd": 999}), (errno.EBADF, 0, PAGE, at, {"fd": -1}), (errno.EINVAL, 0, PAGE, at, {"fd": plain}),
            (errno.EINVAL, 1, PAGE, at, {}), (errno.EINVAL, 0, PAGE - 1, at, {}), (errno.EINVAL, 0, PAGE, at + 1, {}),
            (errno.EINVAL, 0, 0, at, {}), (errno.EINVAL, SIZE, PAGE, at, {}), (errno.EINVAL, 0, SIZE + PAGE, at, {}),
            (errno.EINVAL, (1 << 64) - PAGE, 2 * PAGE, at, {}), (errno.EINVAL, 0, PAGE, (1 << 64) - PAGE, {}),
            (errno.EEXIST, 0, PAGE, memory + 16 * PAGE, {}), (errno.EINVAL, 0, PAGE, at, {"flags": 3}), (errno.EINVAL, 0, PAGE, at, {"flags": 0})):
        refused(code, add_buffer, b, mr, buffer, offset, length, iova, **more)
    request = struct.pack("=QQQIIi", 0, PAGE, at, mr.rkey, ADD_DMABUF, buffer.buffer)
    refused(errno.EINVAL, segments.call, b.ctx.cmd_fd, mr.handle, segments.ADD, request + struct.pack("=I", 1))
    segments.refused_by_core(errno.EOPNOTSUPP, segments.call, b.ctx.cmd_fd, mr.handle, segments.ADD, request + bytes(4) + b"\1")
    # A request without the file descriptor has the value 0, which is no DMA buffer here.
    refused(errno.EINVAL, segments.call, b.ctx.cmd_fd, mr.handle, segments.ADD, request[:32])
    state = segments.decode(segments.call(b.ctx.cmd_fd, mr.handle, segments.ADD, request + bytes(12)))
    assert (state["bytes"], state["segments"]) == (5 * PAGE, 2), state
    data = keys.write(a, at, mr.rkey, PAGE)
    assert buffer.get(PAGE) == data
    demand = MR(b.pd, 4 * PAGE, ACCESS | e.IBV_ACCESS_ON_DEMAND, address=memory)
    refused(errno.EOPNOTSUPP, add_buffer, b, demand, buffer, 0, PAGE, at)


def test_segments_under_traffic(names):
    """A range of a buffer is removed while a peer writes to it: when the call has returned, it is not written any more."""
    buffer = Buffer()
    for iteration in range(6):
        a, b, mr, memory = segments.region(names, size=1 << 20)
        at = memory + 20 * PAGE
        a.mr.write(pattern(1 << 20, iteration), 1 << 20)
        add_buffer(b, mr, buffer, 0, SIZE, at)
        for _ in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(at, mr.rkey))
        time.sleep(0.002 * iteration)
        segments.remove(b, mr, start=at + 64 * PAGE, length=SIZE - 64 * PAGE)
        buffer.put(bytes(SIZE))
        statuses = []
        deadline = time.monotonic() + 20
        while len(statuses) < 20:
            assert time.monotonic() < deadline
            statuses += [wc.status for wc in a.cq.poll(20)[1]]
        assert set(statuses) <= {e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_WR_FLUSH_ERR}, statuses
        assert buffer.get(SIZE - 64 * PAGE, 64 * PAGE) == bytes(SIZE - 64 * PAGE), "memory was written after it was removed"
