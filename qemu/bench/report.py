#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The benchmark's report as text.

report.py BENCH.JSON    prints the tables of a kept result again
"""
import json
import statistics
import sys

# What the driver is to reach at 64 KiB, against rdma_rxe in the same run.
TARGETS = {"bw": ("at least", 2.0), "lat": ("at most", 0.5)}


def summarise(results):
    """{point: {driver: [values]}} with median, minimum and maximum; a driver without any value keeps its empty list."""
    summary = {}
    for point, by_driver in results.items():
        summary[point] = {}
        for driver, values in by_driver.items():
            good = [v for v in values if v is not None]
            entry = {"values": values}
            if good:
                entry |= {"median": statistics.median(good), "min": min(good), "max": max(good)}
            summary[point][driver] = entry
    return summary


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def cell(entry):
    if not entry:
        return ""
    if "median" not in entry:
        return "failed"
    return f"{number(entry['median'])} ({number(entry['min'])}-{number(entry['max'])})"


def peer_entry(data, point, driver):
    """A driver's entry for a point. TCP has one figure per size: it stands beside each operation, but not beside events."""
    if driver.removesuffix("+esp") == "tcp":
        operation, rest = point.split("_", 1)
        if not rest.endswith(".poll"):
            return None
        point = f"send_{rest}"
    return data["results"].get(point, {}).get(driver)


def ratio(data, point, driver, base):
    mine, theirs = peer_entry(data, point, driver), peer_entry(data, point, base)
    if not mine or not theirs or "median" not in mine or "median" not in theirs or not theirs["median"]:
        return None
    return mine["median"] / theirs["median"]


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for n, row in enumerate(rows):
        lines.append("  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]).rstrip())
        if n == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines) + "\n"


def text(data):
    """The tables, one for each kind of number; then the targets."""
    drivers = data["drivers"]
    subject = "rxe_rs" if "rxe_rs" in drivers else drivers[0]
    bases = [d for d in drivers if d != subject]
    out = [f"Linux {data['release']} ({data['machine']}), {data['rounds']} rounds, median (min-max), "
           f"{data['host']['cpus']} x {data['host']['cpu']}, revision {data['revision']}, {data['seconds']} s\n"]
    for kind, title in (("bw", "Bandwidth, MiB/s: more is better"),
                        ("lat", "Latency, us, typical (send, write, tcp: half a round trip): less is better"),
                        ("ns", "Consumers in the kernel, ns per operation by size and requests in flight: less is better"),
                        ("create", "Creation by consumers in the kernel, ns: less is better"),
                        ("destroy", "Destruction by consumers in the kernel, ns: less is better")):
        rows = [["", *drivers, *(f"{subject}/{b}" for b in bases)]]
        for point in data["results"]:
            operation, rest = point.split("_", 1)
            if not rest.startswith(kind + "."):
                continue
            _, size, mode = rest.split(".")
            ratios = [ratio(data, point, subject, b) for b in bases]
            name = operation if kind in ("create", "destroy") else f"{operation} {size} {mode}"
            rows.append([name, *(cell(peer_entry(data, point, d)) for d in drivers),
                         *("" if r is None else f"{r:.2f}" for r in ratios)])
        if len(rows) > 1:
            out.append(f"\n{title}\n{table(rows)}")
    if subject == "rxe_rs" and "rdma_rxe" in drivers:
        out.append("\nTargets at 64 KiB against rdma_rxe\n")
        for point in data["results"]:
            operation, rest = point.split("_", 1)
            kind, size, mode = rest.split(".")
            value = ratio(data, point, subject, "rdma_rxe")
            if size != "64K" or value is None or kind not in TARGETS:
                continue
            word, target = TARGETS[kind]
            met = value >= target if kind == "bw" else value <= target
            out.append(f"  {operation} {'bandwidth' if kind == 'bw' else 'latency'} {mode}: {value:.2f}, wanted {word} {target}: "
                       f"{'met' if met else 'MISSED'}\n")
    out += [f"note: {note}\n" for note in data["notes"]]
    return "".join(out)


if __name__ == "__main__":
    with open(sys.argv[1]) as kept:
        print(text(json.load(kept)), end="")
