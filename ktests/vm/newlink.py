# SPDX-License-Identifier: GPL-2.0
"""Requests to add a link that meet another one, or a change of their network device; without the process of a tool, for the moment counts."""
import errno
import os
import struct
import subprocess
import threading
import time
from socket import if_nametoindex

from lib import host
from lib.ends import soon
from lib.netlink import ROUTE, Connection, Netlink, attribute, index_of

DEFAULTS = dict(timeout=120)
LINKS = ("rxe_d1", "rxe_d2")
RTM_NEWLINK = 16
IFLA_NET_NS_FD = 28


def afterwards():
    """Nothing is left."""
    assert not list(filter(has_link, LINKS))


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def has_link(name):
    return os.path.exists(f"/sys/class/infiniband/{name}")


class Request(threading.Thread):
    """A request to the RDMA subsystem, made by a thread of its own when `start` is called."""

    def __init__(self, command, **attributes):
        super().__init__()
        self.command, self.attributes, self.netlink, self.error = command, attributes, Netlink(), None

    def run(self):
        try:
            self.netlink(self.command, **self.attributes)
        except OSError as error:
            self.error = error.errno
        self.netlink.socket.close()


def new_link(name):
    return Request(Netlink.NEWLINK, NAME=name, TYPE=host.shell("link_type a").strip(), NETDEV="d0")


def test_at_the_same_time(names):
    """A network device has one link, also if two are requested at the same time."""
    host.shell("modprobe dummy numdummies=0")
    ip("link", "add", "d0", "up", "type", "dummy")
    try:
        for _ in range(10):
            requests = [new_link(name) for name in LINKS]
            for request in requests:
                request.start()
            for request in requests:
                request.join()
            errors = {request.error for request in requests}
            assert errors == {None, errno.EEXIST}, f"{errors}, links: {list(filter(has_link, LINKS))}"
            host.shell("rdma link del $1", *filter(has_link, LINKS))
    finally:
        ip("link", "del", "d0")
        soon(lambda: not any(map(has_link, LINKS)))


def move(index, namespace):
    """Moves a network device to another network namespace."""
    connection = Connection(ROUTE)
    with connection.socket:
        connection.request(RTM_NEWLINK, struct.pack("=BxHiII", 0, 0, index, 0, 0) + attribute(IFLA_NET_NS_FD, struct.pack("=I", namespace)))


def test_netdev_moved(names):
    """The link of a network device that moves to another network namespace goes, also if the request to add it has not ended yet.

    That request waits meanwhile: the last links of other namespaces go, which closes the UDP port there.
    """
    host.shell("modprobe dummy numdummies=0")
    rng = host.random_of_run()
    others = [f"rxe_e{number}" for number in range(4)]
    for name in others:
        host.shell("ip netns add $1; ip -n $1 link add e0 up type dummy", name)
    overtaken = 0
    try:
        with open(f"/run/netns/{others[0]}", encoding="ascii") as namespace:
            for _ in range(12):
                for name in others:
                    host.shell("ip netns exec $1 rdma link add $1 type $(link_type a) netdev e0", name)
                ip("link", "add", "d0", "up", "type", "dummy")
                index = if_nametoindex("d0")
                deletes = [Request(Netlink.DELLINK, INDEX=index_of(name)) for name in others]
                add = new_link(LINKS[0])
                for delete in deletes:
                    delete.start()
                time.sleep(rng.uniform(0, 0.08))
                add.start()
                time.sleep(0.003)
                move(index, namespace.fileno())
                overtaken += add.is_alive()
                for delete in deletes:
                    delete.join()
                add.join()
                assert add.error in (None, errno.ENODEV), add.error
                soon(lambda: not has_link(LINKS[0]), what="a link on a network device that has moved")
                ip("-n", others[0], "link", "del", "d0")
    finally:
        for name in others:
            host.shell("ip netns del $1; ! [ -e /sys/class/infiniband/$2 ] || rdma link del $2", name, LINKS[0])
        soon(lambda: not any(map(has_link, LINKS)))
    print(f"{overtaken} requests ended after the move")
