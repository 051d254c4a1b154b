#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The report of the benchmark as text.

report.py BENCH.JSON [OLD.JSON]    prints the tables of a stored result, and compares it with an older one
"""
import argparse
import json
import math
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import goals  # noqa: E402
from points import KINDS, driver_of, kind_of  # noqa: E402

# A difference of medians below this is noise, even if the values of each result are closer together.
NOISE = 0.05
# The share of the host's processor time that other programs may use; with more the values are not reliable.
FOREIGN = 0.05
# Points of networks that lose or reorder packets.
LOSSY = re.compile("loss[1-9]|loss0[.]|reorder")


def summarise(results):
    """Turns {point: {driver: [values]}} into {point: {driver: entry}}: an entry has the values and, if there are any, their median, minimum
    and maximum."""
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
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}" if abs(value) >= 1 else f"{value:.3f}"


def cell(entry):
    if not entry:
        return ""
    if "median" not in entry:
        return "failed"
    if entry["min"] == entry["max"]:
        return number(entry["median"])
    return f"{number(entry['median'])} ({number(entry['min'])}-{number(entry['max'])})"


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for n, row in enumerate(rows):
        lines.append("  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]).rstrip())
        if n == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines) + "\n"


def label(point):
    operation, rest = point.split("_", 1)
    return " ".join([operation, *rest.split(".", 1)[1:]]).replace(".", " ", 1)


def kind_tables(data):
    """A table for each kind of point, with the ratios of the driver under test to the others."""
    drivers = data["drivers"]
    subject = goals.SUBJECT if goals.SUBJECT in drivers else drivers[0]
    bases = [d for d in drivers if d != subject]
    for kind, (title, more) in KINDS.items():
        rows = [["", *drivers, *(f"{subject}/{b}" for b in bases)]]
        for point in data["results"]:
            if kind_of(point) != kind:
                continue
            ratios = [goals.ratio(data, point, subject, b) for b in bases]
            rows.append([label(point), *(cell(goals.entry_of(data, point, d)) for d in drivers),
                         *("" if r is None else f"{r:.2f}" for r in ratios)])
        if len(rows) > 1:
            yield f"\n{title}: {'more' if more else 'less'} is better\n{table(rows)}"


def goal_table(data):
    rows = [["goal", "against", "wanted", "worst", "where", "points met"]]
    for goal, values, worst in goals.judge(data):
        against = goal.base if isinstance(goal.base, str) else "itself" if goal.base else ""
        if goal.wanted is None:
            rows.append([goal.title, against, "", f"{values[worst]:.2f}", label(worst), ""])
            continue
        count = sum(goals.met(goal, value) for value in values.values())
        verdict = "met" if count == len(values) else "MISSED"
        rows.append([goal.title, against, f"{goal.bound} {goal.wanted:g}", f"{values[worst]:.2f}", label(worst),
                     f"{count} of {len(values)} {verdict}"])
    if len(rows) == 1:
        return ""
    rows = [[row[0], *row[1:]] for row in rows]
    return f"\nGoals of {goals.SUBJECT}: ratios of medians\n{table(rows)}" + "".join(f"note: {note}\n" for note in goals.NOTES)


def load_lines(data):
    """The load of the host, with a warning for each turn in which other programs used more than FOREIGN of its processors."""
    turns = data.get("load", [])
    for turn in turns:
        if turn["foreign"] > FOREIGN:
            yield (f"WARNING: others used {turn['foreign']:.0%} of the host's processors in round {turn['round']}, {turn['driver']}: "
                   "its values are not reliable\n")
    if turns:
        averages = [f"{turn['before']:.1f}" for turn in turns] + [f"{turns[-1]['after']:.1f}"]
        yield f"host's load average before each turn and at the end: {' '.join(averages)}\n"


def text(data):
    """The whole report: tables, goals, load of the host, notes."""
    out = [f"Linux {data['release']} ({data['machine']}), {data['rounds']} rounds, median (min-max), "
           f"{data['host']['cpus']} x {data['host']['cpu']}, revision {data['revision']}, {data['seconds']} s\n"]
    out += kind_tables(data)
    if goals.SUBJECT in data["drivers"]:
        out.append(goal_table(data))
    out += load_lines(data)
    out += [f"note: {note}\n" for note in data["notes"]]
    return "".join(out)


def is_ours(variant):
    return driver_of(variant) == goals.SUBJECT


def drift(new, old):
    """The factor by which the host is faster than it was at the old result: the geometric mean over the points of the other drivers, without
    those with losses, which differ several times between runs. 1 if the results have none in common."""
    logs = []
    for point in new["results"].keys() & old["results"].keys():
        if kind_of(point) not in ("bw", "rate", "lat") or LOSSY.search(point):
            continue
        for driver in new["results"][point].keys() & old["results"][point].keys():
            mine, theirs = new["results"][point][driver], old["results"][point][driver]
            if not is_ours(driver) and mine.get("median") and theirs.get("median"):
                logs.append(math.log(goals.better(point, mine["median"], theirs["median"])))
    return math.exp(statistics.mean(logs)) if logs else 1.0


def differences(new, old):
    """(point, variant, factor) for each point of the driver under test, with each set of parameters, that is better or worse beyond noise:
    after correction for the drift of the host the ranges of values do not overlap, and the medians differ by more than NOISE. A factor below
    1 is a regression."""
    host = drift(new, old)
    for point, by_driver in new["results"].items():
        for variant in filter(is_ours, by_driver):
            mine, theirs = by_driver[variant], old["results"].get(point, {}).get(variant, {})
            if "median" not in mine or "median" not in theirs:
                continue
            # These do not depend on the speed of the host.
            speed = 1 if kind_of(point) in ("memory", "softirqs") else host
            factor = goals.better(point, mine["median"], theirs["median"]) / speed
            # All pairs of extremes, whose ratios include the lowest and the highest.
            pairs = [goals.better(point, a, b) / speed for a in (mine["min"], mine["max"]) for b in (theirs["min"], theirs["max"])]
            if max(pairs) < 1 and factor < 1 - NOISE or min(pairs) > 1 and factor > 1 + NOISE:
                yield point, variant, factor


def comparison(new, old):
    found = sorted(differences(new, old), key=lambda difference: difference[2])
    worse = [difference for difference in found if difference[2] < 1]
    out = [f"\nCompared with {old['revision']} of {old['date']}: by the other drivers the host is {drift(new, old):.2f} times as fast, for "
           f"which values are corrected. {len(worse)} points are worse, {len(found) - len(worse)} better beyond noise\n"]
    for point, variant, factor in found:
        mine, theirs = (data["results"][point][variant] for data in (new, old))
        name = label(point) if variant == goals.SUBJECT else f"{label(point)}, {variant}"
        out.append(f"  {'REGRESSION' if factor < 1 else 'better'} {name} ({kind_of(point)}): {cell(theirs)} -> {cell(mine)}, "
                   f"{factor:.2f} times as good\n")
    return "".join(out)


def result(name):
    """A stored result; for argparse."""
    try:
        data = json.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read the result {name}: {error}") from None
    if not isinstance(data, dict) or "results" not in data:
        raise argparse.ArgumentTypeError(f"{name} is no result of the benchmark (bench.json)")
    return data


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("new", type=result)
    parser.add_argument("old", type=result, nargs="?")
    options = parser.parse_args()
    print(text(options.new), end="")
    if options.old:
        print(comparison(options.new, options.old), end="")


if __name__ == "__main__":
    main()
