#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The tables of README.md and rxe_rs/PERFORMANCE.md, which are those of one stored run of the benchmark.

tables.py BENCH.JSON    stores the results of a run, with all drivers and rxe_rs+icrc, as docs/bench.json, and writes the tables from it

`bench --compare docs/bench.json` compares another run with these results.
"""
import argparse
import copy
import functools
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import goals  # noqa: E402
import points  # noqa: E402
import report  # noqa: E402
import stored_table  # noqa: E402

STORED = CLONE / "docs/bench.json"
BASE, PLAIN, ICRC = "rdma_rxe", goals.SUBJECT, f"{goals.SUBJECT}+icrc"
OPERATIONS = ("send", "write", "read")


def operations(pattern):
    return [pattern.format(operation) for operation in OPERATIONS]


# The lines of the table in README.md: the points of each, and by what their values are divided.
LINES = (
    ("SEND / WRITE / READ 64 KiB, polling, MiB/s", operations("{}_bw.64K.poll"), 1),
    ("the same 1 MiB", operations("{}_bw.1M.poll"), 1),
    ("SEND / WRITE / READ latency 64 KiB, polling, µs", operations("{}_lat.64K.poll"), 1),
    ("latency of SEND and WRITE of 2 bytes, polling, and SEND with completion events, µs",
     ["send_lat.2.poll", "write_lat.2.poll", "send_lat.2.event"], 1),
    ("SEND / WRITE / READ 8 bytes, posted lists of 16, thousands per second", operations("{}_rate.8.poll-l16"), 1000),
    ("consumers in the kernel, 8 bytes, 32 in flight, thousands per second", operations("kernel-{}_rate.8.d32"), 1000),
    ("the same 4 KiB", operations("kernel-{}_rate.4K.d32"), 1000),
    ("the same 64 KiB, MiB/s", operations("kernel-{}_bw.64K.d32"), 1),
    ("the same 1 MiB, 8 in flight", operations("kernel-{}_bw.1M.d8"), 1),
    ("64 KiB with 1 % of the packets lost, MiB/s", operations("{}_bw.64K.poll-loss1"), 1),
    ("the same with 3 %", operations("{}_bw.64K.poll-loss3"), 1),
    ("99th percentile of the latency of 64 bytes beside a stream of 1 MiB, and beside 1000 busy queue pairs, µs",
     ["kernel-beside_p99.stream", "kernel-beside_p99.1000qps"], 1),
    ("connections by rdma_cm per second", ["cm_connects.1000"], 1),
)
HEAD = "| | rdma_rxe | rxe_rs | as between hosts | ratios |"
SHARES_HEAD = "| processes, µs per message | `{}` | goal | limit | rxe_rs | share of the limit | with an ICRC |"
GOALS_HEAD = "| goal, as a ratio to `rdma_rxe` if nothing else is said | wanted | worst, met | the same with an ICRC |"


def amount(value):
    return f"{value:,.0f}" if value >= 10000 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def ratio(value):
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"


def overview(data):
    """The lines of the table in README.md."""
    def median(point, driver):
        return data["results"][point][driver]["median"]
    rows = [HEAD, "|---" * 5 + "|"]
    for title, names, unit in LINES:
        cells = [" / ".join(amount(median(point, driver) / unit) for point in names) for driver in (BASE, PLAIN, ICRC)]
        ratios = [" / ".join(ratio(median(point, driver) / median(point, BASE)) for point in names) for driver in (PLAIN, ICRC)]
        rows.append(f"| {title} | {' | '.join(cells)} | {'; '.join(ratios)} |")
    return rows


def with_icrc(data):
    """The same results with those of the driver that computes all ICRCs in place of the other ones."""
    other = copy.deepcopy(data)
    for by_driver in other["results"].values():
        if ICRC in by_driver:
            by_driver[PLAIN] = by_driver[ICRC]
    return other


def state(data):
    """The lines of the table of goals in rxe_rs/PERFORMANCE.md."""
    def cell(goal, values, worst):
        shown = f"{values[worst]:.2f} (`{worst}`)"
        return shown if goal.wanted is None else f"{shown}, {sum(goals.met(goal, v) for v in values.values())} of {len(values)}"
    rows = [GOALS_HEAD, "|---" * 4 + "|"]
    for plain, icrc in zip(goals.judge(data), goals.judge(with_icrc(data))):
        goal = plain[0]
        wanted = "" if goal.wanted is None else f"{'≥' if goal.bound == '>=' else '≤'} {goal.wanted:g}"
        # Between two machines there is no other way.
        other = cell(*icrc) if any(ICRC in data["results"][point] for point in icrc[1]) else ""
        rows.append(f"| {goal.title} | {wanted} | {cell(*plain)} | {other} |")
    return rows


MODES = {"poll": "polled", "event": "events", "b": "both directions at once", f"q{goals.QPS}": f"{goals.QPS} queue pairs",
         f"l{goals.LIST}": f"lists of {goals.LIST}", "nouso": "without USO"}


def parts(point):
    """The operation, the kind of measurement, the size and the mode of a point."""
    operation, rest = point.split("_", 1)
    kind, size, mode = rest.split(".", 2)
    return operation, kind, size, mode


def readable(size):
    return f"{size[:-1]} {size[-1]}iB" if size[-1] in "KM" else f"{size} B"


def time(point, median):
    """µs per message."""
    _, kind, size, _ = parts(point)
    return {"lat": lambda: median, "rate": lambda: 1e6 / median, "bw": lambda: points.SIZES[size] / median / 1.048576}[kind]()


def call(data, point):
    """What system calls take of a message of a process at least, in µs. If messages follow each other, that is its share of a call that does
    nothing. Of a latency it is less, because the message may arrive before the call that posts it returns: what consumers in the kernel do
    not have. With completion events the process arms the CQ by another call."""
    def of(name):
        return data["results"][name][PLAIN]["median"]
    _, kind, _, mode = parts(point)
    modes = mode.split("-")
    if kind != "lat":
        return of("doorbell_lat.empty") / (goals.LIST if f"l{goals.LIST}" in modes else 1)
    posted = of("send_lat.2.poll") - of("kernel-pingpong_lat.8.d1")
    return posted + (of("arm_lat.cq") if "event" in modes else 0)


def limit(data, point):
    """What one message of a process takes at least, in µs: its calls, and, of the sizes for which it was measured, what the limit takes for
    the payload. Both processors send if messages pass in both directions."""
    _, _, size, mode = parts(point)
    least = call(data, point)
    plain = f"send_bw.{size}.poll"
    if "limit" in data["results"].get(plain, {}):
        least += time(plain, data["results"][plain]["limit"]["median"])
    return least / (2 if "b" in mode.split("-") else 1)


def shares(data, base):
    """The lines of the table of goals that processes miss beside a driver in rxe_rs/PERFORMANCE.md, in the order of the goals. If a point has
    several, that is the last one, which wants most."""
    missed = {}
    for goal, values, _ in goals.judge(data):
        if goal.base != base or goal.wanted is None:
            continue
        for point, value in values.items():
            if not goals.met(goal, value) and re.fullmatch(r"(send|write|read)_(bw|rate|lat)\.\w+\.(poll|event)(-\w+)?", point):
                missed[point] = goal
    groups = {}
    for point, goal in missed.items():
        groups.setdefault((goal, *parts(point)[1:]), []).append(point)
    rows = [SHARES_HEAD.format(base), "|---" * 7 + "|"]
    for (goal, kind, size, mode), group in groups.items():
        names = ", ".join(parts(point)[0].upper() for point in group)
        least = limit(data, group[0])
        theirs, plain, icrc = ([time(point, data["results"][point][driver]["median"]) for point in group] for driver in (base, PLAIN, ICRC))
        factor = goal.wanted if goal.bound == "<=" else 1 / goal.wanted
        title = f"{'latency of ' if kind == 'lat' else ''}{names}, {readable(size)}, {', '.join(MODES[word] for word in mode.split('-'))}"
        cells = [", ".join(f"{value:.1f}" for value in values) for values in (theirs, [factor * value for value in theirs], [least], plain)]
        cells += [", ".join(f"{least / value:.2f}" for value in values) for values in (plain, icrc)]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return rows


# The documents, the first line of the table in each, and what makes it.
PERFORMANCE = CLONE / "rxe_rs/PERFORMANCE.md"
TABLES = ((CLONE / "README.md", HEAD, overview), (PERFORMANCE, GOALS_HEAD, state),
          *((PERFORMANCE, SHARES_HEAD.format(base), functools.partial(shares, base=base)) for base in (BASE, "siw")))


def stored(data, folder):
    """The text that is stored of a run in a folder: a line for each point, and no path of the host."""
    def line(name, value):
        return f"{json.dumps(name)}: {json.dumps(value)}"
    notes = [note.replace(f"{folder}/", "") for note in data["notes"]]
    head = [line(name, value) for name, value in (data | {"notes": notes}).items() if name not in ("results", "distributions")]
    results = ",\n".join(line(point, by_driver) for point, by_driver in data["results"].items())
    return "{" + ",\n".join([*head, f'"results": {{\n{results}}}']) + "}\n"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("result")
    name = parser.parse_args().result
    try:
        data = report.result(name)
        made = [(path, head, table(data)) for path, head, table in TABLES]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    except KeyError as missing:
        parser.error(f"{name} is not of a run with all drivers and {ICRC}: it has no {missing.args[0]}")
    STORED.write_text(stored(data, Path(name).resolve().parent))
    for path, head, table in made:
        stored_table.write(path, head, table)


if __name__ == "__main__":
    main()
