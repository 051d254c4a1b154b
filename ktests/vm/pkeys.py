# SPDX-License-Identifier: GPL-2.0
"""Partitions: the P_Key table and which packets it admits, between two devices of one machine."""
import errno
import os
import select
import subprocess

from pyverbs.device import Context
from pyverbs.pyverbs_error import PyverbsRDMAError
import pyverbs.enums as e

from lib.debug_messages import refusal_logged
from lib.ends import soon
from lib.pkeys import QKEY, TYPES, Member, attribute, entries, put, table

DEFAULTS = dict(driver="rxe_rs", reason="rdma_rxe has one P_Key")
# enum ibv_device_cap_flags: the device counts P_Key and Q_Key violations.
BAD_PKEY_CNTR, BAD_QKEY_CNTR = 1 << 1, 1 << 2


def refused(error, *args, write=put):
    """The driver must refuse the change with this error, and log that."""
    with refusal_logged(error, "pkey_table"):
        try:
            write(*args)
        except OSError as e_:
            assert e_.errno == error, f"{args}: {e_}"
        else:
            raise AssertionError(f"{args} accepted")


def put_text(device, text):
    with open(attribute(device), "w") as file:
        file.write(text + "\n")


def two(names, kind, index_a, index_b, **retry):
    a, b = Member(names[0], int(names[1]), kind, index_a), Member(names[2], int(names[3]), kind, index_b)
    a.join(b, **retry)
    b.join(a, **retry)
    b.recv(b.sge())
    return a, b


def test_edit(names):
    """Entries of the table can be set and cleared, with events; invalid changes and unprivileged ones are refused."""
    device = names[0]
    ctx = Context(name=device)
    attr, port = ctx.query_device(), ctx.query_port(1)
    assert attr.max_pkeys == port.pkey_tbl_len == 128, (attr.max_pkeys, port.pkey_tbl_len)
    assert table(device) == {0: 0xFFFF}, table(device)
    put(device, 127, 0x8001)
    put(device, 3, 0x0001)
    put(device, 3, 0x7ABC)
    assert table(device) == {0: 0xFFFF, 3: 0x7ABC, 127: 0x8001}, table(device)
    for index, key in ((0, 0xFFFF), (1, 0), (3, 0x7ABC), (127, 0x8001)):
        # libibverbs returns it in network byte order.
        seen = int.from_bytes(ctx.query_pkey(1, index).to_bytes(2, "little"), "big")
        assert seen == key, f"query_pkey({index}) is {seen:#x}"
        with open(f"/sys/class/infiniband/{device}/ports/1/pkeys/{index}") as entry:
            assert int(entry.read(), 16) == key
    for index, key in ((128, 0x8001), (1, 0x10000), (1, 0x8000), (-1, 0x8001), (1 << 32 | 3, 0x8001), (3, 1 << 32 | 0x8001)):
        refused(errno.EINVAL, device, index, key)
    refused(errno.EEXIST, device, 5, 0x7ABC)
    for garbage in ("", "1", "1 2 3", "x 1", "1 x", "add", "add x", "add 1 2", "add 0x10000", "add -1", "add 0", "-1 1", "65536 1"):
        refused(errno.EINVAL, device, garbage, write=put_text)
    for _ in range(3):
        event = ctx.get_async_event()
        assert event.event_type == e.IBV_EVENT_PKEY_CHANGE, event.event_type
        event.ack()
    command = ["setpriv", "--bounding-set", "-net_admin", "sh", "-c", f"echo 9 0x8009 >{attribute(device)}"]
    with refusal_logged(errno.EPERM, "pkey_table"):
        assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode, "changed without CAP_NET_ADMIN"
    put(device, 127, 0)
    put(device, 3, 0)
    assert table(device) == {0: 0xFFFF}


def test_last(names):
    """A port is a member of at least one partition: the last entry can be changed, but not cleared."""
    device = names[0]
    ctx = Context(name=device)
    descriptors = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")}
    opened = next(int(fd) for fd, what in descriptors.items() if what == "anon_inode:[infinibandevent]")
    refused(errno.EBUSY, device, 0, 0)
    put(device, 44, 0)
    put(device, 0, 0x0007)
    refused(errno.EBUSY, device, 0, 0)
    put(device, 90, 0xFFFF)
    put(device, 0, 0)
    refused(errno.EBUSY, device, 90, 0)
    assert table(device) == {90: 0xFFFF}, table(device)
    put(device, 0, 0x8008)
    put(device, 90, 0)
    put(device, 0, 0xFFFF)
    assert table(device) == {0: 0xFFFF}, table(device)
    # There was an event for each of the six changes, and for no refused one.
    for _ in range(6):
        ctx.get_async_event().ack()
    poller = select.poll()
    poller.register(opened, select.POLLIN)
    assert not poller.poll(200), "an event for a change that was refused"


def test_violations(names):
    """The device reports that it counts violations of both keys, and the counters rise by the number of packets sent."""
    for device in (names[0], names[2]):
        flags = Context(name=device).query_device().device_cap_flags
        assert flags & BAD_PKEY_CNTR and flags & BAD_QKEY_CNTR, f"{device}: {flags:#x}"
    put(names[0], 12, 0x8031)
    a, b = two(names, "UD", 12, 0)
    try:
        port = b.ctx.query_port(1)
        for _ in range(3):
            a.send(b"of another partition")
            a.complete()
        b.no_completion(0.1)
        now = b.ctx.query_port(1)
        assert (now.bad_pkey_cntr, now.qkey_viol_cntr) == (port.bad_pkey_cntr + 3, port.qkey_viol_cntr), now
    finally:
        put(names[0], 12, 0)
    a, b = two(names, "UD", 0, 0)
    port = b.ctx.query_port(1)
    for _ in range(2):
        a.send(b"with another key", qkey=QKEY + 1)
        a.complete()
    b.no_completion(0.1)
    now = b.ctx.query_port(1)
    assert (now.bad_pkey_cntr, now.qkey_viol_cntr) == (port.bad_pkey_cntr, port.qkey_viol_cntr + 2), now


KEYS = {"A": 0x8001, "B": 0x0001, "C": 0x0001, "D": 0x8002}
REACHABLE = {"AB", "BA", "AC", "CA"}


def four(names, kind):
    """Partition 1 with full member A and limited members B and C, partition 2 with D: who receives packets from whom."""
    places = {key: index for index, key in enumerate(sorted(set(KEYS.values())), 5)}
    wanted = [entry for key, index in places.items() for entry in ((names[0], index, key), (names[2], 100 - index, key))]
    with entries(*wanted):
        for x in KEYS:
            for y in KEYS:
                if x == y:
                    continue
                a, b = two(names, kind, places[KEYS[x]], 100 - places[KEYS[y]])
                before = b.drops()
                a.send(b"partition")
                if x + y in REACHABLE:
                    a.complete()
                    b.received(b"partition")
                    assert b.drops() == before, f"{kind} {x} to {y}: counted as dropped"
                    continue
                a.complete(e.IBV_WC_RETRY_EXC_ERR if kind == "RC" else e.IBV_WC_SUCCESS)
                b.no_completion(0.1)
                more = b.drops() - before
                assert more >= 2 if kind == "RC" else more == 1, f"{kind} {x} to {y}: {more} packets dropped"
                assert b.state() == e.IBV_QPS_RTS, f"{kind} {x} to {y}: the receiver's state changed"


def test_four_rc(names):
    four(names, "RC")


def test_four_uc(names):
    four(names, "UC")


def test_four_ud(names):
    four(names, "UD")


def test_entry_removed(names):
    """Removing the entry of a connected queue pair stops its traffic; when the entry is restored, traffic continues."""
    with entries((names[0], 7, 0x8005), (names[2], 7, 0x8005)):
        for side in (0, 2):
            for kind in TYPES:
                a, b = two(names, kind, 7, 7, timeout=16, retries=7)
                a.send(b"before")
                a.complete()
                b.received(b"before")
                b.recv(b.sge())
                put(names[side], 7, 0)
                a.send(b"meanwhile")
                if kind == "RC":
                    a.no_completion(0.5)
                    assert a.state() == b.state() == e.IBV_QPS_RTS
                    put(names[side], 7, 0x8005)
                    a.complete()
                    b.received(b"meanwhile")
                    b.recv(b.sge())
                else:
                    a.complete()
                    b.no_completion(0.2)
                    put(names[side], 7, 0x8005)
                a.send(b"after")
                a.complete()
                b.received(b"after")


def test_next_packet(names):
    """A change applies from the next packet on."""
    with entries((names[0], 2, 0x8011), (names[2], 2, 0x8011)):
        a, b = two(names, "UD", 2, 2)
        a.send(b"one")
        a.complete()
        b.received(b"one")
        b.recv(b.sge())
        put(names[2], 2, 0x8012)
        before = b.drops()
        a.send(b"two")
        a.complete()
        b.no_completion(0.1)
        assert b.drops() == before + 1
        put(names[0], 2, 0x0012)
        a.send(b"three")
        a.complete()
        b.received(b"three")


def test_unused_index(names):
    """A queue pair cannot be modified to INIT with the index of an empty entry."""
    with entries((names[0], 9, 0x8020)):
        a = Member(names[0], int(names[1]), "UD", 9)
        b = Member(names[2], int(names[3]), "UD", 0)
        a.join(b)
        put(names[0], 9, 0)
        late = Member(names[0], int(names[1]), "UD", 9)
        try:
            late.join(b)
        except PyverbsRDMAError as error:
            assert error.error_code == errno.EINVAL
        else:
            raise AssertionError("an empty entry was accepted")


GSI_KEY = 0x80010000
# A performance management Get of ClassPortInfo (IBTA vol1 13.4.2, 16.1.3).
MAD = bytes((1, 4, 1, 1)) + bytes(4) + b"question" + (1).to_bytes(2, "big") + bytes(6) + bytes(232)


def test_services(names):
    """QP1 accepts packets of every partition of the port, and responds in the partition of the request."""
    put(names[0], 30, 0x8055)
    put(names[2], 31, 0x8055)
    a = Member(names[0], int(names[1]), "UD", 30)
    b = Member(names[2], int(names[3]), "UD", 0)
    a.join(b, dest=1, qkey=GSI_KEY)

    def request():
        a.recv(a.sge(1000, 1000))
        a.send(MAD, qkey=GSI_KEY)
        a.complete()

    try:
        before = a.drops(), b.drops()
        request()
        wc = a.complete()
        response = a.mr.read(256, 1000 + 40)
        assert wc.byte_len == 40 + 256 and wc.src_qp == 1 and wc.pkey_index == 30, (wc.byte_len, wc.src_qp, wc.pkey_index)
        assert response[3] == 0x81 and response[8:16] == MAD[8:16], response[:24]
        assert (a.drops(), b.drops()) == before
        put(names[2], 31, 0)
        request()
        a.no_completion(0.3)
        assert b.drops() == before[1] + 1, "the request was not counted as a P_Key violation"
    finally:
        put(names[0], 30, 0)
        put(names[2], 31, 0)


# A REQ (IBTA vol1 12.6.5) for a service without a listener; all optional fields are 0.
REQUEST = bytes((1, 7, 2, 3)) + bytes(4) + b"anyone??" + b"\x00\x10" + bytes(6) + b"\x12\x34\x56\x78" + bytes(4) + b"no such." + bytes(216)


def test_connection_requests(names):
    """The connection manager of B accepts a REQ in a partition of B, and its REJ reaches that of A in that partition."""
    def cm(device, kind, way):
        with open(f"/sys/class/infiniband/{device}/ports/1/cm_{way}_msgs/{kind}", encoding="ascii") as file:
            return int(file.read())

    def seen():
        return cm(names[2], "req", "rx"), cm(names[2], "rej", "tx"), cm(names[0], "rej", "rx")

    for device, key in ((names[0], 0x8055), (names[2], 0x0055)):
        put(device, 33, key)
        put(device, 0, 0)
    a, b = Member(names[0], int(names[1]), "UD", 33), Member(names[2], int(names[3]), "UD", 33)
    try:
        a.join(b, dest=1, qkey=GSI_KEY)
        for _ in range(3):
            before = seen()
            a.send(REQUEST, qkey=GSI_KEY)
            a.complete()
            soon(lambda: seen() == tuple(count + 1 for count in before), 5, f"not one more of each than {before}")
        # A REQ in another partition does not reach the connection manager.
        put(names[2], 33, 0x8056)
        before, drops = seen(), b.drops()
        a.send(REQUEST, qkey=GSI_KEY)
        a.complete()
        soon(lambda: b.drops() == drops + 1, 5, "the drop is not counted")
        assert seen() == before, (before, seen())
    finally:
        for device in (names[0], names[2]):
            put(device, 0, 0xFFFF)
            put(device, 33, 0)
