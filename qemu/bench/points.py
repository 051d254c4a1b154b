# SPDX-License-Identifier: GPL-2.0
"""The points that `bench` measures, each of them a number, and the runs of programs in a test machine that measure one or more points.

The name of a point is OPERATION_KIND.DETAIL, such as send_bw.64K.poll-l16; KINDS has the kinds.
"""
import json
import math
import re

GIB = 1 << 30
SIZES = {"2": 2, "8": 8, "64": 64, "512": 512, "4K": 4096, "16K": 16384, "64K": 65536, "256K": 1 << 18, "1M": 1 << 20}
# The number of requests for a bandwidth or message rate, and for a latency.
COUNTS = {"8": 20000, "64": 10000, "512": 10000, "4K": 5000, "16K": 3000, "64K": 1500, "256K": 400, "1M": 120}
LATENCY = {"2": 1000, "4K": 1000, "64K": 500}
LIST, QPS = 16, 16
POINT_SECONDS = 20
# The kinds of network between the namespaces, which turn.sh configures.
PLAIN, NO_USO = "plain", "nouso"
LOSSES = ("loss0", "loss0.1", "loss1", "loss3", "reorder1")

# Kind: title, whether a larger value is better.
KINDS = {
    "bw": ("Bandwidth, MiB/s", True),
    "rate": ("Messages per second", True),
    "lat": ("Latency, us, typical (send, write, tcp, ping-pong: half a round trip)", False),
    "p99": ("Latency of a 64 B message of an idle queue pair, us, 99th percentile", False),
    "cpu": ("Processor time of both sides, seconds per GiB", False),
    "create": ("Creation of objects, us", False),
    "destroy": ("Destruction of objects, us", False),
    "rereg": ("Re-registration of regions with other access rights, us", False),
    "connects": ("Connections per second by rdma_cm", True),
    "memory": ("Memory of an object, bytes", False),
    "softirqs": ("Softirqs per second that idle queue pairs cause", False),
}
# The percentiles of a latency that are stored.
PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


def driver_of(variant):
    """The driver in the name of a variant such as rxe_rs+esp."""
    return variant.partition("+")[0]


def kind_of(point):
    """The kind in the name of a point."""
    return point.split("_", 1)[1].split(".", 1)[0]


def amount_kind(size):
    """The kind of the throughput of messages of a size: a message rate up to 4 KiB, else a bandwidth."""
    return "rate" if SIZES[size] <= 4096 else "bw"


def amount(size, per_second):
    """The throughput of messages of a size, in the unit of its kind."""
    return per_second if amount_kind(size) == "rate" else per_second * SIZES[size] / 2**20


class Run:
    """A program that runs once in a turn. `quick`: in how many of the two rounds of `bench --quick` it runs."""
    network = PLAIN
    seconds = POINT_SECONDS

    def __init__(self, points, quick=0):
        self.points, self.quick = points, quick
        self.name = points[0]

    def command(self, driver, divisor):
        """The command of turn.sh for a driver, with `divisor` times fewer iterations; None if the run does not apply to it."""
        raise NotImplementedError

    def values(self, driver, text):
        """The values of points in the output; missing ones are left out."""
        raise NotImplementedError

    def expected(self, driver):
        """The points that the run must measure with a driver."""
        return self.points

    def distribution(self, text):
        """The values at PERCENTILES, if the output has them."""
        return None


def perftest_line(text, size):
    """The words of perftest's line with results: `bytes iterations …`; None if there is none."""
    for line in reversed(text.splitlines()):
        words = line.split()
        if len(words) >= 5 and words[0] == str(size) and words[1].isdigit():
            return words
    return None


def positive(word):
    value = float(word)
    return value if 0 < value < math.inf else None


def without_none(values):
    return {name: value for name, value in values.items() if value is not None}


class Perftest(Run):
    """Bandwidth and latency by perftest; for TCP by iperf3 and qperf; the upper limit of the bandwidth by ktests/limit."""

    def __init__(self, operation, size, mode, latency=False, variant="", network=PLAIN, quick=0):
        self.operation, self.size, self.mode, self.latency = operation, size, mode, latency
        self.variant, self.network = variant, network
        self.kind = "lat" if latency else amount_kind(size)
        detail = "-".join([mode, *filter(None, (variant, "" if network == PLAIN else network))])
        super().__init__([f"{operation}_{self.kind}.{size}.{detail}"], quick)

    def command(self, driver, divisor):
        size = SIZES[self.size]
        if driver in ("tcp", "limit"):
            if self.operation != "send" or self.mode != "poll" or self.variant:
                return None
            if driver == "limit":
                # One value for each size that the goals name, on the plain network.
                return ["limit", f"size={size}", f"count={max((2 << 30) // size // divisor, 20)}"] \
                    if self.kind == "bw" and self.network == PLAIN else None
            if not self.latency:
                return ["iperf3", "-c", "10.77.0.2", "-t", "1", "-l", str(size), "-J"]
            return ["qperf", "10.77.0.2", "-t", "1", "-m", str(size), "-uu", "tcp_lat"]
        command = [f"ib_{self.operation}_{'lat' if self.latency else 'bw'}", "-s", str(size)]
        count = (LATENCY if self.latency else COUNTS)[self.size] // divisor
        if self.mode == "event":
            command += ["-e"]
            count = count // 3 if self.latency else count
        if self.latency:
            command += ["-H"]
        elif driver == "siw":
            # With perftest's default of 128 requests in flight, writes complete with a local error on siw.
            command += ["-t", "32"]
        if self.variant == "b":
            command += ["-b"]
        if self.variant == f"q{QPS}":
            command += ["-q", str(QPS)]
            count //= QPS // 2
        if self.variant == f"l{LIST}":
            command += ["-l", str(LIST)]
            count -= count % LIST
        if self.network in LOSSES:
            # The time for a number of messages cannot be predicted, so the time is given.
            return [*command, "-D", "1", "-f", "0"]
        return [*command, "-n", str(max(count, 5 * LIST))]

    def values(self, driver, text):
        return without_none({self.name: self.value(driver, text)})

    def value(self, driver, text):
        size = SIZES[self.size]
        try:
            if driver == "limit":
                return positive(re.search(r"^limit: bw (\d+)$", text, re.M)[1])
            if driver == "tcp" and not self.latency:
                return amount(self.size, json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8 / size)
            if driver == "tcp":
                # With -uu qperf prints nanoseconds: half a round trip.
                number, unit = re.search(r"latency\s*=\s*([\d.,]+)\s*(ns|us|ms|sec)", text).groups()
                return positive(number.replace(",", "")) * {"ns": 1e-3, "us": 1, "ms": 1e3, "sec": 1e6}[unit]
            # `bytes iterations min max TYPICAL average …` or `bytes iterations peak AVERAGE RATE`, the rate in millions per second.
            words = perftest_line(text, size)
            if self.latency:
                return positive(words[4])
            return positive(words[3]) if self.kind == "bw" else positive(float(words[4]) * 1e6)
        except (AttributeError, IndexError, ValueError, KeyError, TypeError):
            return None

    def distribution(self, text):
        """The values at PERCENTILES, from the lines `number, microseconds` that -H prints."""
        if not self.latency:
            return None
        samples = sorted(float(value) for value in re.findall(r"^\d+, ([\d.]+)$", text, re.M))
        if not samples:
            return None
        return [samples[min(int(len(samples) * p / 100), len(samples) - 1)] for p in PERCENTILES]


class Metered(Run):
    """Processor time: the host records that of the machine before, between and after a short and a long run."""
    seconds = 3 * POINT_SECONDS

    def __init__(self, operation, size, few, many, quick=0):
        self.operation, self.size, self.few, self.many = operation, size, few, many
        super().__init__([f"{operation}_cpu.{size}.event"], quick)

    def command(self, driver, divisor):
        if driver in ("tcp", "limit"):
            return None
        depth = ["-t", "32"] if driver == "siw" else []
        few, many = (max(n // divisor, 20) for n in (self.few, self.many))
        return ["metered", str(few), str(many), f"ib_{self.operation}_bw", "-s", str(SIZES[self.size]), "-e", *depth]

    def values(self, driver, text):
        """`metered N FEW MANY` names the first of three readings, `meter N SECONDS`."""
        found = re.search(r"^metered (\d+) (\d+) (\d+)$", text, re.M)
        readings = {int(n): float(seconds) for n, seconds in re.findall(r"^meter (\d+) ([\d.]+)$", text, re.M)}
        if not found:
            return {}
        first, few, many = map(int, found.groups())
        if any(n not in readings for n in range(first, first + 3)) or many <= few:
            return {}
        short, long = (readings[first + n + 1] - readings[first + n] for n in (0, 1))
        moved = (many - few) * SIZES[self.size] / GIB
        return {self.name: (long - short) / moved} if long > short else {}


class Kernel(Run):
    """Requests of kernel consumers, by the module ktests/kbench, which prints nanoseconds per operation."""
    seconds = 3 * POINT_SECONDS

    def __init__(self, operation, size, depth, count, quick=0):
        self.operation, self.size, self.depth, self.count = operation, size, depth, count
        self.kind = "lat" if operation == "pingpong" else amount_kind(size)
        super().__init__([f"kernel-{operation}_{self.kind}.{size}.d{depth}"], quick)

    def command(self, driver, divisor):
        # Queue pairs of siw can be connected by the connection manager only.
        if driver in ("tcp", "siw", "limit"):
            return None
        return ["kbench", f"what={self.operation}", f"size={SIZES[self.size]}", f"depth={self.depth}",
                f"count={max(self.count // divisor, 10)}"]

    def values(self, driver, text):
        ns = kbench_values(text).get(self.operation)
        if not ns:
            return {}
        return {self.name: ns / 1e3 if self.kind == "lat" else amount(self.size, 1e9 / ns)}


def kbench_values(text):
    return {what: int(value) for what, value in re.findall(r"^kbench: (\w+) (\d+)$", text, re.M)}


class KernelMany(Run):
    """Messages of many queue pairs of a kernel consumer, which take turns."""
    seconds = 10 * POINT_SECONDS

    def __init__(self, qps, size, count, quick=0):
        self.qps, self.size, self.count = qps, size, count
        super().__init__([f"kernel-qps_rate.{size}.{qps}"], quick)

    def command(self, driver, divisor):
        if driver in ("tcp", "siw", "limit"):
            return None
        return ["kbench", "what=qps", f"qps={max(self.qps // divisor, 1)}", f"size={SIZES[self.size]}", "depth=64",
                f"count={max(self.count // divisor, 64)}"]

    def values(self, driver, text):
        ns = kbench_values(text).get("qps")
        return {self.name: 1e9 / ns} if ns else {}


class KernelIdle(Run):
    """Softirqs that idle queue pairs cause."""
    seconds = 10 * POINT_SECONDS

    def __init__(self, qps, quick=0):
        self.qps = qps
        super().__init__([f"kernel-qps_softirqs.{qps}"], quick)

    def command(self, driver, divisor):
        if driver in ("tcp", "siw", "limit"):
            return None
        return ["kbench", "what=idle", f"qps={max(self.qps // divisor, 1)}", "size=64", "depth=64"]

    def values(self, driver, text):
        found = kbench_values(text)
        return {self.name: found["softirqs"]} if "softirqs" in found else {}


class KernelBeside(Run):
    """Latency of a mostly idle connection beside load on other queue pairs."""
    seconds = 3 * POINT_SECONDS

    def __init__(self, load, qps, size, depth, quick=0):
        self.qps, self.size, self.depth = qps, size, depth
        super().__init__([f"kernel-beside_p99.{load}"], quick)

    def command(self, driver, divisor):
        if driver in ("tcp", "siw", "limit"):
            return None
        return ["kbench", "what=beside", f"qps={self.qps}", f"size={SIZES[self.size]}", f"depth={self.depth}",
                f"count={max(2000 // divisor, 100)}"]

    def values(self, driver, text):
        found = kbench_values(text)
        return {self.name: found["p99"] / 1e3} if "p99" in found else {}


class KernelObject(Run):
    """Creation and destruction of objects by kernel consumers."""

    def __init__(self, thing, quick=0):
        self.thing = thing
        super().__init__([f"kernel-{thing}_{kind}.d16" for kind in ("create", "destroy")], quick)

    def command(self, driver, divisor):
        if driver in ("tcp", "siw", "limit"):
            return None
        return ["kbench", f"what={self.thing}", "size=8", "depth=16", f"count={max(1000 // divisor, 10)}"]

    def values(self, driver, text):
        found = kbench_values(text)
        return {f"kernel-{self.thing}_{kind}.d16": found[f"{kind}_{self.thing}"] / 1e3 for kind in ("create", "destroy")
                if f"{kind}_{self.thing}" in found}


class Objects(Run):
    """Objects of processes, by ktests/objects: time of creation, re-registration and destruction, of a doorbell, of the call that arms a
    CQ, and of a wake-up; or memory."""
    seconds = 5 * POINT_SECONDS
    CALLS = {"doorbell": "doorbell_lat.empty", "arm": "arm_lat.cq", "wakeup": "wakeup_lat.process"}
    TIMED = ("pd", "cq.128", "qp.16", "mr.4K", "mr.1M", "mr.1G", "mw", "ah")
    REREGISTERED = ("mr.4K",)
    # siw has no address handles, no memory windows and no re-registration, and can create only some dozens of queue pairs that are not connected.
    NOT_SIW = ("mw_", "ah_", "qp_", "mr_rereg", "doorbell_")
    KEPT = ("cq.128", "mr.4K", "qp.16", "qp.128", "mr.1G")
    FILLED = ("qp.16", "qp.128")

    def __init__(self, what, quick=0):
        self.what = what
        if what == "time":
            names = [self.point(thing, kind) for thing in self.TIMED for kind in ("create", "destroy")]
            names += [self.point(thing, "rereg") for thing in self.REREGISTERED]
            names += self.CALLS.values()
        else:
            names = [self.point(thing, "memory") for thing in self.KEPT] + [self.point(f"{thing}.full", "memory") for thing in self.FILLED]
        super().__init__(names, quick)

    @staticmethod
    def point(thing, kind):
        name, _, detail = thing.partition(".")
        return f"{name}_{kind}.{detail or 'user'}"

    def command(self, driver, divisor):
        if driver in ("tcp", "limit") or (driver, self.what) == ("siw", "memory"):
            return None
        return ["objects", self.what]

    def expected(self, driver):
        return [p for p in self.points if driver != "siw" or not p.startswith(self.NOT_SIW)]

    def values(self, driver, text):
        found = {self.CALLS[name]: int(value) / 1e3 for name, value in re.findall(r"^(\w+) (\d+)$", text, re.M) if name in self.CALLS}
        found = {name: value for name, value in found.items() if name in self.points}
        for kind, thing, value in re.findall(r"^(create|rereg|destroy|memory|full)_([\w.]+) (-?\d+)$", text, re.M):
            name = self.point(f"{thing}.full", "memory") if kind == "full" else self.point(thing, kind)
            if name in self.points:
                # The measured memory of a small object may be negative.
                found[name] = max(int(value), 0) / (1 if kind in ("memory", "full") else 1e3)
        return found


class Connects(Run):
    """Connections by the connection manager."""
    seconds = 3 * POINT_SECONDS

    def __init__(self, count, quick=0):
        self.count = count
        super().__init__([f"cm_connects.{count}"], quick)

    def command(self, driver, divisor):
        # cmtime does not run on iWARP devices.
        return None if driver in ("tcp", "limit", "siw") else ["cmtime", str(max(self.count // divisor, 20))]

    def values(self, driver, text):
        """The first table of cmtime has queue pairs; `full connect` is the time of all steps of a connection."""
        count = re.search(r"^qp_conn\s+(\d+)$", text, re.M)
        took = re.search(r"^full connect\s+\d+\s+(\d+)\b", text[count.end():], re.M) if count else None
        return {self.name: int(count[1]) * 1e6 / int(took[1])} if took and int(took[1]) else {}


class Peer(Run):
    """Processes on two machines that lose or reorder packets: rdma_rxe on both, and rxe_rs at the client, or at the server, of rdma_rxe. They
    cannot be loaded together, so peer.sh measures all of that in two machines, of one processor each. The processes wait for completion
    events, for WRITE only at the server: one that polls takes the processor from the work queue in which rdma_rxe answers."""
    PAIRS = (("rdma_rxe", "rdma_rxe"), ("rxe_rs", "rdma_rxe"), ("rdma_rxe", "rxe_rs"))
    NETWORKS = ("loss0.1", "loss1", "loss3", "reorder1")
    # The length of a run, and the number of messages: of few packets so few are lost that their number is chance.
    seconds = 120
    COUNTS = {"loss0.1": 2000, "loss1": 500, "loss3": 100, "reorder1": 500}
    LEAST = 100

    def __init__(self, operation, impairment):
        self.operation, self.impairment = operation, impairment
        super().__init__([f"{operation}_bw.64K.{end}-{impairment}" for end in ("client", "server")])

    def command(self, driver, divisor):
        """None: it is in no turn of a driver."""
        return None

    def measurement(self, divisor):
        """The arguments of `measure` in peer.sh behind the name."""
        count = max(self.COUNTS[self.impairment] // divisor, self.LEAST)
        events = [] if self.operation == "write" else ["-e"]
        return [str(count), f"ib_{self.operation}_bw", *events]

    def compared(self, outputs):
        """{(point, driver): value or None}, of the outputs with each of the PAIRS; those that are missing have failed."""
        values = []
        for pair in self.PAIRS:
            words = perftest_line(outputs.get(pair, ""), SIZES["64K"])
            values.append(positive(words[3]) if words else None)
        both, client, server = values
        return {(self.points[0], "rdma_rxe"): both, (self.points[0], "rxe_rs"): client,
                (self.points[1], "rdma_rxe"): both, (self.points[1], "rxe_rs"): server}


def perftest_runs():
    found = []
    for mode in ("poll", "event"):
        for operation in ("send", "write", "read"):
            # perftest does not support completion events for writes, because the target gets no completion.
            if (operation, mode) == ("write", "event"):
                continue
            polled = mode == "poll"
            for size in COUNTS if polled else ("8", "4K", "64K", "1M"):
                quick = size in ("64K", "1M") and polled or (operation, size) in (("send", "8"), ("write", "4K"), ("send", "4K"))
                quick = quick or (operation, size) == ("send", "64K")
                found.append(Perftest(operation, size, mode, quick=2 * quick))
            for size in ("8", "4K", "64K", "1M"):
                large = size in ("64K", "1M")
                quick = polled and (operation, size) in (("send", "64K"), ("write", "8"))
                found.append(Perftest(operation, size, mode, variant=f"l{LIST}", quick=2 * quick))
                found.append(Perftest(operation, size, mode, variant="b" if large else f"q{QPS}", quick=2 * quick))
            found += [Perftest(operation, size, mode, latency=True, quick=2 * (operation == "send" and polled or operation == "read" and
                                                                               size == "64K" and polled)) for size in LATENCY]
    return found


def network_runs():
    """The runs without USO, and those with loss or reordering of single packets in addition. What is lost by loss shows in comparison with
    "loss0": a queueing discipline alone makes a driver slower, and rxe_rs does not merge packets with one."""
    found = []
    for network in (NO_USO, *LOSSES):
        for operation in ("send", "write", "read"):
            # A run with a queueing discipline takes three seconds.
            rounds = {NO_USO: 2, "loss0": 1, "loss1": 1}.get(network, 0) if operation == "write" else 0
            found += [Perftest(operation, size, "poll", network=network, quick=rounds * (size == "64K"))
                      for size in (("64K", "1M") if network == NO_USO else ("64K",))]
    return found


def kernel_runs():
    found = [Kernel("pingpong", size, 1, 20000, quick=2 * (size == "8")) for size in ("8", "4K")]
    for operation in ("send", "write", "read"):
        found += [Kernel(operation, size, depth, 20000, quick=2 * ((operation, size, depth) in (("write", "4K", 32), ("send", "8", 32))))
                  for size in ("8", "4K") for depth in (1, 32, 128)]
        found += [Kernel(operation, "64K", 32, 3000, quick=2 * (operation == "write")), Kernel(operation, "1M", 8, 300)]
    found += [KernelMany(qps, size, 40000, quick=int(qps in (100, 10000) and size == "64"))
              for size in ("64", "4K") for qps in (1, 100, 1000, 10000)]
    found += [KernelIdle(10000), KernelBeside("alone", 0, "64", 16), KernelBeside("stream", 1, "1M", 8, quick=2),
              KernelBeside("1000qps", 1000, "4K", 1000)]
    return found + [KernelObject(thing) for thing in ("pd", "cq", "qp", "mr", "ah")]


def all_runs():
    """All runs, in the order of a turn, which minimizes changes of the network."""
    return perftest_runs() + kernel_runs() + [
        Metered("send", "64K", 1000, 17000), Metered("send", "1M", 100, 2100, quick=1), Metered("read", "1M", 100, 4100),
        Connects(1000, quick=1), Objects("time", quick=2), Objects("memory", quick=1)] + network_runs() + [
        Peer(operation, network) for network in Peer.NETWORKS for operation in ("send", "write", "read")]
