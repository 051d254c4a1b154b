#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""When consumers of completion queues are told, through pyverbs: both queue pairs in one process.

cq.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE

Case names are the functions below. librxe has no call that moderates a queue: the command goes to the kernel as it is.
"""
import errno
import os
import random
import re
import struct
import subprocess
import sys
import threading
import time

from pyverbs.device import Context
import pyverbs.enums as e

from status import End, notified, pair

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


def moderation_limits(names):
    caps = Context(name=names[0]).query_device_ex().cq_mod_caps
    assert caps.max_cq_count == 65535 and caps.max_cq_period == 65535, caps


def moderation_bad(names):
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


def moderation_period(names):
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


def moderation_count(names):
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


def moderation_solicited(names):
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


def moderation_changed(names):
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


def moderation_loses_nothing(names):
    a, b = pair(names, b_events=True)
    moderate(b, 5, 2000)
    stream(a, b, 60)


def moderation_under_traffic(names):
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


def moderation_torn_down(names):
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


def vectors(names):
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


def vectors_torn_down(names):
    """Queues go while their consumer is being told elsewhere."""
    count = Context(name=names[2]).num_comp_vectors
    for n in range(12):
        a, b = pair(names, b_events=True, b_vector=n % count)
        b.cq.req_notify(0)
        b.recv(b.sge(64))
        a.post(e.IBV_WR_SEND, a.sge(8))
        for thing in (b.qp, b.cq, b.channel):
            thing.close()


CASES = [moderation_limits, moderation_bad, moderation_period, moderation_count, moderation_solicited, moderation_changed,
         moderation_loses_nothing, moderation_under_traffic, moderation_torn_down, vectors, vectors_torn_down]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
