# SPDX-License-Identifier: GPL-2.0
"""Invalid packets to connected queue pairs: each defect has a drop counter of its own, and connections are not affected."""
import json
import random
import re
import socket
import struct
import subprocess
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import host
from lib.case import case
from lib.counters import is_drop
from lib.drops import ACKNOWLEDGE, RC_SEND_ONLY, UC_SEND_ONLY, UD_SEND_ONLY, Target, bth, packet
from lib.ends import End, in_thread, pair, pattern, soon
from lib.forging import PATIENT, UC, Requester, Responder
from lib.frames import PORT, within

DEFAULTS = dict(driver="rxe_rs", reason="counts the drop reasons of rxe_rs")
OTHER_ADDRESS = "10.77.0.9"


def target_of(names):
    return Target(names, host.ip("a", 4), host.ip("b", 4))


def works(a, b):
    """Checks that the connection still carries data."""
    data = pattern(3000, 9)
    a.mr.write(data, len(data))
    b.recv(b.sge(4096, 8192))
    a.post(e.IBV_WR_SEND, a.sge(len(data)))
    a.complete()
    b.complete()
    assert b.mr.read(len(data), 8192) == data, "data differ"


def test_lengths(names):
    """Packets that are too short, or whose length does not fit their opcode, are dropped."""
    target = target_of(names)
    a, b = pair(target.names)
    qpn = b.qp.qp_num
    # The last one is a WRITE that ends within its own headers.
    target.expect("rx_too_short", b"", b"x", bth(RC_SEND_ONLY, qpn)[:11], packet(0x0A, qpn, b"\0" * 12))
    # A pad count above the payload length, and a payload whose padded length is not a multiple of four.
    target.expect("rx_bad_length", packet(RC_SEND_ONLY, qpn, b"", pad=3), packet(RC_SEND_ONLY, qpn, b"abcde", pad=1))
    # Payload in packets that have none.
    target.expect("rx_bad_length", packet(ACKNOWLEDGE, qpn, b"\x1f\0\0\1abcd"), packet(0x81, qpn, b"\0" * 12))
    works(a, b)


def test_bad_datagrams(names):
    """Datagrams that are no valid ones of UDP, and those with IP options, are dropped and counted as UDP counts them."""
    def errors():
        out = subprocess.run(["ip", "netns", "exec", "b", "cat", "/proc/net/snmp"], check=True, stdout=subprocess.PIPE, text=True).stdout
        head, values = (line.split()[1:] for line in out.splitlines() if line.startswith("Udp:"))
        return int(dict(zip(head, values))["InErrors"])

    target = target_of(names)
    a, b = pair(target.names)
    body = target.intact(packet(RC_SEND_ONLY, b.qp.qp_num, pattern(100)))
    raw = within("a", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP))
    before, lengths = errors(), (0, 7, 9 + len(body), 65535)
    for length in lengths:
        raw.sendto(struct.pack(">HHHH", 5000, PORT, length, 0) + body, target.to)
    soon(lambda: errors() == before + len(lengths))
    # Four bytes that do nothing.
    target.socket.setsockopt(socket.IPPROTO_IP, 4, b"\1\1\1\1")
    target.socket.sendto(body, target.to)
    soon(lambda: errors() == before + len(lengths) + 1)
    works(a, b)


def test_versions_and_opcodes(names):
    """Packets with another transport version, an unknown opcode, or one of another service type are dropped."""
    target = target_of(names)
    a, b = pair(target.names)
    qpn = b.qp.qp_num
    target.expect("rx_bad_version", *[packet(RC_SEND_ONLY, qpn, version=v) for v in range(1, 16)])
    target.expect("rx_unknown_opcode", *[packet(op, qpn) for op in (0x35, 0x38, 0x3F, 0x40, 0x75, 0x7F, 0xC0, 0xFF)])
    deth = struct.pack(">II", 0x11111111, 7)
    target.expect("rx_wrong_transport", packet(UC_SEND_ONLY, qpn), packet(UD_SEND_ONLY, qpn, deth))
    works(a, b)


def test_refused_requests(names):
    """A request with a reserved opcode, or with payload where there is none, is refused by a NAK, and not dropped."""
    target = target_of(names)
    for opcode, content in ((0x15, b""), (0x1F, b"abcd"), (0x0C, b"abcd")):
        _, b = pair(target.names)
        reth = struct.pack(">QII", b.mr.buf, b.mr.rkey, 64) if opcode == 0x0C else b""
        before = target.counters()
        target.socket.sendto(target.intact(packet(opcode, b.qp.qp_num, reth + content, psn=0xFFFFFE)), target.to)
        soon(lambda end=b: end.state() == e.IBV_QPS_ERR, 5, f"the request {opcode:#x} was not refused")
        target.soon("resp_invalid_request_err", before["resp_invalid_request_err"] + 1)
        assert not [name for name, value in target.counters().items() if is_drop(name) and value != before[name]]


def test_unknown_queue_pairs(names):
    """Packets to QPNs that do not exist are dropped."""
    target = target_of(names)
    a, b = pair(target.names)
    used = {a.qp.qp_num, b.qp.qp_num}
    free = [n for n in random.sample(range(2, 0xFFFFFE), 20) if n not in used]
    target.expect("rx_no_qp", packet(RC_SEND_ONLY, 0), *[packet(RC_SEND_ONLY, n) for n in free])
    works(a, b)


def test_states(names):
    """Packets before RTR and in the error state are dropped, and have different counters."""
    target = target_of(names)
    b = End(target.names[2], int(target.names[3]))
    target.expect("rx_not_ready", packet(RC_SEND_ONLY, b.qp.qp_num))
    attr = QPAttr(port_num=1)
    b.qp.to_init(attr)
    target.expect("rx_not_ready", packet(RC_SEND_ONLY, b.qp.qp_num))
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    target.expect("rx_bad_state", packet(RC_SEND_ONLY, b.qp.qp_num))


def test_pkeys(names):
    """The lower 15 bits must agree, and at least one side must be a full member, as the queue pair is here."""
    target = target_of(names)
    a, b = pair(target.names)
    qpn = b.qp.qp_num
    before = b.ctx.query_port(1).bad_pkey_cntr
    wrong = (0x0000, 0x8000, 0x0001, 0x8001, 0x7FFE, 0xFFFE)
    packets = [packet(RC_SEND_ONLY, qpn, pkey=k) for k in wrong]
    target.expect("rx_bad_pkey", *[target.intact(one) for one in packets])
    assert b.ctx.query_port(1).bad_pkey_cntr == before + len(wrong), "bad_pkey_cntr"
    # A packet with a wrong ICRC is no P_Key violation.
    target.expect("rx_bad_icrc", *packets)
    assert b.ctx.query_port(1).bad_pkey_cntr == before + len(wrong), "bad_pkey_cntr"
    # A limited member of the partition passes this check.
    target.expect("rx_bad_icrc", packet(RC_SEND_ONLY, qpn, pkey=0x7FFF))
    assert b.state() == e.IBV_QPS_RTS
    works(a, b)


def datagrams(names):
    a = End(names[0], int(names[1]), qp_type=e.IBV_QPT_UD)
    b = End(names[2], int(names[3]), qp_type=e.IBV_QPT_UD)
    for end, qkey in ((a, 0x0A0A0A0A), (b, 0x0B0B0B0B)):
        attr = QPAttr(port_num=1)
        attr.qkey = qkey
        attr.sq_psn = 1
        end.qp.to_rts(attr)
    route = GlobalRoute(dgid=b.ctx.query_gid(1, b.gid_index), sgid_index=a.gid_index, hop_limit=64)
    return a, b, AH(a.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))


def test_qkeys(names):
    """Packets with another Q_Key are dropped and counted. For a controlled Q_Key in the work request, the queue pair's own is sent."""
    target = target_of(names)
    a, b, ah = datagrams(target.names)

    def send(qkey, seed):
        a.mr.write(pattern(100, seed), 100)
        wr = SendWR(wr_id=seed, num_sge=1, sg=[a.sge(100)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(ah, b.qp.qp_num, qkey)
        a.qp.post_send(wr)
        a.complete()

    def violations():
        return b.ctx.query_port(1).qkey_viol_cntr

    before = violations()
    b.recv(b.sge(4096))
    send(0x0B0B0B0B, 1)
    b.complete()
    assert b.mr.read(100, 40) == pattern(100, 1), "data differ"
    assert violations() == before
    b.recv(b.sge(4096))
    send(0x0B0B0B0A, 2)
    send(0x8B0B0B0B, 3)     # A controlled Q_Key: the queue pair's own, 0x0A0A0A0A, is sent.
    b.no_completion()
    assert violations() == before + 2, f"qkey_viol_cntr rose by {violations() - before}, expected 2"
    assert b.state() == e.IBV_QPS_RTS
    attr = QPAttr()
    attr.qkey = 0x0A0A0A0A
    b.qp.modify(attr, e.IBV_QP_QKEY)
    send(0x80000000, 4)
    b.complete()
    assert b.mr.read(100, 40) == pattern(100, 4), "data differ"
    deth = struct.pack(">II", 0x0B0B0B0B, 7)
    wrong = packet(UD_SEND_ONLY, b.qp.qp_num, deth)
    before = violations()
    target.expect("rx_bad_qkey", target.intact(wrong))
    target.expect("rx_bad_icrc", wrong)
    assert violations() == before + 1, "qkey_viol_cntr"
    # Longer than the active MTU; it is received as IP fragments.
    long = packet(UD_SEND_ONLY, b.qp.qp_num, struct.pack(">II", 0x0A0A0A0A, 7) + pattern(1400))
    target.expect("rx_bad_length", target.intact(long))
    b.no_completion(0.1)


def test_blind(names):
    """Forged packets with a wrong PSN. A PSN far ahead gets no response. For a PSN slightly ahead, some of many copies get a NAK, which the
    peer ignores as not its own, and the connection continues."""
    target = target_of(names)
    a, b = pair(target.names)
    qpn = b.qp.qp_num
    before = target.counters()
    for psn in (0x500000, 0x7FFFFD):
        target.socket.sendto(target.intact(packet(RC_SEND_ONLY, qpn, pattern(100), psn=psn)), target.to)
    target.soon("implausible_psn", before["implausible_psn"] + 2)
    works(a, b)
    begin = time.monotonic()
    for _ in range(50):
        target.socket.sendto(target.intact(packet(RC_SEND_ONLY, qpn, pattern(100), psn=0x000400)), target.to)
    target.soon("out_of_seq_request", before["out_of_seq_request"] + 50)
    # The interval between NAKs doubles up to 100 ms, and a slow machine may take long to receive the copies.
    elapsed = time.monotonic() - begin
    naks = target.counters()["send_seq_err"] - before["send_seq_err"]
    assert 1 <= naks <= 12 + 10 * elapsed, f"{naks} NAKs for 50 copies in {elapsed:.2f} s"
    works(a, b)
    # Acknowledgements that match no request.
    for psn in (0xFFFFFD, 0x000123):
        target.socket.sendto(target.intact(packet(ACKNOWLEDGE, qpn, b"\x62\0\0\1", psn=psn)), target.to)
    target.soon("unmatched_response", before["unmatched_response"] + 2)
    works(b, a)
    assert a.state() == e.IBV_QPS_RTS and b.state() == e.IBV_QPS_RTS


def suspect(target, qpn):
    """A SEND further ahead than the peer can be."""
    return target.intact(packet(RC_SEND_ONLY, qpn, pattern(100), psn=0x500000))


def test_suspects_are_logged(_names):
    """Hundreds of packets that do not match a connection are counted one by one, and the kernel log has one line about them."""
    # Loading the module again resets the limit of one line in a minute.
    host.shell("no_links; links; mark suspects")
    target = target_of(host.names())
    _, b = pair(target.names)
    qpn, before = b.qp.qp_num, target.counters()["implausible_psn"]
    for _ in range(4):
        for _ in range(50):
            target.socket.sendto(suspect(target, qpn), target.to)
        before += 50
        target.soon("implausible_psn", before)
    lines = [line for line in host.shell("since suspects").splitlines() if "do not fit the connection" in line]
    said = rf"{target.device}: QP {qpn}: packets that do not fit the connection \(implausible_psn\): see rxectl doctor$"
    assert len(lines) == 1 and re.search(said, lines[0]), lines


def repeatedly(send):
    """Calls `send` in another thread, about a hundred times a second."""
    def run(stop):
        while not stop.wait(0.01):
            send()

    return in_thread(run)


@case(needs="tools")
def test_doctor(names):
    """rxectl doctor names an attack while it lasts, with its device and a remedy, and notes it afterwards."""
    def findings(level):
        shown = subprocess.run(["/share/bin/rxectl", "--json", "doctor"], stdout=subprocess.PIPE, text=True)
        found = [finding for finding in json.loads(shown.stdout)["findings"] if "implausible_psn" in finding["found"]]
        print(found)
        return [finding for finding in found if finding["level"] == level]

    target = target_of(names)
    a, b = pair(target.names)
    one = suspect(target, b.qp.qp_num)
    attacks = []
    with repeatedly(lambda: target.socket.sendto(one, target.to)):
        soon(lambda: attacks.extend(findings("wrong")) or attacks, 20, "doctor does not name the attack")
    attack, = attacks
    assert attack["about"] == target.device and attack["found"].startswith("under attack? implausible_psn grows by "), attack
    assert "IPsec" in attack["fix"], attack
    soon(lambda: findings("note"), 10, "doctor does not note the attack afterwards")
    works(a, b)


def test_addresses(_names):
    """Datagrams to addresses of the host that are no GIDs of the device, and to the broadcast address, are dropped. Both are
    routed over the link."""
    host.shell("""
        ip -n b addr add 10.99.0.1/32 dev lo
        ip -n b addr add fd99::1/128 dev lo
        ip -n a route add 10.99.0.1 via "$(ip4 b)"
        ip -n a route add fd99::1 via "$(ip6 b)\"""")
    try:
        for family, others in ((4, ("10.99.0.1", "10.77.0.255")), (6, ("fd99::1",))):
            not_of_the_device(Target(host.names(family), host.ip("a", family), host.ip("b", family)), *others)
    finally:
        host.shell("""
            ip -n b addr del 10.99.0.1/32 dev lo
            ip -n b addr del fd99::1/128 dev lo
            ip -n a route del 10.99.0.1
            ip -n a route del fd99::1""")


def not_of_the_device(target, *others):
    _, b, _ = datagrams(target.names)
    deth = struct.pack(">II", 0x0B0B0B0B, 7)
    own = target.to
    target.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    for qpn in (b.qp.qp_num, 1):
        for other in others:
            target.to = (other, PORT)
            target.expect("rx_no_gid", packet(UD_SEND_ONLY, qpn, deth + bytes(256)))
    target.to = own
    target.expect("rx_bad_icrc", packet(UD_SEND_ONLY, b.qp.qp_num, deth + bytes(256)))


def test_removed_address(_names):
    """So are those to an address that the device had, if the host still has it elsewhere."""
    address = "10.77.7.7"
    host.shell('ip -n b addr add $1/32 dev vb; ip -n a route add $1 dev va', address)
    try:
        host.gid_index(host.device("b"), address)
        target = target_of(host.names())
        target.to = (address, PORT)
        _, b, _ = datagrams(target.names)
        one = packet(UD_SEND_ONLY, b.qp.qp_num, struct.pack(">II", 0x0B0B0B0B, 7) + bytes(256))
        target.expect("rx_bad_icrc", one)
        host.shell('ip -n b addr add $1/32 dev lo; ip -n b addr del $1/32 dev vb', address)
        soon(lambda: "0a4d:0707" not in host.shell("gids b"))
        target.expect("rx_no_gid", one)
    finally:
        host.shell('ip -n a route del $1; for d in lo vb; do ip -n b addr del $1/32 dev $d 2>/dev/null || true; done', address)


def test_checksums(names):
    """Packets in which only the ICRC is wrong are dropped."""
    target = target_of(names)
    a, b = pair(target.names)
    bad = [packet(RC_SEND_ONLY, b.qp.qp_num, pattern(n), psn=0xFFFFFE) for n in (0, 4, 100, 1024)]
    target.expect("rx_bad_icrc", *bad)
    target.expect("rx_bad_icrc", packet(ACKNOWLEDGE, b.qp.qp_num, b"\x1f\0\0\1", psn=0x000123))
    works(a, b)


def test_bad_peer(names):
    """Packets in which only the source address is wrong are dropped: requests, acknowledgements and CNPs."""
    host.shell("ip -n a addr replace $1/24 dev va", OTHER_ADDRESS)
    try:
        bad_peers(names)
    finally:
        host.shell("ip -n a addr del $1/24 dev va", OTHER_ADDRESS)


def bad_peers(names):
    target = Target(names, OTHER_ADDRESS, host.ip("b", 4))
    a, b = pair(target.names, **PATIENT)

    def refused(victim):
        # The last four bytes are replaced by the ICRC.
        target.expect("rx_bad_peer", *[target.intact(data + bytes(4)) for data in victim.packets()])
        victim.unharmed()

    refused(Responder(b, 0xFFFFFE))
    # The peer still sends with the PSN that the forged requests had.
    data = pattern(100, 9)
    a.mr.write(data, len(data))
    a.post(e.IBV_WR_SEND, a.sge(len(data)))
    a.complete()
    b.complete()
    assert b.mr.read(len(data), 0) == data, "data differ"
    refused(Requester(b, a, target.device, 0x000123))
    _, b = pair(target.names, qp_type=e.IBV_QPT_UC)
    refused(Responder(b, 0xFFFFFE, UC))


def test_garbage(names):
    """Random bytes and truncated packets are dropped and counted while the connection is in use."""
    target = target_of(names)
    a, b = pair(target.names)
    random.seed(1)
    whole = packet(0x0A, b.qp.qp_num, struct.pack(">QII", b.mr.buf, b.mr.rkey, 64) + pattern(64), psn=0xFFFFFE)
    before = target.counters()
    sent = 0
    for _ in range(20):
        packets = [whole[:n] for n in random.sample(range(len(whole)), 20)]
        packets += [random.randbytes(random.randrange(200)) for _ in range(20)]
        for one in packets:
            target.socket.sendto(one, target.to)
        sent += len(packets)
        works(a, b)

    def dropped():
        after = target.counters()
        return sum(after[k] - before[k] for k in after if is_drop(k))

    soon(lambda: dropped() >= sent)
    assert dropped() == sent, f"{sent} invalid packets, {dropped()} counted"
    assert b.state() == e.IBV_QPS_RTS and a.state() == e.IBV_QPS_RTS
