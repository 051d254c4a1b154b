# SPDX-License-Identifier: GPL-2.0
"""Multicast groups through pyverbs, both devices in one process: which queue pairs receive a message."""
import contextlib
import errno
import ipaddress
import os
import re
import select
import socket
import struct
import subprocess
import time

from pyverbs.qp import QP, QPCap, QPInitAttr
import pyverbs.enums as e

from lib import host
from lib.child_process import child_process
from lib.case import case, families, skip
from lib.counters import counter
from lib.debug_messages import refusal_logged
from lib.ends import soon
from lib.frames import within
from lib.libibverbs import VERBS
from lib.mcast import QKEY, Endpoint, Node, attach, detach, gid_of, group_call


def refused(call, *args):
    try:
        call(*args)
    except OSError:
        return
    raise AssertionError("the call was accepted")


def group_of(family):
    return {4: "239.77.1.1", 6: "ff15::77:1"}[family]


def setup(family):
    names = host.names(family)
    return Node(names[0], names[1]), Node(names[2], names[3]), gid_of(group_of(family))


@families(4, 6)
def test_members_receive(family):
    """Every attached queue pair receives one copy, with the GRH as sent; one that is not attached receives none."""
    a, b, group = setup(family)
    sender = Endpoint(a)
    members = [Endpoint(b) for _ in range(3)]
    other = Endpoint(b)
    for member in members:
        attach(member.qp, group)
    ah = a.path(group)
    for n, length in enumerate((1, 77, 1024)):
        data = bytes((n + i * 3) & 0xFF for i in range(length))
        sender.send(ah, data)
        sender.expect_sent()
        for member in members:
            grh = member.expect_message(data, sender)
            assert ipaddress.ip_address(group_of(family)).packed in grh[20:], "the group's address is not in the header"
    for end in members + [other]:
        end.expect_nothing()


@families(4, 6)
def test_detach(family):
    """A queue pair receives no messages after it was detached, and receives them again after it is attached again."""
    a, b, group = setup(family)
    sender, stays, leaves = Endpoint(a), Endpoint(b), Endpoint(b)
    ah = a.path(group)
    for end in (stays, leaves):
        attach(end.qp, group)
    sender.send(ah, b"both")
    for end in (stays, leaves):
        end.expect_message(b"both", sender)
    detach(leaves.qp, group)
    sender.send(ah, b"one")
    stays.expect_message(b"one", sender)
    leaves.expect_nothing()
    detach(stays.qp, group)
    sender.send(ah, b"none")
    stays.expect_nothing()
    leaves.expect_nothing(0.01)
    attach(stays.qp, group)
    sender.send(ah, b"again")
    stays.expect_message(b"again", sender)


@families(4, 6)
def test_key_must_match(family):
    """A member with another Q_Key receives nothing. If no member has the right one, rx_bad_qkey is incremented once."""
    a, b, group = setup(family)
    sender, right, wrong = Endpoint(a), Endpoint(b), Endpoint(b, qkey=QKEY + 1)
    attach(wrong.qp, group)
    before = counter(b.name, "rx_bad_qkey")
    ah = a.path(group)
    sender.send(ah, b"wrong key")
    wrong.expect_nothing()
    assert counter(b.name, "rx_bad_qkey") == before + 1
    attach(right.qp, group)
    sender.send(ah, b"right key")
    right.expect_message(b"right key", sender)
    wrong.expect_nothing()
    assert counter(b.name, "rx_bad_qkey") == before + 1


@families(4, 6)
def test_sender_is_member(family):
    """A message is also delivered to members on the sending host, including the sender itself."""
    a, b, group = setup(family)
    sender, near, far = Endpoint(a), Endpoint(a), Endpoint(b)
    ah = a.path(group)
    for end in (sender, near, far):
        attach(end.qp, group)
    sender.send(ah, b"everybody")
    near.expect_message(b"everybody", sender)
    far.expect_message(b"everybody", sender)
    kinds = sorted(bool(sender.poll(10).opcode & e.IBV_WC_RECV) for _ in range(2))
    assert kinds == [False, True], kinds
    for end in (sender, near, far):
        end.expect_nothing(0.2)


@families(4, 6)
def test_qpn_matches_gid(family):
    """Packets with the address of a group and a unicast QPN, or with a unicast address and the multicast QPN, are dropped."""
    a, b, group = setup(family)
    sender, member = Endpoint(a), Endpoint(b)
    attach(member.qp, group)
    no_gid, no_group = counter(b.name, "rx_no_gid"), counter(b.name, "rx_no_mcast_group")
    to_group, to_b = a.path(group), a.path(gid_of(b.ctx.query_gid(1, b.gid_index).gid))
    sender.send(to_group, b"number", qpn=member.qp.qp_num)
    member.expect_nothing()
    assert counter(b.name, "rx_no_gid") == no_gid + 1
    sender.send(to_b, b"address")
    member.expect_nothing()
    assert counter(b.name, "rx_no_mcast_group") == no_group + 1
    sender.send(to_b, b"unicast", qpn=member.qp.qp_num)
    member.expect_message(b"unicast", sender)


@families(4, 6)
def test_arguments_are_checked(family):
    """Attaching fails for unicast addresses, for QP types other than UD, and with a LID; detaching fails if not attached."""
    a, _, group = setup(family)
    end = Endpoint(a)
    refused(detach, end.qp, group)
    refused(attach, end.qp, gid_of("10.1.2.3"))
    refused(attach, end.qp, gid_of("fd00::1"))
    attach(end.qp, group)
    attach(end.qp, group)
    detach(end.qp, group)
    # The core keeps an entry per LID, which RoCE does not use, and detaches each of them before it destroys the queue pair.
    attach(end.qp, group)
    with refusal_logged(errno.EEXIST, "attach_mcast"):
        refused(group_call, VERBS.ibv_attach_mcast, end.qp, group, 1)
    detach(end.qp, group)
    end.qp.close()
    end = Endpoint(a)
    rc = QP(a.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=end.cq, rcq=end.cq, cap=QPCap()))
    refused(attach, rc, group)
    limits = a.ctx.query_device()
    assert limits.max_mcast_grp > 0 and limits.max_mcast_qp_attach > 0


@families(4, 6)
def test_several_groups(family):
    """Members of different groups receive only the messages of their own group."""
    a, b, _ = setup(family)
    sender = Endpoint(a)
    base = ipaddress.ip_address(group_of(family))
    groups = [gid_of(str(base + n)) for n in range(20)]
    members = [Endpoint(b, receives=4) for _ in groups]
    for member, group in zip(members, groups):
        attach(member.qp, group)
    for n, group in enumerate(groups):
        sender.send(a.path(group), b"group %d" % n)
        sender.expect_sent()
    for n, member in enumerate(members):
        member.expect_message(b"group %d" % n, sender)
    for member in members:
        member.expect_nothing(0.02)


@case(driver="rxe_rs", reason="rdma_rxe has other limits", timeout=240)
def test_limits(_names):
    """As many groups, members of a group and attachments as the device reports; one more is refused, until another one ends."""
    _, b, _ = setup(6)
    limits = b.ctx.query_device()

    def group(number):
        return gid_of(f"ff15::77:2:{number:x}")

    def full(end, number):
        with refusal_logged(errno.ENOMEM, "attach_mcast"):
            refused(attach, end.qp, group(number))

    ends = [Endpoint(b, receives=0) for _ in range(limits.max_mcast_qp_attach + 1)]
    for end in ends[:-1]:
        attach(end.qp, group(0))
    full(ends[-1], 0)
    detach(ends[5].qp, group(0))
    attach(ends[-1].qp, group(0))
    full(ends[5], 0)
    for number in range(1, limits.max_mcast_grp):
        attach(ends[0].qp, group(number))
    full(ends[0], limits.max_mcast_grp)
    # Another member of one of the groups is none too many.
    attach(ends[1].qp, group(1))
    detach(ends[1].qp, group(1))
    if host.is_slow():
        print("the limit of attachments is not tried: that takes minutes on an emulated machine")
        return
    # max_total_mcast_qp_attach, which pyverbs does not show.
    left = (1 << 16) - limits.max_mcast_qp_attach - limits.max_mcast_grp + 1
    for n in range(left):
        end, number = divmod(n, limits.max_mcast_grp - 1)
        attach(ends[end + 1].qp, group(number + 1))
    full(ends[20], 1)
    detach(ends[0].qp, group(2))
    attach(ends[20].qp, group(1))
    full(ends[21], 1)


def is_member(group, netdev="vb"):
    """Whether a network device of node b is a member of a group."""
    return group in subprocess.run(["ip", "-n", "b", "maddr", "show", "dev", netdev], check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def need_lists():
    """A kernel without IGMP keeps no lists of groups."""
    if not os.path.exists("/proc/net/igmp"):
        skip("this kernel has no IGMP")


def joined(family):
    """A child process with a queue pair of node b that is attached to the group."""
    def join():
        _, b, group = setup(family)
        end = Endpoint(b)
        attach(end.qp, group)
        return end
    return child_process(join)


def test_netdev_joins_and_leaves(_names):
    """The network device is a member of the group, as switches need it, while a process has an attached queue pair."""
    need_lists()
    for family in (4, 6):
        group = group_of(family)
        assert not is_member(group), f"{group} has members before the test"
        with joined(family) as end:
            soon(lambda: is_member(group))
            end()
            soon(lambda: not is_member(group))


def test_reports_are_sent(_names):
    """IGMP and MLD reports are sent when a queue pair is attached."""
    need_lists()
    command = "ip netns exec a tcpdump -Z root --immediate-mode -l -nv -i va".split()
    with subprocess.Popen([*command, "igmp or ip6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as capture:
        try:
            while b"listening" not in capture.stderr.readline():
                assert capture.poll() is None, "tcpdump did not start"
            for family in (4, 6):
                with joined(family):
                    pass
            missing, text, deadline = {group_of(4), group_of(6)}, "", time.monotonic() + 20
            while missing:
                left = deadline - time.monotonic()
                assert left > 0, f"no reports of {missing}: {text}"
                if select.select([capture.stdout], [], [], left)[0]:
                    text += os.read(capture.stdout.fileno(), 65536).decode()
                missing -= set(re.split(r"[\s,()]+", text))
        finally:
            capture.kill()


@case(driver="rxe_rs", reason="counts the drop reasons of rxe_rs")
def test_no_member_is_counted(_names):
    """A socket, but no queue pair, is a member of the group: the packet arrives, and its drop is counted."""
    need_lists()
    a, b, group = setup(4)
    before = counter(b.name, "rx_no_mcast_group")
    with within("b", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
        other.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group_of(4)) + socket.inet_aton(host.ip("b", 4)))
        soon(lambda: is_member(group_of(4)))
        sender = Endpoint(a)
        sender.send(a.path(group), b"hello")
        sender.expect_sent()
        soon(lambda: counter(b.name, "rx_no_mcast_group") == before + 1)


@contextlib.contextmanager
def without_ipv6():
    """The MTU of node b is too small for IPv6: its network device has lost its memberships. At the end it has its address again."""
    def set_mtu(mtu):
        subprocess.run(["ip", "-n", "b", "link", "set", "vb", "mtu", mtu], check=True)

    shown = subprocess.run(["ip", "-n", "b", "link", "show", "vb"], check=True, stdout=subprocess.PIPE, text=True).stdout
    before = re.search(r" mtu (\d+) ", shown)[1]
    try:
        set_mtu("1200")
        yield
    finally:
        set_mtu(before)
        subprocess.run(["ip", "-n", "b", "addr", "add", f"{host.ip('b', 6)}/64", "dev", "vb", "nodad"], check=True)


def test_memberships_of_others(_names):
    """While the MTU is too small for IPv6 the network device is in no group. A program that joins after that stays a member when the queue
    pair, which joined before, is detached."""
    need_lists()
    group = group_of(6)
    index = within("b", lambda: socket.if_nametoindex("vb"))
    with joined(6) as end:
        soon(lambda: is_member(group))
        with without_ipv6():
            assert not is_member(group)
        with within("b", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as other:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, ipaddress.ip_address(group).packed + struct.pack("I", index))
            assert is_member(group)
            end()
            assert is_member(group), "the other program is no member any more"
        soon(lambda: not is_member(group))


@case(driver="rxe_rs", reason="rdma_rxe does not join groups")
def test_joined_again(_names):
    """A network device that had no IPv6 for a while, and so left the groups, is a member again: an attached queue pair receives."""
    need_lists()
    a, b, group = setup(6)
    member = Endpoint(b)
    attach(member.qp, group)
    with without_ipv6():
        assert not is_member(group_of(6))
    soon(lambda: is_member(group_of(6)))
    sender = Endpoint(a)
    sender.send(a.path(group), b"again")
    member.expect_message(b"again", sender)


def upper_address(node, family):
    return f"10.80.0.{host.NODES[node]}" if family == 4 else f"fd80::{host.NODES[node]}"


VLAN, MACVLAN = ("vlan", "id", "5"), ("macvlan", "mode", "bridge")


@contextlib.contextmanager
def upper(node, kind):
    """A network device above that of a node, with addresses, until the end or the call of the function that it passes."""
    def ip(*words):
        subprocess.run(["ip", "-n", node, *words], check=True)

    ip("link", "add", "link", host.netdev(node), "name", "above", "type", *kind)
    with contextlib.ExitStack() as end:
        end.callback(ip, "link", "del", "above")
        ip("link", "set", "above", "up")
        ip("addr", "add", f"{upper_address(node, 4)}/24", "dev", "above")
        ip("addr", "add", f"{upper_address(node, 6)}/64", "dev", "above", "nodad")
        for family in (4, 6):
            host.gid_index(host.device(node), upper_address(node, family))
        yield end.close


@case(driver="rxe_rs", reason="rdma_rxe does not join groups", timeout=120)
def test_address_above_the_link(_names):
    """Messages to a group that arrive on a VLAN device above that of the link are received, whether the VLAN device got its addresses before
    the queue pair was attached or after it. Its end does not wait for the queue pair."""
    need_lists()
    with upper("a", VLAN):
        for family in (4, 6):
            address = group_of(family)
            sender = Endpoint(Node(host.device("a"), host.gid_index(host.device("a"), upper_address("a", family))))
            to_group = sender.node.path(gid_of(address))
            with upper("b", VLAN) as remove:
                before = Endpoint(Node(host.device("b"), 0))
                attach(before.qp, gid_of(address))
                assert is_member(address, "above") and is_member(address), f"{address} was not joined"
                sender.send(to_group, b"before")
                before.expect_message(b"before", sender)
                remove()
            assert is_member(address)
            with upper("b", VLAN):
                soon(lambda: is_member(address, "above"))
                sender.send(to_group, b"after")
                before.expect_message(b"after", sender)
                detach(before.qp, gid_of(address))
                assert not is_member(address, "above") and not is_member(address), f"{address} was not left"


@case(driver="rxe_rs", reason="rdma_rxe does not join groups", timeout=120)
def test_links_on_two_ports(_names):
    """A message to a group that arrives on a bridge is received by the members on the links of both ports, once by each. A packet that no
    member accepts is counted once."""
    def ip(*words):
        subprocess.run(["ip", "-n", "b", *words], check=True)

    need_lists()
    if subprocess.run(["modprobe", "-qn", "bridge"], check=False).returncode and not host.is_uml():
        skip("this kernel has no bridges")
    with contextlib.ExitStack() as end:
        ip("link", "add", "port", "type", "veth", "peer", "name", "other")
        end.callback(ip, "link", "del", "port")
        ip("link", "add", "above", "type", "bridge", "mcast_snooping", "0")
        end.callback(ip, "link", "del", "above")
        for port in (host.netdev("b"), "port"):
            ip("link", "set", port, "master", "above")
        for netdev in ("port", "other", "above"):
            ip("link", "set", netdev, "up")
        host.shell("on b rdma link add rxe_port type rxe_rs netdev port")
        end.callback(host.shell, "on b rdma link del rxe_port")
        ip("addr", "add", f"{upper_address('b', 4)}/24", "dev", "above")
        ip("addr", "add", f"{upper_address('b', 6)}/64", "dev", "above", "nodad")
        names = (host.device("b"), "rxe_port")
        for family in (4, 6):
            address = group_of(family)
            group = gid_of(address)
            a = Node(host.device("a"), host.gid_index(host.device("a"), host.ip("a", family)))
            nodes = [Node(name, host.gid_index(name, upper_address("b", family))) for name in names]
            members = [Endpoint(node) for node in nodes]
            for member in members:
                attach(member.qp, group)
            soon(lambda: is_member(address, "above"))
            sender = Endpoint(a)
            sender.send(a.path(group), b"to both")
            for member in members:
                member.expect_message(b"to both", sender)
            for member in members:
                member.expect_nothing()
            before = sum(node.ctx.query_port(1).qkey_viol_cntr for node in nodes)
            sender.send(a.path(group), b"refused", qkey=QKEY + 1)
            soon(lambda: sum(node.ctx.query_port(1).qkey_viol_cntr for node in nodes) == before + 1)
            for member in members:
                member.expect_nothing()
                detach(member.qp, group)


@case(driver="rxe_rs", reason="rdma_rxe does not join groups", timeout=60)
def test_one_copy_beside_a_macvlan(_names):
    """A MACVLAN device gets a copy of each multicast frame that the network device below it gets, and both are members. A queue pair receives
    the message once; so it does what is sent from the address of the MACVLAN device, which is looped back there."""
    need_lists()
    if subprocess.run(["modprobe", "-qn", "macvlan"], check=False).returncode and not host.is_uml():
        skip("this kernel has no MACVLAN")
    for family in (4, 6):
        a, b, group = setup(family)
        with upper("b", MACVLAN):
            member = Endpoint(b)
            attach(member.qp, group)
            assert is_member(group_of(family), "above") and is_member(group_of(family))
            for sender in (Endpoint(a), Endpoint(Node(b.name, host.gid_index(b.name, upper_address("b", family))))):
                sender.send(sender.node.path(group), b"once")
                member.expect_message(b"once", sender)
                member.expect_nothing(1)


def test_delete_link_with_members(_names):
    """The network device leaves the group when the link is deleted."""
    need_lists()
    with joined(4):
        soon(lambda: is_member(group_of(4)))
        host.shell("del b; soon eval '! have b'")
        soon(lambda: not is_member(group_of(4)))
    host.shell("links")
