#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The table of programs in rxe_rs/FEATURES.md: which cases of `make test-apps` pass with rxe_rs, and which with rdma_rxe.

apps_table.py add LOG …     adds the verdicts in logs of qemu/run to out/apps/results.json; `make test-apps` does so for each of its steps
apps_table.py show          prints the table of the verdicts there
apps_table.py store         adds these verdicts to docs/apps.json, and writes the table in rxe_rs/FEATURES.md from that

Both files are {driver: {case: [verdict, release of the kernel, kind of machine, day]}}. The last verdict of a case counts. Only runs on a
stock kernel whose nodes all have the same driver are added.
"""
import fcntl
import json
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
sys.path.insert(0, str(HERE))
import stored_table  # noqa: E402
from vm import discovery  # noqa: E402

RESULTS = CLONE / "out/apps/results.json"
STORED = CLONE / "docs/apps.json"
DOCUMENT = CLONE / "rxe_rs/FEATURES.md"
DRIVERS = ("rxe_rs", "rdma_rxe")
# The rows: suites of ktests/suites, and files of ktests/vm.
SUITES = {
    "ucx": "", "mpi": "Open MPI", "mpich": "", "programs": "libfabric, fio, qperf, rsockets", "crates": "`ibverbs`, `sideway`", "mooncake": "", "ceph": "",
}
FILES = {
    "ulp": "the kernel's NVMe, NFS, iSER, SRP, RDS and 9P", "ucx_default": "UCX without settings, between two machines",
}
HEAD = "| suite | rxe_rs | rdma_rxe | what did not pass | kernel, machine, day |"
# So many cases are named; of more only their number is given.
NAMED = 6
HEADING = re.compile(r"# (?:netns|two), (\S+), Linux (\S+), (KVM|emulation|UML)$")
VERDICT = re.compile(r"(not ok|ok) \d+ (\S+)( # SKIP .*)?")


def cases(row):
    """The names of all cases of a row. That a suite lists all its cases is none of them."""
    tests = discovery.Suite(row).tests(None) if row in SUITES else [test for test in discovery.all_tests() if test.name.startswith(f"{row}.")]
    return [test.name for test in tests if not test.name.endswith(".all_listed")]


def verdicts(text, day):
    """The verdicts in a log, as in the files; none if it is not of a run of one of the drivers on a stock kernel. A case that was not run,
    because its machine had crashed, has failed."""
    run, found = None, {}
    for line in text.splitlines():
        if heading := HEADING.match(line):
            run = heading
        elif run and run[1] in DRIVERS and (match := VERDICT.match(line)) and match[2].split(".")[0] in SUITES | FILES:
            verdict = "fail" if match[1] == "not ok" else "skip" if match[3] else "pass"
            found.setdefault(run[1], {})[match[2]] = [verdict, run[2], run[3], day]
    return found


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def merged(known, found):
    """The verdicts in `found`, and those in `known` of other cases that still exist, in the order of the rows."""
    names = [name for row in SUITES | FILES for name in cases(row)]
    both = {driver: known.get(driver, {}) | found.get(driver, {}) for driver in DRIVERS}
    return {driver: {name: both[driver][name] for name in names if name in both[driver]} for driver in DRIVERS}


def text_of(data):
    """The text of a file: a line for each case."""
    def lines(by_name):
        return ",\n".join(f"  {json.dumps(name)}: {json.dumps(verdict)}" for name, verdict in by_name.items())
    return "{\n" + ",\n".join(f" {json.dumps(driver)}: {{\n{lines(by_name)}\n }}" for driver, by_name in data.items()) + "\n}\n"


def add(logs):
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    # Steps may end at the same time.
    with open(RESULTS.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data = read(RESULTS)
        for log in map(Path, logs):
            data = merged(data, verdicts(log.read_text(errors="replace"), time.strftime("%Y-%m-%d", time.gmtime(log.stat().st_mtime))))
        RESULTS.with_suffix(".tmp").write_text(text_of(data))
        RESULTS.with_suffix(".tmp").rename(RESULTS)


def cell(names, by_name):
    """How many of the cases passed with a driver."""
    measured = [by_name[name][0] for name in names if name in by_name]
    if not measured:
        return "not measured"
    missing = len(names) - len(measured)
    return f"{measured.count('pass')} of {len(measured)}" + (f", {missing} not measured" if missing else "")


def remainder(names, by_name):
    """Which of the cases did not pass with a driver, in words; nothing if all did."""
    def listed(chosen):
        return ", ".join(f"`{name.split('.', 1)[1]}`" for name in chosen)
    bad = [name for name in names if name in by_name and by_name[name][0] != "pass"]
    good = [name for name in names if name in by_name and by_name[name][0] == "pass"]
    if not bad or len(bad) <= NAMED and good:
        return listed(bad)
    if not good:
        return "all"
    return f"all but {listed(good)}" if len(good) <= NAMED else f"{len(bad)} cases"


def circumstances(names, by_name):
    """On which kernels and machines the cases ran, and when."""
    runs = {}
    for name in names:
        if name in by_name:
            _, release, kind, day = by_name[name]
            runs.setdefault((release, kind), set()).add(day)
    return "; ".join(f"{release}, {kind}, {' to '.join(sorted({min(days), max(days)}))}" for (release, kind), days in sorted(runs.items()))


def by_driver(texts):
    """A cell with what is different for the drivers."""
    return "; ".join(f"`{driver}`: {text}" for driver, text in texts.items() if text)


def table(data):
    """The lines of the table."""
    rows = [HEAD, "|---" * 5 + "|"]
    for row, what in (SUITES | FILES).items():
        names = cases(row)
        of = {driver: data.get(driver, {}) for driver in DRIVERS}
        when = {driver: circumstances(names, of[driver]) for driver in DRIVERS}
        cells = [f"`{row}`" + (f" ({what})" if what else ""), *(cell(names, of[driver]) for driver in DRIVERS),
                 by_driver({driver: remainder(names, of[driver]) for driver in DRIVERS}),
                 when[DRIVERS[0]] if len(set(when.values())) == 1 else by_driver(when)]
        rows.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return rows


def store():
    data = merged(read(STORED), read(RESULTS))
    stored_table.write(DOCUMENT, HEAD, table(data))
    STORED.write_text(text_of(data))


def main(command="", *arguments):
    if command == "add" and arguments:
        add(arguments)
    elif command == "show" and not arguments:
        print("\n".join(table(merged({}, read(RESULTS)))))
    elif command == "store" and not arguments:
        store()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
