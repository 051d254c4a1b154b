#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""As segments.py: regions with many segments, regions that change under traffic, what is pinned, and how they end.

segments_life.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import errno
import os
import re
import resource
import subprocess
import sys
import threading
import time

from pyverbs.mr import MR
import pyverbs.enums as e

from lib.ends import ACCESS, pair, pattern
from lib.keys import PAGE, REFUSED, page_buffer, read, write
from lib.memory import repeated_mapping
from lib.segments import FIRST, MAX, MIB, Refused, add, get, pinned, put, refused, region, remove


def many(names):
    """As many as there may be, one message through all of them, and not one more."""
    size = MAX * PAGE
    a, b = pair(names, size=size, timeout=20)
    base, space = page_buffer(MAX), 1 << 44
    mr = MR(b.pd, PAGE, ACCESS, address=base)
    # Every other one first, then what is between, so that they come in the middle of the table.
    for n in [*range(2, MAX, 2), *range(1, MAX, 2)]:
        # Memory in another order than the addresses.
        state = add(b, mr, base + n * PAGE, PAGE, base + n * PAGE)
    assert (state["segments"], state["bytes"], state["length"]) == (MAX, size, size), state
    refused(errno.ENOSPC, add, b, mr, base, PAGE, space)
    data = pattern(size, 6)
    a.mr.write(data, size)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(base, mr.rkey))
    a.complete(seconds=60)
    assert get(base, size) == data
    a.mr.write(bytes(size), size)
    a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(base, mr.rkey))
    a.complete(seconds=60)
    assert a.mr.read(size, 0) == data
    remove(b, mr, handle=77)
    add(b, mr, base, PAGE, space)
    state = remove(b, mr, start=base, length=PAGE)
    assert state["segments"] == MAX - 1, state
    write(a, space, mr.rkey, PAGE)
    # To cut one in two takes room for one more.
    state = add(b, mr, base, 3 * PAGE, 2 * space)
    assert state["segments"] == MAX, state
    refused(errno.ENOSPC, remove, b, mr, start=2 * space + PAGE, length=PAGE)
    data = write(a, 2 * space, mr.rkey, 3 * PAGE)
    assert get(base, 3 * PAGE) == data
    state = remove(b, mr, start=2 * space, length=PAGE)
    assert (state["segments"], state["bytes"]) == (MAX, size + PAGE), state


def under_traffic(names):
    """Growing and shrinking, again and again, refuses and delays nothing that goes to what stays."""
    a, b = pair(names, size=1 << 16)
    extra = page_buffer(64)
    stop = threading.Event()
    failures, turns, slowest = [], [0], [0.0]

    def change():
        far = 1 << 40
        try:
            while not stop.is_set():
                begin = time.monotonic()
                handles = [add(b, b.mr, extra + n * PAGE, PAGE, far + n * PAGE)["handle"] for n in (0, 1, 3, 5)]
                remove(b, b.mr, start=far, length=2 * PAGE)
                for handle in handles[2:]:
                    remove(b, b.mr, handle=handle)
                turns[0] += 1
                slowest[0] = max(slowest[0], time.monotonic() - begin)
        except (Refused, AssertionError) as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        n = 0
        while (n < 60 or turns[0] < 10) and time.monotonic() < deadline:
            data = write(a, b.mr.buf, b.mr.rkey, 1 << 16, seed=n)
            assert b.mr.read(1 << 16, 0) == data
            assert read(a, b.mr.buf, b.mr.rkey, 1 << 16) == data
            n += 1
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
    assert n >= 60 and turns[0] >= 10, f"{n} transfers, {turns[0]} changes"
    print(f"{n} transfers; {turns[0]} times 7 changes, at most {slowest[0] * 1e3:.1f} ms")


def never_stale(names):
    """What is removed while the peer writes to it is written before, or not at all."""
    for turn in range(8):
        a, b, mr, buffer = region(names, size=MIB)
        big = page_buffer(256)
        at = 1 << 40
        handle = add(b, mr, big, MIB, at)["handle"]
        a.mr.write(pattern(MIB, turn), MIB)
        for _ in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(at, mr.rkey))
        time.sleep(0.002 * turn)
        remove(b, mr, handle=handle)
        # Nobody but this process changes it now.
        put(big, bytes(MIB))
        time.sleep(0.05)
        assert get(big, MIB) == bytes(MIB), "written after it was removed"
        done = [wc.status for wc in drain(a, 20)]
        ok = done.count(e.IBV_WC_SUCCESS)
        assert done[:ok] == [e.IBV_WC_SUCCESS] * ok, done
        assert ok == 20 or done[ok] == REFUSED and set(done[ok + 1:]) <= {e.IBV_WC_WR_FLUSH_ERR}, done


def drain(end, count, seconds=30):
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += end.cq.poll(count)[1]
    assert len(found) == count, f"{len(found)} completions of {count}"
    return found


def huge_mapping(size):
    """`size` bytes of addresses over one huge page; None where there are none."""
    try:
        with open("/proc/sys/vm/nr_hugepages", "w", encoding="ascii") as file:
            file.write("4")
        return repeated_mapping(size, 1 << 21, os.MFD_HUGETLB)
    except (OSError, AssertionError):
        return None


def cost(names):
    """What is pinned, and what it takes to pin it, follow the difference and not the size of the region."""
    a, b = pair(names, size=MIB)
    size, before = 4 << 30, pinned()
    huge = huge_mapping(size)
    if huge:
        address, _ = huge
        unit, begin = 1 << 21, time.monotonic()
        mr = MR(b.pd, size, ACCESS, address=address)
    else:
        # User Mode Linux cannot have mappings of as many pages: the same 128 MiB again and again, each a segment of its own.
        part = 128 * MIB
        address, _ = repeated_mapping(part, 1 << 24)
        unit, begin = 1 << 24, time.monotonic()
        mr = MR(b.pd, part, ACCESS, address=address)
        for at in range(part, size, part):
            state = add(b, mr, address, part, address + at)
        assert (state["length"], state["bytes"]) == (size, size), state
    whole = time.monotonic() - begin
    assert pinned() == before + size, (pinned(), before, size)
    small = MR(b.pd, 4 * MIB, ACCESS, address=page_buffer(1024))
    more = page_buffer(256)
    put(more, bytes(MIB))
    before, took = pinned(), {}
    for region_, end in ((small, small.buf + 4 * MIB), (mr, address + size)):
        took[region_] = []
        for _ in range(10):
            begin = time.monotonic()
            state = add(b, region_, more, MIB, end)
            middle = time.monotonic()
            assert pinned() == before + MIB and state["length"] == end + MIB - state["start"], state
            asked = time.monotonic()
            remove(b, region_, handle=state["handle"])
            took[region_].append((middle - begin, time.monotonic() - asked))
            assert pinned() == before
    print(f"4 GiB registered in {whole * 1e3:.0f} ms", *(f"{what} 4 MiB {min(times[n] for times in took[small]) * 1e6:.0f} µs, "
          f"4 GiB {min(times[n] for times in took[mr]) * 1e6:.0f} µs" for n, what in enumerate(("1 MiB added to", "removed from"))), sep="; ")
    for n in (0, 1):
        few, many_ = (min(times[n] for times in took[region_]) for region_ in (small, mr))
        # Both wait for a grace period, which may be a tick's or several; to pin all of it again would take as long as the registration.
        assert many_ - few < whole / 4, f"{many_:.6f} s for 1 MiB of 4 GiB, {few:.6f} s for 1 MiB of 4 MiB, {whole:.6f} s for 4 GiB"
    add(b, mr, more, MIB, address + size)
    data = write(a, address + size - 3000, mr.rkey, 6000)
    assert get(more, 3000) == data[3000:] and read(a, address + size - 3000, mr.rkey, 6000) == data
    assert read(a, address + unit - 3000, mr.rkey, 3000) == data[:3000], "not the same memory all over"


def halved(names):
    """A region of 1 GiB shrinks to its first half, page by page or at once: key and traffic stay, what is unpinned and what that takes follow the part."""
    size, unit = 1 << 30, 1 << 26
    half = size // 2
    a, b = pair(names, size=1 << 16, timeout=18)
    address, _ = repeated_mapping(size, unit)
    zero, begin = pinned(), time.monotonic()
    mr = MR(b.pd, size, ACCESS, address=address)
    whole = time.monotonic() - begin
    assert pinned() == zero + size
    stop, failures, turns = threading.Event(), [], [0]

    def traffic():
        try:
            while not stop.is_set():
                at = address + half - (1 << 16) * (turns[0] % 64 + 1)
                write(a, at, mr.rkey, 1 << 16, seed=turns[0] & 0xFF)
                turns[0] += 1
        except AssertionError as error:
            failures.append(error)

    thread = threading.Thread(target=traffic)
    thread.start()
    took = []
    try:
        for n in range(1, 9):
            begin = time.monotonic()
            state = remove(b, mr, start=address + size - n * PAGE, length=PAGE)
            took.append(time.monotonic() - begin)
            assert pinned() == zero + state["bytes"] == zero + size - n * PAGE, state
        begin = time.monotonic()
        state = remove(b, mr, start=address + half, length=half)
        most = time.monotonic() - begin
        assert (state["start"], state["length"], state["bytes"], state["segments"]) == (address, half, half, 1), state
        assert pinned() == zero + half
        before, deadline = turns[0], time.monotonic() + 20
        while turns[0] < before + 3 and time.monotonic() < deadline and thread.is_alive():
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join()
    assert not failures and turns[0] >= before + 3, (failures, turns)
    data = write(a, address + half - 5000, mr.rkey, 5000, seed=1)
    assert get(address + half - 5000, 5000) == data and read(a, address + half - 5000, mr.rkey, 5000) == data
    print(f"1 GiB registered in {whole * 1e3:.1f} ms; a page of it removed in {min(took) * 1e3:.2f} ms, half of it in {most * 1e3:.1f} ms; "
          f"{turns[0]} messages meanwhile")
    assert min(took) < whole / 4, "to remove a page costs as much as the region is large"
    write(a, address + half - 1, mr.rkey, 2, REFUSED)
    mr.close()
    assert pinned() == zero


def cut_under_traffic(names):
    """Threads cut and mend one region while a peer writes to a part that stays; nothing is written where nothing is."""
    a, b, mr, buffer = region(names, pages=16, size=16 * PAGE)
    start, zero = buffer + 16 * PAGE, pinned() - 16 * PAGE
    stop = threading.Event()
    failures, done = [], [0, 0]

    def change(number):
        try:
            while not stop.is_set():
                at = start + (2 + done[number] % 13) * PAGE
                for call_, arguments in ((remove, {"start": at, "length": PAGE}), (add, {"addr": at, "length": PAGE})):
                    try:
                        call_(b, mr, **arguments)
                        done[number] += 1
                    except Refused as error:
                        # Another one is at it, or was there before.
                        if error.number not in (errno.EBUSY, errno.EINVAL, errno.EEXIST):
                            raise
        except (Refused, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        deadline, n = time.monotonic() + 20, 0
        while (n < 60 or min(done) < 20) and time.monotonic() < deadline:
            data = write(a, start, mr.rkey, 2 * PAGE, seed=n)
            assert get(start, 2 * PAGE) == data
            n += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures and n >= 60 and min(done) >= 20, (failures, n, done)
    state = add(b, mr, buffer, PAGE)
    assert pinned() == zero + state["bytes"], state
    mr.close()
    assert pinned() == zero
    print(f"{n} transfers; {sum(done)} changes")


def memlock(names):
    """Added memory counts against RLIMIT_MEMLOCK; what does not fit leaves nothing behind."""
    a, b, mr, buffer = region(names)
    extra = page_buffer(1024)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (pinned() + 64 * PAGE, pinned() + 64 * PAGE))
    os.setresuid(65534, 65534, 65534)
    at, before = 1 << 40, pinned()
    refused(errno.ENOMEM, add, b, mr, extra, 65 * PAGE, at)
    assert pinned() == before
    handle = add(b, mr, extra, 64 * PAGE, at)["handle"]
    assert pinned() == before + 64 * PAGE
    refused(errno.ENOMEM, add, b, mr, extra + 64 * PAGE, PAGE, at + 64 * PAGE)
    remove(b, mr, handle=handle)
    state = add(b, mr, extra + 64 * PAGE, 64 * PAGE, at + 64 * PAGE)
    assert state["segments"] == 2 and pinned() == before + 64 * PAGE


def process_killed(names):
    """A process that dies with segments leaves nothing behind; neither does one that closes the device."""
    for how in ("exit", "kill"):
        child = os.fork()
        if not child:
            a, b, mr, buffer = region(names)
            for n in range(5):
                add(b, mr, buffer + 40 * PAGE + 2 * n * PAGE, PAGE)
            remove(b, mr, handle=FIRST)
            empty = MR(b.pd, PAGE, ACCESS)
            remove(b, empty, handle=FIRST)
            os.kill(os.getpid(), 9) if how == "kill" else os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == (9 if how == "kill" else 0), status


def device_gone(names):
    """When the device goes the methods fail; what was pinned is not any more."""
    a, b, mr, buffer = region(names)
    before = pinned()
    add(b, mr, buffer + 40 * PAGE, 8 * PAGE)
    subprocess.run(["rdma", "link", "del", names[2]], check=True)
    deadline = time.monotonic() + 10
    while pinned() >= before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pinned() < before, "still pinned"
    refused(errno.EIO, add, b, mr, buffer + 50 * PAGE, PAGE)
    refused(errno.EIO, remove, b, mr, handle=FIRST)


def shown(names):
    """The kernel's list of resources tells the size in bytes and the number of segments."""
    a, b, mr, buffer = region(names)
    add(b, mr, buffer + 40 * PAGE, 3 * PAGE)
    text = subprocess.run(["rdma", "-dd", "resource", "show", "mr"], stdout=subprocess.PIPE, text=True, check=True).stdout
    # Details follow the line of their region.
    assert re.search(rf"mrlen {7 * PAGE}\b[^\n]*\n?[^\n]*drv_segments 2", text), text


def lent(names):
    """Another process, which has inherited the device, lends memory of its own through the Rust library."""
    a, b, mr, buffer = region(names)
    at, before = buffer + 20 * PAGE, pinned()
    os.set_inheritable(b.ctx.cmd_fd, True)
    command = ["/share/examples/exercise", *(str(n) for n in (b.ctx.cmd_fd, mr.handle, mr.rkey, at))]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False)
    line = child.stdout.readline()
    assert line == f"added 2 run {5 * PAGE}\n", line
    line = child.stdout.readline()
    assert line.startswith(f"refused {errno.EEXIST} it overlaps another segment"), line
    assert pinned() == before, "what another process lends counts there"
    assert read(a, at, mr.rkey, 5) == b"hello"
    # The last bytes of this process's own memory and the page of the other one, in one message.
    data = write(a, at - 8, mr.rkey, 16, seed=1)
    a.mr.write(b"12345678", 8)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), remote=(at + PAGE - 8, mr.rkey))
    a.complete()
    assert get(at - 8, 8) == data[:8] and get(at, PAGE) == bytes(PAGE), "not the lender's page"
    rest, _ = child.communicate("\n")
    first = data[8:13].decode(errors="replace")
    assert rest == f"seen 12345678\nremoved {first} left 1\nrefused {errno.EINVAL}\n", rest
    assert child.returncode == 0
    write(a, at, mr.rkey, 8, REFUSED)


CASES = [many, under_traffic, never_stale, cost, halved, cut_under_traffic, memlock, process_killed, device_gone, shown, lent]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
