# SPDX-License-Identifier: GPL-2.0
"""The goals of the driver's performance, and the comparison of results with them."""
import math
import re
from dataclasses import dataclass

from points import KINDS, LIST, QPS, driver_of, kind_of

SUBJECT = "rxe_rs"


@dataclass(frozen=True)
class Goal:
    """A goal for the points whose names match the regular expression `pattern`: the ratio of the medians of the driver and of `base` must
    be at least or at most (`bound`) `wanted`. `base` is a driver; or `(text, other)`: the driver itself at the point with `other` in place of
    `text`, such as that without loss; or None: the value itself is compared. Without `wanted` the value is only shown."""
    title: str
    pattern: str
    base: object
    bound: str
    wanted: float = None


LARGE = r"(send|write|read)_bw\.(64K|1M)"
SMALL = r"(send|write|read)_rate\.(8|4K)"
OBJECTS = r"(kernel-)?(pd|cq|qp|mr|mw|ah)_(create|rereg|destroy)\..*"

GOALS = (
    Goal("64 KiB, 1 MiB polled; posted lists; bidirectional", LARGE + r"\.poll(-l16|-b)?", "rdma_rxe", ">=", 4),
    Goal("the same, event driven", LARGE + r"\.event(-l16|-b)?", "rdma_rxe", ">=", 3),
    Goal("kernel consumers, 8 B and 4 KiB", r"kernel-(send|write|read)_rate\..*", "rdma_rxe", ">=", 2),
    Goal("kernel consumers, 64 KiB and 1 MiB", r"kernel-(send|write|read)_bw\..*", "rdma_rxe", ">=", 4),
    Goal("user messages 8 B and 4 KiB, 1 and 16 QPs, lists", SMALL + r"\.(poll|event)(-q16|-l16)?", "rdma_rxe", ">=", 2),
    Goal("latency 64 KiB", r"\w+_lat\.64K\.(poll|event)", "rdma_rxe", "<=", 0.5),
    Goal("kernel ping-pong 8 B and 4 KiB", r"kernel-pingpong_lat\..*", "rdma_rxe", "<=", 0.5),
    Goal("latency 2 B and 4 KiB of processes", r"(send|write|read)_lat\.(2|4K)\..*", "rdma_rxe", "<=", 0.7),
    Goal("latency 2 B and 4 KiB against siw", r"(send|write|read)_lat\.(2|4K)\..*", "siw", "<=", 1),
    Goal("without USO, 64 KiB and 1 MiB", LARGE + r"\.poll-nouso", "rdma_rxe", ">=", 3),
    Goal("bandwidth and messages against siw", r".*_(bw|rate)\..*", "siw", ">=", 1.5),
    # siw's library arms a CQ without a call; a wake-up needs no driver.
    Goal("latency and times against siw", r"(?!arm_|wakeup_).*_(lat|create|destroy|cpu)\..*", "siw", "<=", 0.67),
    Goal("1 MiB against TCP", r"(send|write|read)_bw\.1M\.poll", "tcp", ">=", 0.8),
    Goal("1 MiB, share of the limit", r"(send|write|read)_bw\.1M\.poll", "limit", ">=", 0.8),
    Goal("processor time per GiB, event driven", r".*_cpu\..*", "rdma_rxe", "<=", 0.4),
    Goal("objects: creation, re-registration and destruction", OBJECTS, "rdma_rxe", "<=", 1),
    Goal("the same, half of the time", OBJECTS, "rdma_rxe", "<=", 0.5),
    Goal("connections by rdma_cm", r"cm_connects\..*", "rdma_rxe", ">=", 1.5),
    Goal("memory of QPs and CQs, connected and idle", r"(qp|cq)_memory\.\d+", "rdma_rxe", "<=", 0.9),
    Goal("memory of QPs with full queues", r"qp_memory\.\d+\.full", "rdma_rxe", "<=", 1.2),
    Goal("memory of MRs of 4 KiB and 1 GiB", r"mr_memory\..*", "rdma_rxe", "<=", 0.6),
    Goal("10,000 QPs, share of the rate of 100", r"kernel-qps_rate\.(64|4K)\.10000", (".10000", ".100"), ">=", 0.8),
    Goal("softirqs of 10,000 idle QPs", r"kernel-qps_softirqs\..*", None, "<=", 0),
    Goal("p99 of an idle QP beside load", r"kernel-beside_p99\.(stream|1000qps)", "rdma_rxe", "<=", 0.5),
    Goal("loss 0.1 %, share of loss-free bandwidth", r"\w+_bw\.64K\.poll-loss0\.1", ("-loss0.1", "-loss0"), ">=", 0.95),
    Goal("loss 1 %, share of loss-free bandwidth", r"\w+_bw\.64K\.poll-loss1", ("-loss1", "-loss0"), ">=", 0.85),
    Goal("loss 3 %, share of loss-free bandwidth", r"\w+_bw\.64K\.poll-loss3", ("-loss3", "-loss0"), ">=", 0.6),
    Goal("reordering 1 %, share of bandwidth without", r"\w+_bw\.64K\.poll-reorder1", ("-reorder1", "-loss0"), ">="),
    Goal("loss and reordering, the client of rdma_rxe", r"\w+_bw\.64K\.client-.*", "rdma_rxe", ">=", 2),
    Goal("loss and reordering, the server of rdma_rxe", r"\w+_bw\.64K\.server-.*", "rdma_rxe", ">=", 2),
)
NOTES = (
    # mpa_crc_required and mpa_crc_strict in drivers/infiniband/sw/siw/siw_main.c are constants that are false.
    "siw computes no CRC, unless its peer asks for one: rxe_rs+icrc and rdma_rxe compute one for each packet",
    "siw: no consumers in the kernel, connections and memory, because only the connection manager can connect its queue pairs",
    "perftest has no WRITE with completion events, for which no receiver would get one",
)


def entry_of(data, point, driver):
    """The results of a driver for a point. TCP and the limit have one value per size, which is used for each operation, but not with
    completion events or for kernel consumers; that of the limit is used for the plain network only."""
    if driver_of(driver) in ("tcp", "limit"):
        operation, rest = point.split("_", 1)
        words = rest.split(".", 2)
        if operation not in ("send", "write", "read") or len(words) < 3:
            return None
        mode, *more = words[2].split("-")
        if mode != "poll" or {"b", f"l{LIST}", f"q{QPS}"} & set(more):
            return None
        point = f"send_{rest}"
    return data["results"].get(point, {}).get(driver)


def ratio(data, point, driver, base):
    """The ratio of the medians of two drivers; None if one is missing."""
    mine, theirs = entry_of(data, point, driver), entry_of(data, point, base)
    if not mine or not theirs or "median" not in mine or "median" not in theirs or theirs["median"] <= 0:
        return None
    return mine["median"] / theirs["median"]


def value_of(goal, data, point):
    """The value at a point that is compared with a goal; None if it was not measured."""
    if isinstance(goal.base, str):
        return ratio(data, point, SUBJECT, goal.base)
    mine = entry_of(data, point, SUBJECT)
    if not mine or "median" not in mine:
        return None
    if goal.base is None:
        return mine["median"]
    other = entry_of(data, point.replace(*goal.base), SUBJECT)
    return mine["median"] / other["median"] if other and other.get("median") else None


def met(goal, value):
    return value >= goal.wanted if goal.bound == ">=" else value <= goal.wanted


def judge(data):
    """For each goal with a value: (goal, {point: value}, the point with the worst value)."""
    for goal in GOALS:
        values = {point: value_of(goal, data, point) for point in data["results"] if re.fullmatch(goal.pattern, point)}
        values = {point: value for point, value in values.items() if value is not None}
        if values:
            worst = (min if goal.bound == ">=" else max)(values, key=values.get)
            yield goal, values, worst


def better(point, new, old):
    """The factor by which a value is better than another: infinite beside a bad 0, 1 between two values of 0."""
    good, bad = (new, old) if KINDS[kind_of(point)][1] else (old, new)
    if good == bad:
        return 1.0
    return good / bad if bad else math.inf
