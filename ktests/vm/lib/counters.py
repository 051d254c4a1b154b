# SPDX-License-Identifier: GPL-2.0
"""Hardware counters of a device's port, from sysfs."""
import os
import time

from lib import host
from lib.ends import happens


def counter(device, name):
    with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}") as f:
        return int(f.read())


def total(name):
    """The sum of a counter of both devices. The RDMA core shows values of up to 10 ms ago."""
    return sum(counter(host.device(node), name) for node in "ab")


def so_far(read, *arguments):
    """What `read`, a function of this file, returns with all that was counted before the call: the RDMA core shows values of up to 10 ms
    ago, and a test that begins with one of those takes what was counted since then for its own."""
    time.sleep(0.05)
    return read(*arguments)


def grows(name, before, read=total):
    """Whether a counter becomes greater than it was."""
    return happens(lambda: read(name) > before, 5)


def stays(name, before, read=total):
    """Whether a counter has not become greater. The RDMA core shows values of up to 10 ms ago."""
    return not happens(lambda: read(name) > before, 0.1)


def is_drop(name):
    """Whether a counter counts a drop reason (`rxe_rs/proto/counter.rs` defines the names)."""
    return name.startswith("rx_") and not name.endswith("_requests")


def counters(device):
    folder = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
    values = {}
    for name in os.listdir(folder):
        with open(f"{folder}/{name}", encoding="ascii") as file:
            values[name] = int(file.read())
    return values
