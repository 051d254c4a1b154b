# SPDX-License-Identifier: GPL-2.0
"""When consumers of completion queues are told, through pyverbs: both queue pairs in one process.

librxe has no call that moderates a queue: the command goes to the kernel as it is.
"""
import ctypes
import errno
import os
import random
import re
import struct
import subprocess
import threading
import time

from pyverbs.device import Context
import pyverbs.enums as e

from lib import rings, uverbs
from lib.case import case
from lib.ends import End, async_event, notified, pair

DEFAULTS = dict(timeout=40, driver="rxe_rs", reason="rdma_rxe has no moderation and knows no vectors")
EXTENDED, MODIFY_CQ = 0x80000000, 57
MODERATE = 1
# The longest time in microseconds that can be asked for.
LONGEST = 65535


def command(end, handle, count, period, mask=MODERATE, reserved=0):
    request = struct.pack("=IHHQHHIIIHHI", EXTENDED | MODIFY_CQ, 2, 0, 0, 0, 0, 0, handle, mask, count, period, reserved)
    os.write(end.ctx.cmd_fd, request)


def handle_of(cq):
    return int(re.search(r"Handle\s*:?\s*(\d+)", str(cq)).group(1))


def moderate(end, count, period):
    command(end, handle_of(end.cq), count, period)


def refused(code, *arguments, **more):
    try:
        command(*arguments, **more)
    except OSError as error:
        assert error.errno == code, error
        return
    raise AssertionError(f"{arguments[1:]} {more} was accepted")


def soon(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not in time"


def drain(end):
    total = 0
    while True:
        count, wcs = end.cq.poll(32)
        if not count:
            return total
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in wcs)
        total += count


def send(a, b, count=1, flags=0):
    """Messages of a few bytes. What completes at A is taken, for nobody is told there."""
    for _ in range(count):
        b.recv(b.sge(64))
    for _ in range(count):
        a.post(e.IBV_WR_SEND, a.sge(8), flags=e.IBV_SEND_SIGNALED | flags)
    for _ in range(count):
        a.complete()


def test_moderation_limits(names):
    caps = Context(name=names[0]).query_device_ex().cq_mod_caps
    assert caps.max_cq_count == 65535 and caps.max_cq_period == 65535, caps


def test_moderation_bad(names):
    end = End(names[0], int(names[1]))
    handle = handle_of(end.cq)
    refused(errno.EINVAL, end, handle, 1, 1, mask=0)
    refused(errno.EOPNOTSUPP, end, handle, 1, 1, mask=2)
    refused(errno.EINVAL, end, handle, 1, 1, reserved=1)
    refused(errno.ENOENT, end, handle + 1000, 1, 1)
    for count, period in ((0, 0), (1, 0), (0, 1), (65535, 0), (0, 65535), (65535, 65535), (2, 1)):
        command(end, handle, count, period)
        details = subprocess.run(["rdma", "-dd", "resource", "show", "cq", "dev", names[0]], check=True, capture_output=True, text=True).stdout
        shown = f"drv_moderation_count {count} drv_moderation_period_us {period}"
        assert (shown in " ".join(details.split())) == (count > 1 and period > 0), details


def test_moderation_period(names):
    """One completion of a queue that waits for more of them is told of when the time is over, not before, not never."""
    a, b = pair(names, b_events=True)
    moderate(b, 1000, LONGEST)
    for _ in range(5):
        b.cq.req_notify(0)
        begin = time.monotonic()
        send(a, b)
        assert notified(b, 10), "no event"
        elapsed = time.monotonic() - begin
        assert elapsed >= LONGEST / 1e6, f"told after {elapsed}"
        assert drain(b) == 1
    # And the queue must be armed again for the next.
    send(a, b)
    assert not notified(b, 0.3)
    assert drain(b) == 1


def test_moderation_count(names):
    """The event comes when there are enough completions, without the time having passed."""
    a, b = pair(names, b_events=True)
    moderate(b, 4, LONGEST)
    early = 0
    for _ in range(30):
        b.cq.req_notify(0)
        begin = time.monotonic()
        send(a, b, 4)
        assert notified(b, 10), "no event"
        elapsed = time.monotonic() - begin
        early += elapsed < LONGEST / 1e6
        assert drain(b) == 4
    # A slow machine may need the time now and then.
    assert early, "always told by the time"


def test_moderation_solicited(names):
    a, b = pair(names, b_events=True)
    moderate(b, 2, 20000)
    b.cq.req_notify(1)
    send(a, b, 4)
    assert not notified(b, 0.2), "told of what was not solicited"
    send(a, b, 1, e.IBV_SEND_SOLICITED)
    assert notified(b, 10), "no event for a solicited completion"
    assert drain(b) == 5
    # Armed for everything after that: one arming, one event.
    b.cq.req_notify(1)
    b.cq.req_notify(0)
    send(a, b)
    assert notified(b, 10) and not notified(b, 0.2)
    assert drain(b) == 1


def test_moderation_changed(names):
    """What is held back is not forgotten when the settings change, nor when the queue does."""
    a, b = pair(names, b_events=True)
    for change in (lambda: moderate(b, 0, 0), lambda: moderate(b, 1000, 10), lambda: b.cq.resize(300), lambda: None):
        moderate(b, 1000, LONGEST)
        b.cq.req_notify(0)
        send(a, b)
        change()
        assert notified(b, 10), "forgotten"
        assert drain(b) == 1
    moderate(b, 0, 0)
    for _ in range(20):
        b.cq.req_notify(0)
        send(a, b)
        assert notified(b, 10)
        drain(b)


def stream(a, b, bursts, alter=lambda: None):
    """Bursts whose completions are taken by events only, the queue being armed before it is looked at."""
    rng = random.Random(7)
    for _ in range(bursts):
        alter()
        count = rng.randrange(1, 12)
        b.cq.req_notify(0)
        got = drain(b)
        assert not got
        send(a, b, count)
        while got < count:
            assert notified(b, 10), f"{got} of {count} and no event"
            b.cq.req_notify(0)
            got += drain(b)
        # Told of what was taken already, perhaps: the time of the last ones.
        while notified(b, 0.005):
            pass


def test_moderation_loses_nothing(names):
    a, b = pair(names, b_events=True)
    moderate(b, 5, 2000)
    stream(a, b, 60)


def test_moderation_under_traffic(names):
    """Settings change all the time while messages come."""
    a, b = pair(names, b_events=True)
    stop = threading.Event()

    def change():
        rng = random.Random(3)
        while not stop.is_set():
            moderate(b, rng.randrange(6), rng.randrange(3000))
            time.sleep(rng.random() / 300)

    other = threading.Thread(target=change)
    other.start()
    try:
        stream(a, b, 60)
    finally:
        stop.set()
        other.join()


def test_moderation_torn_down(names):
    """Queues go while they hold something back, by a call and with their process."""
    for _ in range(10):
        a, b = pair(names, b_events=True)
        moderate(b, 1000, 3000)
        b.cq.req_notify(0)
        send(a, b)
        for thing in (a.qp, b.qp, b.cq, b.channel):
            thing.close()
    for _ in range(4):
        child = os.fork()
        if not child:
            a, b = pair(names, b_events=True)
            moderate(b, 1000, 3000)
            b.cq.req_notify(0)
            send(a, b)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def details_of(names, end):
    """The driver's lines about a queue."""
    text = subprocess.run(["rdma", "-dd", "resource", "show", "cq", "dev", names[2]], check=True, capture_output=True, text=True).stdout
    for queue in " ".join(text.split()).split(" dev "):
        words = queue.split()
        found = {name: int(value) for name, value in zip(words, words[1:]) if name.startswith("drv_")}
        if "python3" in queue and str(os.getpid()) in words:
            return found
    raise AssertionError(text)


@case(cpus=2)
def test_vectors(names):
    """Wherever a completion arises, its consumer is told on the processor of the queue's vector, but where it arises for vector 0."""
    cpus = sorted(os.sched_getaffinity(0))
    count = Context(name=names[2]).num_comp_vectors
    assert count == len(cpus), f"{count} vectors, processors {cpus}"
    seen = set()
    for home in cpus[:4]:
        os.sched_setaffinity(0, {home})
        for vector in range(min(count, 4)):
            a, b = pair(names, b_events=True, b_vector=vector)
            for _ in range(3):
                b.cq.req_notify(0)
                send(a, b)
                assert notified(b, 10), "no event"
                assert drain(b) == 1
                got = details_of(names, b)
                assert got["drv_comp_vector"] == vector, got
                if vector:
                    assert got["drv_told_on_cpu"] == got["drv_vector_cpu"], f"from {home}: {got}"
                    seen.add((vector, got["drv_vector_cpu"]))
                else:
                    assert "drv_vector_cpu" not in got, got
            for thing in (a.qp, b.qp, b.cq, b.channel):
                thing.close()
    assert len(seen) == len({cpu for _, cpu in seen} - {cpus[0]}) == min(count, 4) - 1, seen


def test_vectors_torn_down(names):
    """Queues go while their consumer is being told elsewhere."""
    count = Context(name=names[2]).num_comp_vectors
    for n in range(12):
        a, b = pair(names, b_events=True, b_vector=n % count)
        b.cq.req_notify(0)
        b.recv(b.sge(64))
        a.post(e.IBV_WR_SEND, a.sge(8))
        for thing in (b.qp, b.cq, b.channel):
            thing.close()


def word(ring, offset):
    return int.from_bytes(ctypes.string_at(ring.address + offset, 4), "little")


def slot_id(ring, index):
    """The number of the work request whose completion is in a slot."""
    return int.from_bytes(ctypes.string_at(ring.address + rings.HEADER + ((index & ring.mask) << ring.log2), 8), "little")


def ring_of(end):
    """The mapped ring of an end's completion queue: no other one in the process is of that size."""
    found = [ring for ring in rings.mapped() if ring.log2 == 6 and ring.mask >= end.cq.cqe and ring.mask // 2 < end.cq.cqe]
    assert len(found) == 1, [(ring.log2, ring.mask) for ring in rings.mapped()]
    return found[0]


def poll_as_old_library(ring):
    """Takes all completions as librxe 44 to 52 does in ibv_start_poll(), ibv_next_poll() until there is no more, ibv_end_poll(): the index is
    one past the driver's then. Returns their numbers."""
    index, got = word(ring, rings.CONSUMER), []
    if index == word(ring, rings.PRODUCER):
        return got
    while True:
        got.append(slot_id(ring, index))
        index = index + 1 & ring.mask
        if index == word(ring, rings.PRODUCER):
            ring.number(rings.CONSUMER, index)
            break
    ring.number(rings.CONSUMER, index + 1 & ring.mask)
    return got


def test_old_library(names):
    """Such a library gets every completion once, and its queue pairs live. A queue that is really full still fails."""
    a, b = pair(names, depth=14, b_depth=64)
    ring, rng = ring_of(a), random.Random(5)
    capacity, number = a.cq.cqe, 0
    remote = (b.mr.buf, b.mr.rkey)

    def post(count):
        nonlocal number
        for _ in range(count):
            number += 1
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(1), wr_id=number, remote=remote)
        soon(lambda: slot_id(ring, word(ring, rings.PRODUCER) - 1) == number)

    with open("/proc/cpuinfo") as info:
        turns = 10000 if "User Mode Linux" in info.read() else 2500
    for turn in range(turns):
        if turn % 50 == 1:
            # Who asks to be told is put right at once, for it looks next.
            a.cq.req_notify(0)
            assert word(ring, rings.CONSUMER) == word(ring, rings.PRODUCER), f"turn {turn}"
        count = rng.choice((1, 1, 2)) if turn % 500 else capacity
        first = number + 1
        for part in range(0, count, 14):
            post(min(14, count - part))
        got = poll_as_old_library(ring)
        assert got == list(range(first, first + count)), f"turn {turn}, {count} of them: {got}"
    assert a.state() == b.state() == e.IBV_QPS_RTS
    assert async_event(a.ctx, 0.2) is None, "an event"
    repairs = re.findall(r"drv_index_repairs (\d+)", subprocess.run(["rdma", "-dd", "resource", "show", "cq"], capture_output=True, text=True,
                                                                    check=True).stdout)
    # What the last turn left has not been looked at yet.
    assert repairs == [str(turns - 1)], repairs
    for _ in range(capacity // 14):
        post(14)
    post(capacity % 14)
    assert a.state() == e.IBV_QPS_RTS
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(1), remote=remote)
    events = sorted(async_event(a.ctx, 5) for _ in range(2))
    assert events == sorted((e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL)), events


def resize_raw(end, size):
    """Changes the size without the library's knowledge; returns the mapped ring."""
    answer = ctypes.create_string_buffer(64)
    command_of = struct.pack("=QII", ctypes.addressof(answer), handle_of(end.cq), size)
    uverbs.command(end.ctx.cmd_fd, rings.RESIZE_CQ, command_of, 24)
    offset, length = struct.unpack_from("=QI", answer.raw, 8)
    return rings.Ring(rings.LIBC.mmap(None, length, 3, 1, end.ctx.cmd_fd, offset), length)


def test_hostile_index(names):
    """What a process says that it has not consumed decides nothing: a queue never holds more than was completed, whatever its index, and
    changing its size moves that much."""
    a, b = pair(names, depth=14, b_depth=64)
    ring, rng, number = ring_of(a), random.Random(6), 0
    remote = (b.mr.buf, b.mr.rkey)
    sizes = (14, 100, 1000, 4000)
    for turn in range(100):
        count = rng.randrange(5)
        before = word(ring, rings.PRODUCER)
        for _ in range(count):
            number += 1
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(1), wr_id=number, remote=remote)
        soon(lambda: word(ring, rings.PRODUCER) == (before + count & ring.mask))
        past = rng.choice((1, 2, ring.mask - count, rng.getrandbits(20)))
        ring.number(rings.CONSUMER, before + count + past)
        sane = (past & ring.mask) >= (ring.mask + 1 - count)
        ring = resize_raw(a, sizes[turn % 4])
        held = word(ring, rings.PRODUCER) - word(ring, rings.CONSUMER) & ring.mask
        assert held <= count and (sane or held == 0), f"turn {turn}: {held} of {count}"
        assert [slot_id(ring, n) for n in range(held)] == list(range(number + 1 - held, number + 1)), f"turn {turn}"
        ring.number(rings.CONSUMER, word(ring, rings.PRODUCER))
    assert a.state() == e.IBV_QPS_RTS
    assert async_event(a.ctx, 0.2) is None, "an event"


def test_resized_under_traffic(names):
    """Completions that arise while the size changes are neither lost, doubled nor moved past others."""
    a, b = pair(names, depth=60, size=1 << 20, b_depth=250)
    rng, number, seen = random.Random(7), 0, 0
    for turn in range(60):
        posted = rng.randrange(20, 60)
        for _ in range(posted):
            number += 1
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(rng.choice((1, 5000))), wr_id=number, remote=(b.mr.buf, b.mr.rkey))
        deadline = time.monotonic() + 20
        while seen < number:
            a.cq.resize(rng.choice((70, 200, 1000)))
            for wc in a.cq.poll(rng.randrange(1, 70))[1] or []:
                seen += 1
                assert wc.status == e.IBV_WC_SUCCESS and wc.wr_id == seen, f"turn {turn}: {wc.wr_id} instead of {seen}, status {wc.status}"
            assert time.monotonic() < deadline, f"turn {turn}: {seen} of {number}"
