# SPDX-License-Identifier: GPL-2.0
"""Completion notification, through pyverbs: both queue pairs in one process.

librxe cannot moderate completion queues, so the test writes the command itself.
"""
import ctypes
import errno
import os
import random
import re
import struct
import subprocess
import time

from pyverbs.device import Context
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import rings, uverbs
from lib.case import case
from lib.counters import counter
from lib.ends import QKEY, End, async_event, datagram, datagram_pair, in_thread, notified, pair

DEFAULTS = dict(timeout=40, driver="rxe_rs", reason="rdma_rxe has no moderation and no completion vectors")
EXTENDED, MODIFY_CQ = 0x80000000, 57
MODERATE = 1
# The longest moderation period in microseconds.
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
        assert time.monotonic() < deadline, "the condition did not become true in time"


def drain(end):
    total = 0
    while True:
        count, wcs = end.cq.poll(32)
        if not count:
            return total
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in wcs)
        total += count


def send(a, b, count=1, flags=0):
    """Sends messages of a few bytes and polls their completions at a."""
    for _ in range(count):
        b.recv(b.sge(64))
    for _ in range(count):
        a.post(e.IBV_WR_SEND, a.sge(8), flags=e.IBV_SEND_SIGNALED | flags)
    for _ in range(count):
        a.complete()


def test_moderation_limits(names):
    """The device reports the limits of moderation."""
    caps = Context(name=names[0]).query_device_ex().cq_mod_caps
    assert caps.max_cq_count == 65535 and caps.max_cq_period == 65535, caps


def test_moderation_bad(names):
    """Invalid moderation commands are refused; the details of a CQ show count and period if they have an effect."""
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
    """With fewer completions than the moderation count, there is an event when the moderation period is over, and not before."""
    a, b = pair(names, b_events=True)
    moderate(b, 1000, LONGEST)
    for _ in range(5):
        b.cq.req_notify(0)
        begin = time.monotonic()
        send(a, b)
        assert notified(b, 10), "no event"
        elapsed = time.monotonic() - begin
        assert elapsed >= LONGEST / 1e6, f"the event came after {elapsed} s"
        assert drain(b) == 1
    # For the next event the CQ must be armed again.
    send(a, b)
    assert not notified(b, 0.3)
    assert drain(b) == 1


def test_moderation_count(names):
    """With as many completions as the moderation count, there is an event before the period is over."""
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
    # On a slow machine some events may come after the period.
    assert early, "every event came after the period"


def test_moderation_solicited(names):
    """With a CQ that is armed for solicited completions, only these cause an event, in spite of moderation."""
    a, b = pair(names, b_events=True)
    moderate(b, 2, 20000)
    b.cq.req_notify(1)
    send(a, b, 4)
    assert not notified(b, 0.2), "an event for completions that were not solicited"
    send(a, b, 1, e.IBV_SEND_SOLICITED)
    assert notified(b, 10), "no event for a solicited completion"
    assert drain(b) == 5
    # Armed for solicited and then for all completions: there is one event.
    b.cq.req_notify(1)
    b.cq.req_notify(0)
    send(a, b)
    assert notified(b, 10) and not notified(b, 0.2)
    assert drain(b) == 1


def test_moderation_changed(names):
    """A moderated event is not lost when moderation or the size of the CQ changes."""
    a, b = pair(names, b_events=True)
    for change in (lambda: moderate(b, 0, 0), lambda: moderate(b, 1000, 10), lambda: b.cq.resize(300), lambda: None):
        moderate(b, 1000, LONGEST)
        b.cq.req_notify(0)
        send(a, b)
        change()
        assert notified(b, 10), "the event was lost"
        assert drain(b) == 1
    moderate(b, 0, 0)
    for _ in range(20):
        b.cq.req_notify(0)
        send(a, b)
        assert notified(b, 10)
        drain(b)


def stream(a, b, bursts, alter=lambda: None):
    """Bursts of messages: the receiver polls only after events, and arms the CQ before it polls."""
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
        # There may be an event for completions that were already polled.
        while notified(b, 0.005):
            pass


def test_moderation_loses_nothing(names):
    """A receiver that polls only after events gets all completions of a moderated CQ."""
    a, b = pair(names, b_events=True)
    moderate(b, 5, 2000)
    stream(a, b, 60)


def test_moderation_under_traffic(names):
    """No event is lost while the moderation changes continually."""
    a, b = pair(names, b_events=True)

    def change(stop):
        rng = random.Random(3)
        while not stop.is_set():
            moderate(b, rng.randrange(6), rng.randrange(3000))
            time.sleep(rng.random() / 300)

    with in_thread(change):
        stream(a, b, 60)


def test_moderation_torn_down(names):
    """CQs with a moderated event are destroyed by a call and by the exit of their process."""
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
    """The driver's details about a CQ of this process."""
    text = subprocess.run(["rdma", "-dd", "resource", "show", "cq", "dev", names[2]], check=True, capture_output=True, text=True).stdout
    for queue in " ".join(text.split()).split(" dev "):
        words = queue.split()
        found = {name: int(value) for name, value in zip(words, words[1:]) if name.startswith("drv_")}
        if "python3" in queue and str(os.getpid()) in words:
            return found
    raise AssertionError(text)


@case(cpus=2)
def test_vectors(names):
    """Completions of any processor notify on that of the CQ's vector, except that vector 0 notifies on the processor of the completion."""
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
                    assert got["drv_last_comp_cpu"] == got["drv_vector_cpu"], f"from {home}: {got}"
                    seen.add((vector, got["drv_vector_cpu"]))
                else:
                    assert "drv_vector_cpu" not in got, got
            for thing in (a.qp, b.qp, b.cq, b.channel):
                thing.close()
    assert len(seen) == len({cpu for _, cpu in seen} - {cpus[0]}) == min(count, 4) - 1, seen


def test_vectors_torn_down(names):
    """CQs are destroyed while another processor may be notifying."""
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
    """The wr_id of the completion in a slot."""
    return int.from_bytes(ctypes.string_at(ring.address + rings.HEADER + ((index & ring.mask) << ring.log2), 8), "little")


def ring_of(end):
    """The mapped ring of an end's CQ: no other one in the process has that size. Half of what was asked for, and two elements, are to spare."""
    mask = (1 << (end.cq.cqe + (end.cq.cqe + 1) // 2 + 1).bit_length()) - 1
    found = [ring for ring in rings.mapped() if (ring.log2, ring.mask) == (6, mask)]
    assert len(found) == 1, [(ring.log2, ring.mask) for ring in rings.mapped()]
    return found[0]


def poll_as_old_library(ring):
    """Polls all completions as librxe 34 to 54 does in ibv_start_poll(), ibv_next_poll() until there is no more, and ibv_end_poll(), which
    leaves the consumer index one past the producer index. Returns their wr_ids."""
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


def posts_within_a_batch(names, cqe):
    """Runs what the next test is about. Returns false if the program was too slow for that: the driver waits for 250 ms."""
    a, b = pair(names, cqe=cqe, b_cqe=256)
    ring, remote = ring_of(a), (b.mr.buf, b.mr.rkey)
    posted, index, batches = 1, word(ring, rings.CONSUMER), 0
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), wr_id=posted, remote=remote)
    while posted < 500:
        soon(lambda: word(ring, rings.PRODUCER) != index)
        begin = time.monotonic()
        while index != word(ring, rings.PRODUCER):
            assert slot_id(ring, index) == posted
            index = index + 1 & ring.mask
            posted += 1
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), wr_id=posted, remote=remote)
        ring.number(rings.CONSUMER, index)
        if time.monotonic() > begin + 0.2:
            return False
        batches += 1
    soon(lambda: slot_id(ring, index) == posted)
    assert batches > 1, "only one batch"
    assert a.state() == b.state() == e.IBV_QPS_RTS, "a queue pair has failed"
    assert async_event(a.ctx, 0.2) is None, "an event"
    return True


def test_posts_within_a_batch(names):
    """A program posts a request for each completion that ibv_next_poll() returns. Its requests may complete before the doorbell returns,
    but it must find the end of the completions nevertheless, because only then librxe publishes what it has taken. Its completion queue may
    be as small as one completion, if one request is outstanding."""
    for cqe in (1, 2, 14, 56):
        assert any(posts_within_a_batch(names, cqe) for _ in range(20)), "the machine is too slow"


def post_writes(end, remote, ids, together):
    """Posts WRITEs singly, or as a list."""
    if not together:
        for n in ids:
            end.post(e.IBV_WR_RDMA_WRITE, end.sge(8), wr_id=n, remote=remote)
        return
    # All of them, because a request does not keep the next one.
    chain = [None]
    for n in reversed(ids):
        wr = SendWR(wr_id=n, num_sge=1, sg=[end.sge(8)], opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED, next_wr=chain[-1])
        wr.set_wr_rdma(remote[1], remote[0])
        chain.append(wr)
    end.qp.post_send(chain[-1])


def lists_within_a_batch(names, together):
    """Runs what the next test is about; as `posts_within_a_batch`."""
    a, b = pair(names, cqe=14, b_cqe=256)
    ring, remote, taken, number = ring_of(a), (b.mr.buf, b.mr.rkey), 0, 0
    for count in (11, 11, 14, 14, 1, 14) * 3:
        begin = time.monotonic()
        post_writes(a, remote, range(number, number + count), together)
        # The completions of the last round have been taken, but that is published only now.
        time.sleep(0.02)
        ring.number(rings.CONSUMER, taken)
        if time.monotonic() > begin + 0.2:
            return False
        soon(lambda: word(ring, rings.PRODUCER) == (taken + count & ring.mask))
        assert [slot_id(ring, taken + n) for n in range(count)] == list(range(number, number + count))
        taken, number = taken + count & ring.mask, number + count
    assert a.state() == b.state() == e.IBV_QPS_RTS, "a queue pair has failed"
    assert async_event(a.ctx, 0.2) is None, "an event"
    return True


def test_lists_within_a_batch(names):
    """A program takes all completions by ibv_next_poll(), posts as many requests or more, as many as fit into its queue, and needs a while
    until ibv_end_poll(). All its requests complete, although the queue looks full meanwhile."""
    for together in (False, True):
        assert any(lists_within_a_batch(names, together) for _ in range(20)), "the machine is too slow"


def test_full_for_several(names):
    """Two queue pairs have one completion queue, which looks full. A message for one of them that has taken a receive request before completes
    nevertheless. If one queue pair fails, what is flushed is not lost, and the other one continues."""
    a, b, ah = datagram_pair(names, b_cqe=14)
    ring, taken = ring_of(b), 0
    other = b.with_another_qp()
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    other.qp.to_rts(attr)

    def receives(end, *ids):
        for n in ids:
            end.recv(end.sge(200), wr_id=n)

    def arrive(end, length=100, completes=True):
        nonlocal taken
        datagram(a, end, ah, 0, length=length)
        a.complete()
        taken += completes
        soon(lambda: word(ring, rings.PRODUCER) == (taken & ring.mask))

    receives(b, *range(14))
    receives(other, 14)
    for _ in range(13):
        arrive(b)
    # This one is too long for the receive request, which the next one uses.
    arrive(b, length=1000, completes=False)
    arrive(other)
    arrive(b)
    assert slot_id(ring, taken - 1) == 13
    # All of these have been taken, but that is not published; there is room for what is posted.
    ring.number(rings.CONSUMER, 5)
    receives(b, *range(20, 27))
    receives(other, *range(30, 37))
    for _ in range(3):
        arrive(other)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    taken += 7
    soon(lambda: word(ring, rings.PRODUCER) == (taken & ring.mask))
    ring.number(rings.CONSUMER, taken & ring.mask)
    arrive(other)
    assert other.state() == e.IBV_QPS_RTS, "the other queue pair has failed"
    assert async_event(b.ctx, 0.2) is None, "an event"


def test_no_receive_and_full(names):
    """A message for which no receive request is posted is answered so (RNR NAK), although the queue is full, of completions for which the
    process had left room. The peer repeats it for as long as it takes."""
    a, b = pair(names, b_cqe=14, timeout=10, retries=7, rnr_retries=7)
    for n in range(14):
        b.recv(b.sge(64), wr_id=n)
    for n in range(15):
        a.post(e.IBV_WR_SEND, a.sge(8), wr_id=n)
    for n in range(14):
        assert a.complete().wr_id == n
    a.no_completion(1)
    b.recv(b.sge(64), wr_id=14)
    for n in range(15):
        assert b.complete().wr_id == n
    assert a.complete().wr_id == 14


def batches_of_receives(names):
    """Runs what the next test is about. Returns false if the program was too slow for that: the driver waits for 250 ms."""
    a, b = pair(names, b_cqe=14)
    ring, capacity = ring_of(b), b.cq.cqe
    index = got = sent = posted = 0

    def receives(count):
        nonlocal posted
        for _ in range(count):
            b.recv(b.sge(64), wr_id=posted)
            posted += 1

    def messages(count):
        nonlocal sent
        for _ in range(count):
            a.post(e.IBV_WR_SEND, a.sge(8), wr_id=sent)
            sent += 1

    receives(capacity)
    messages(capacity)
    for _ in range(5):
        last = got + capacity
        while got < last:
            soon(lambda: word(ring, rings.PRODUCER) != index)
            assert slot_id(ring, index) == got
            index, got = index + 1 & ring.mask, got + 1
            receives(1)
        arrived, begin = counter(names[2], "rcvd_pkts"), time.monotonic()
        messages(1)
        # It finds a queue that looks full. The counters that the kernel shows may be 10 ms old.
        while counter(names[2], "rcvd_pkts") == arrived and time.monotonic() < begin + 0.1:
            pass
        ring.number(rings.CONSUMER, index)
        if time.monotonic() > begin + 0.2:
            return False
        messages(capacity - 1)
        drain(a)
    soon(lambda: word(ring, rings.PRODUCER) == (index + capacity & ring.mask))
    assert a.state() == b.state() == e.IBV_QPS_RTS, "a queue pair has failed"
    assert async_event(b.ctx, 0.2) is None, "an event"
    # Nothing has been consumed of the last batch.
    receives(1)
    messages(1)
    assert sorted(async_event(b.ctx, 5) for _ in range(2)) == sorted([e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL])
    return True


def test_posts_receives_within_a_batch(names):
    """A program posts a receive request for each completion that ibv_next_poll() returns, and is not scheduled before ibv_end_poll(). Messages
    wait then, because the CQ looks full. If the program consumes nothing for too long, the CQ is in error."""
    assert any(batches_of_receives(names) for _ in range(20)), "the machine is too slow"


def test_old_library(names):
    """A program with such a library gets every completion once, and its queue pairs do not fail. A CQ that is full does."""
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
        rounds = 10000 if "User Mode Linux" in info.read() else 2500
    for iteration in range(rounds):
        if iteration % 50 == 1:
            # Arming the CQ corrects the index at once, because polling comes next.
            a.cq.req_notify(0)
            assert word(ring, rings.CONSUMER) == word(ring, rings.PRODUCER), f"iteration {iteration}"
        count = rng.choice((1, 1, 2)) if iteration % 500 else capacity
        first = number + 1
        for part in range(0, count, 14):
            post(min(14, count - part))
        got = poll_as_old_library(ring)
        assert got == list(range(first, first + count)), f"iteration {iteration}, {count} of them: {got}"
    assert a.state() == b.state() == e.IBV_QPS_RTS
    assert async_event(a.ctx, 0.2) is None, "an event"
    repairs = re.findall(r"drv_index_repairs (\d+)", subprocess.run(["rdma", "-dd", "resource", "show", "cq"], capture_output=True, text=True,
                                                                    check=True).stdout)
    # The index that the last round left has not been corrected yet.
    assert repairs == [str(rounds - 1)], repairs
    for _ in range(capacity // 14):
        post(14)
    post(capacity % 14)
    assert a.state() == e.IBV_QPS_RTS
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(1), remote=remote)
    events = sorted(async_event(a.ctx, 5) for _ in range(2))
    assert events == sorted((e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL)), events


def resize_raw(end, size):
    """Resizes the CQ without the library's knowledge; returns the mapped ring."""
    response = ctypes.create_string_buffer(64)
    command_of = struct.pack("=QII", ctypes.addressof(response), handle_of(end.cq), size)
    uverbs.command(end.ctx.cmd_fd, rings.RESIZE_CQ, command_of, 24)
    offset, length = struct.unpack_from("=QI", response.raw, 8)
    return rings.Ring(rings.LIBC.mmap(None, length, 3, 1, end.ctx.cmd_fd, offset), length, offset)


def test_hostile_index(names):
    """The consumer index of a process is not trusted: resizing keeps at most as many completions as there were since the last poll.
    """
    a, b = pair(names, depth=14, b_depth=64)
    ring, rng, number = ring_of(a), random.Random(6), 0
    remote = (b.mr.buf, b.mr.rkey)
    sizes = (14, 100, 1000, 4000)
    for iteration in range(100):
        count = rng.randrange(5)
        before = word(ring, rings.PRODUCER)
        for _ in range(count):
            number += 1
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(1), wr_id=number, remote=remote)
        soon(lambda: word(ring, rings.PRODUCER) == (before + count & ring.mask))
        past = rng.choice((1, 2, ring.mask - count, rng.getrandbits(20)))
        ring.number(rings.CONSUMER, before + count + past)
        sane = (past & ring.mask) >= (ring.mask + 1 - count)
        ring = resize_raw(a, sizes[iteration % 4])
        held = word(ring, rings.PRODUCER) - word(ring, rings.CONSUMER) & ring.mask
        assert held <= count and (sane or held == 0), f"iteration {iteration}: {held} of {count}"
        assert [slot_id(ring, n) for n in range(held)] == list(range(number + 1 - held, number + 1)), f"iteration {iteration}"
        ring.number(rings.CONSUMER, word(ring, rings.PRODUCER))
    assert a.state() == e.IBV_QPS_RTS
    assert async_event(a.ctx, 0.2) is None, "an event"


def test_resized_under_traffic(names):
    """Completions during a resize are neither lost nor duplicated nor reordered."""
    a, b = pair(names, depth=60, size=1 << 20, b_depth=250)
    rng, number, seen = random.Random(7), 0, 0
    for iteration in range(60):
        posted = rng.randrange(20, 60)
        for _ in range(posted):
            number += 1
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(rng.choice((1, 5000))), wr_id=number, remote=(b.mr.buf, b.mr.rkey))
        deadline = time.monotonic() + 20
        while seen < number:
            a.cq.resize(rng.choice((70, 200, 1000)))
            for wc in a.cq.poll(rng.randrange(1, 70))[1] or []:
                seen += 1
                assert wc.status == e.IBV_WC_SUCCESS and wc.wr_id == seen, f"iteration {iteration}: {wc.wr_id} instead of {seen}, status {wc.status}"
            assert time.monotonic() < deadline, f"iteration {iteration}: {seen} of {number}"
