# SPDX-License-Identifier: GPL-2.0
"""The machine of a test as lib.sh presents it to shell tests: nodes (two namespaces of one machine), addresses, GIDs."""
import contextlib
import ipaddress
import os
import random
import subprocess

from lib.ends import soon

NODES = {"a": 1, "b": 2}


def shell(script, *arguments):
    """Runs a script with the functions of lib.sh and returns its output. A failing command ends the script and the test."""
    script = f'. /share/guest/lib.sh; set -e; {script}'
    return subprocess.run(["bash", "-c", script, "test", *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def reloaded(parameter):
    """Reloads the driver with a module parameter. Use the new devices in a child process."""
    shell('no_links; load_here rxe_rs "$1"; links', parameter)
    try:
        yield
    finally:
        shell("no_links; links")


def setting(name, default=""):
    """A variable of the test run, from /share/env or the environment (`qemu/run --set`)."""
    if name in os.environ:
        return os.environ[name]
    with open("/share/env", encoding="ascii") as lines:
        return dict(line.rstrip("\n").split("=", 1) for line in lines if not line.startswith("export ")).get(name, default)


def driver(node):
    return setting(f"DRIVER_{node}")


def random_of_run():
    """Random numbers that `qemu/run --set RXE_SEED=…` repeats."""
    seed = int(setting("RXE_SEED") or random.randrange(32768))
    print(f"RXE_SEED={seed}", flush=True)
    return random.Random(seed)


def is_slow():
    """Whether the machine is emulated or its kernel checks every lock and access."""
    return setting("RXE_SLOW") == "1"


def is_debug():
    return setting("RXE_DEBUG") == "1"


def is_uml():
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return "User Mode Linux" in file.read()


def device(node):
    return f"rxe_{node}"


def netdev(node):
    return f"v{node}"


@contextlib.contextmanager
def one_cpu(node):
    """One CPU receives all packets of the node. A veth device queues each packet on the CPU that takes it out of the sender's queue: the
    sender's or that of the queue's timer, so that packets may overtake others."""
    script = "on $1 sh -c \"echo $3 >/sys/class/net/$2/queues/rx-0/rps_cpus\""
    shell(script, node, netdev(node), 1)
    try:
        yield
    finally:
        shell(script, node, netdev(node), 0)


def ip(node, family):
    return f"10.77.0.{NODES[node]}" if family == 4 else f"fd77::{NODES[node]}"


def gid_index(name, address):
    """Waits until a device has the GID of an address; returns its index."""
    value = ipaddress.ip_address(address)
    if value.version == 4:
        value = ipaddress.ip_address(f"::ffff:{value}")
    folder = f"/sys/class/infiniband/{name}/ports/1/gids"
    found = []

    def there():
        for index in sorted(os.listdir(folder), key=int):
            try:
                with open(f"{folder}/{index}", encoding="ascii") as file:
                    if ipaddress.ip_address(file.read().strip()) == value:
                        found.append(index)
                        return True
            except OSError:
                # Reading an empty entry fails.
                continue
        return False

    soon(there)
    return found[0]


def gid(node, family):
    return gid_index(device(node), ip(node, family))


def names(family=4):
    """The arguments of `lib.ends.pair`."""
    return [device("a"), gid("a", family), device("b"), gid("b", family)]


def users_objects():
    """Lines of `rdma resource show` about objects of processes; for objects of the kernel, the owner is in brackets."""
    lines = []
    for kind in ("qp", "cq", "mr", "pd"):
        shown = subprocess.run(["rdma", "resource", "show", kind], check=True, stdout=subprocess.PIPE, text=True).stdout
        lines += [line for line in shown.splitlines() if "[" not in line]
    return lines
