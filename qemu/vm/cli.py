# SPDX-License-Identifier: GPL-2.0
"""The command line of qemu/run: selects tests, machines and modules, and runs the tests or one script."""
import argparse
import fcntl
import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernel
import kernel_record
from vm.discovery import CLONE, TESTS, Malformed, Suite, all_tests
from vm.session import QEMU, Session, plan_of
from vm.verdict import LATE, Report, kernel_complaints, late_name, missing_logs, serial_complaints, skip_reason, tail_of, verdict, wire_complaints

LAST_TESTS = "leaks.*"
# Kernel modules in ktests that tests may need.
TEST_MODULES = ("kverbs", "kmemory", "ksegment")
# If a test crashes its machine, the remaining ones run in a new machine. This limits the number of machines.
MAX_BOOTS = 8
# Machines that end, or hang, before their first test could begin are started again, at most so often in a row. No module under test has
# been loaded in them: the kernel has found no timer, for example, because the host did not run the emulator meanwhile.
MAX_FAILED_BOOTS = 2
# What failed and is no test, by its names in the summary.
LATE_NAMES = [late_name(number) for number in range(1, MAX_BOOTS + 1)]


def tests_for(options):
    try:
        return Suite(options.suite).tests(options.kernel) if options.suite else all_tests()
    except Malformed as problem:
        sys.exit(f"error: {problem}")


def build_test_module(name, options, boot):
    """Builds the test module ktests/NAME for the kernel that is booted; returns the path of the .ko file."""
    flag = ("-d" if options.debug else "-u") if options.uml else "-l" if options.debug else None
    folder = CLONE / "out" / name / f"{boot['SERIES']}{flag or ''}"
    folder.mkdir(parents=True, exist_ok=True)
    # Runs that start at the same time share the folder.
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([QEMU / "build-module.sh", *([flag] if flag else []), "-o", folder, "-k", boot["SERIES"],
                               CLONE / "ktests" / name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}error: cannot build ktests/{name}; see the messages above")
    return str(folder / f"{name}.ko")


def build_packages(options, out):
    """Builds the Debian packages of the module under test and of the tools; returns their folder, or None if another driver is tested."""
    ko = next((ko for ko in options.ko if Path(ko).name == "rxe_rs.ko"), None)
    if not ko:
        return None
    done = subprocess.run([QEMU / "build-deb.sh", "-m", ko, "-o", out / "packages"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}error: cannot build the packages; see the messages above")
    return out / "packages"


def build_command(options):
    """The command that builds the module for the kernel that is to be booted."""
    kind = {(True, False): " -u", (True, True): " -d", (False, True): " -l"}.get((options.uml, options.debug), "")
    return f"qemu/build-module.sh{kind}{f' -k {options.kernel}' if options.kernel else ''}"


def nodes(options):
    return "ab" if options.topology == "two" else "a"


def unknown(tests, options):
    """The patterns of --test that match no test of the topology, probably because of a typing error."""
    names = [t.name for t in tests if options.topology in t.topologies]
    return [p for p in options.test or () if not fnmatch.filter(names, p)]


def choose(tests, options):
    """The tests that the options select, in their order; on a debug kernel the leak test is last, whether it is selected or not."""
    chosen = [t for t in tests if options.topology in t.topologies
              and any(fnmatch.fnmatch(t.name, p) for p in options.test or ["*"])
              and not any(fnmatch.fnmatch(t.name, p) for p in options.without)]
    for test in chosen if options.limit else ():
        test.seconds = options.limit
    if options.debug and chosen:
        # Leaks of all other tests are found at the end.
        last = [t for t in all_tests() if fnmatch.fnmatch(t.name, LAST_TESTS)]
        chosen = [t for t in chosen if not fnmatch.fnmatch(t.name, LAST_TESTS)] + last
    return chosen


def run_tests(options, boot, kvm, out):
    tests = tests_for(options)
    if patterns := unknown(tests, options):
        elsewhere = [p for p in patterns if fnmatch.filter([t.name for t in tests], p)]
        if missing := [p for p in patterns if p not in elsewhere]:
            print(f"error: no test of that name: {' '.join(missing)}; qemu/run --list shows all tests", file=sys.stderr)
        if elsewhere:
            print(f"error: only with --topology {'netns' if options.topology == 'two' else 'two'}: {' '.join(elsewhere)}", file=sys.stderr)
        return 2
    chosen = choose(tests, options)
    if not chosen:
        print("error: no test is selected; look at --test, --without and --topology", file=sys.stderr)
        return 2
    if any("tools" in t.needs for t in chosen) and subprocess.run([QEMU / "build-tools.sh", "-a", kernel.architecture(boot["SERIES"])]).returncode:
        print("error: cannot build the tools; see the messages above", file=sys.stderr)
        return 2
    if any("crates" in t.needs for t in chosen) and subprocess.run([QEMU / "build-crates.py"]).returncode:
        print("error: cannot build the crates; see the messages above", file=sys.stderr)
        return 2
    if any("blktests" in t.needs for t in chosen) and not (CLONE / "out/blktests/check").exists():
        print("error: there is no copy of blktests in out/blktests; make test-suites SUITES=blktests BLKTESTS=FOLDER makes one", file=sys.stderr)
        return 2
    for name in TEST_MODULES:
        if any(name in t.needs for t in chosen):
            options.ko.append(build_test_module(name, options, boot))
    if any("packages" in t.needs for t in chosen):
        options.packages = build_packages(options, out)
    drivers = options.driver + (f" against {options.driver_b}" if options.driver_b else "")
    kind = ("UML" if options.uml else "KVM" if kvm else "emulation") + (", debug kernel" if options.debug else "")
    report = Report(chosen, out, f"{options.topology}, {drivers}, Linux {boot['RELEASE']}, {kind}")
    remaining = list(chosen)
    failed_boots = 0
    for number in range(1, MAX_BOOTS + 1):
        session = Session(options, boot, kvm, out / f"boot-{number}")
        more = run_boot(session, remaining, report, failed_boots == MAX_FAILED_BOOTS)
        failed_boots = 0 if session.booted() else failed_boots + 1
        kvm = kvm_after(session, kvm)
        if not more or not remaining:
            break
    return report.end()


def kvm_after(session, kvm):
    """Whether to use KVM behind this boot. A machine of User Mode Linux does not use it."""
    import machine
    return kvm if session.booted() or not kvm or session.options.uml else machine.distrust_kvm()


def run_boot(session, remaining, report, last):
    """Boots machines and runs the remaining tests until all are done or a machine crashes; removes those that have a verdict from the list.
    `last`: whether this is the last trial of a boot. Returns False if there is no use in another boot."""
    session.prepare(plan_of(remaining))
    by_name = {test.name: test for test in remaining}
    running = []

    def on_begin(name):
        running[:] = [name]

    def on_end(name, status, seconds):
        running.clear()
        complaints = kernel_complaints(session.results, name) + wire_complaints(session.results, name)
        complaints += missing_logs(session.results, name, nodes(session.options))
        remaining.remove(by_name[name])
        found = verdict(status, complaints, skip_reason(session.results / f"{name}.log"))
        report.add(name, found, seconds, session, complaints[:12])

    try:
        session.start()
        ended = session.watch({test.name: test.seconds for test in remaining}, on_begin, on_end)
        for m in session.machines:
            if ended and m.alive():
                m.wait(2)
        if not ended:
            report.add_late(session)
            if remaining:
                print(f"# {len(remaining)} tests of the plan did not run", flush=True)
            return not remaining
        why = [ended, *serial_complaints(session.machines)[:12]]
        if running:
            # The machine crashed during this test, which fails. The remaining ones run in a new machine.
            remaining.remove(by_name[running[0]])
            report.add(running[0], "fail", 0, session, why)
            return True
        if session.booted():
            # It crashed between two tests, or after the last one.
            report.add_crash(session, why)
            return True
        tail = [line for m in session.machines for path in (m.serial, session.folder / f"qemu-{m.node}.log") for line in tail_of(path, 15)]
        report.add_failed_boot(session, tail + why, last)
        return not last
    finally:
        session.stop()


def rerun_with_capture(options, boot, kvm, out):
    """Runs up to three failed tests once more with a packet capture, so that their packets can be examined."""
    summary = json.loads((out / "summary.json").read_text())
    failed = [name for name, found in summary.items() if found == "fail" and name not in LATE_NAMES]
    tests = choose(tests_for(options), options)
    for name in failed[:3]:
        test = next(t for t in tests if t.name == name)
        session = Session(options, boot, kvm, out / "again")
        session.prepare(plan_of([test]))
        with open(session.share / "env", "a") as env:
            env.write("RXE_CAPTURE=1\n")
        try:
            session.start()
            session.watch({name: test.seconds}, lambda n: None, lambda *a: None)
        finally:
            session.stop()
        for path in session.results.glob("*.pcap"):
            # A test that did not run the first time has left nothing.
            (out / "failed" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / "failed" / name)
            print(f"# capture of a second run of {name}: {out / 'failed' / name / path.name}", flush=True)


def run_script(options, boot, kvm, out):
    """Runs a script in machines, which are started again if they do not boot. Returns its exit status; 1 if it has not ended, or the kernel
    log has an error."""
    for number in range(MAX_FAILED_BOOTS + 1):
        session = Session(options, boot, kvm, out / "boot-1")
        try:
            status = run_script_once(options, session)
        except KeyboardInterrupt:
            print("error: interrupted", file=sys.stderr)
            return 1
        if session.booted() or number == MAX_FAILED_BOOTS:
            return status
        print("==> the machine is started again, because it failed before the script could begin", file=sys.stderr, flush=True)
        kvm = kvm_after(session, kvm)


def run_script_once(options, session):
    script, *args = options.script
    session.prepare([("script", options.seconds, "/share/script", "")], args)
    shutil.copy(script, session.share / "script")
    outcome = []
    try:
        session.start()
        ended = session.watch({"script": options.seconds}, lambda n: None, lambda n, s, t: outcome.append(s), live=True)
    finally:
        session.stop()
    status = outcome[0] if outcome else 1
    bad = serial_complaints(session.machines)
    if outcome:
        bad = kernel_complaints(session.results, "script") + missing_logs(session.results, "script", nodes(options))
        bad += kernel_complaints(session.results, LATE)
    if ended:
        print(f"error: {ended}; serial log: {session.machines[0].serial if session.machines else session.folder}", file=sys.stderr)
        for m in session.machines:
            for line in m.serial_text().splitlines()[-40:]:
                print(f"  {m.node}| {line}", file=sys.stderr)
    for line in bad:
        print(f"kernel log: {line}", file=sys.stderr)
    return 1 if bad or (ended and not outcome) else status


def note(options, boot, verdicts):
    """Adds verdicts to the record that `make kernels` shows, if they are of the module on a stock kernel."""
    if options.driver == "rxe_rs" and not options.uml and not options.debug:
        others = [name for name in (options.driver_b, options.kernel_b) if name]
        kernel_record.add(boot["SERIES"], options.topology + (f" ({', '.join(others)})" if others else ""), verdicts)


def lacks_driver(options, boot):
    """The release of the kernel that is to run a rdma_rxe but does not have it, or None."""
    for driver, its in ((options.driver, boot), (options.driver_b or options.driver, boot.get("B", boot))):
        if driver == "rdma_rxe" and not kernel.has(its["TREE"], "RDMA_RXE"):
            return its["RELEASE"]
    return None


def main(usage):
    if not os.environ.get("RXE_IN_ROOT"):
        os.execv(QEMU / "in-root.sh", [str(QEMU / "in-root.sh"), str(QEMU / "run"), *sys.argv[1:]])
    parser = argparse.ArgumentParser(usage=usage)
    parser.add_argument("--ko", action="append", default=[])
    parser.add_argument("--topology", choices=("netns", "two"), default="netns")
    parser.add_argument("--driver", default="rxe_rs")
    parser.add_argument("--driver-b")
    parser.add_argument("--kernel")
    parser.add_argument("--kernel-b")
    parser.add_argument("--ko-b", action="append", default=[])
    parser.add_argument("--nic", default="virtio-net-pci")
    parser.add_argument("--numa", type=int, default=1)
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--cpu")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--append", default="")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out")
    parser.add_argument("--uml", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--test", nargs="+")
    parser.add_argument("--without", nargs="+", default=[])
    parser.add_argument("--suite")
    parser.add_argument("script", nargs="*")
    options = parser.parse_args()
    options.packages = None
    if options.list:
        for test in tests_for(options):
            print(f"{test.name:40} {' '.join(test.topologies):10} {test.seconds} s")
        return 0
    for ko in options.ko + options.ko_b:
        if not Path(ko).is_file():
            sys.exit(f"error: there is no module {ko}; build it: {build_command(options)}")
    if not options.test and not options.script and not options.suite:
        parser.error("nothing to run: give --test, --suite or a script")
    if options.script and not Path(options.script[0]).is_file():
        parser.error(f"there is no script {options.script[0]} in the toolchain root, which has the clone, the cache folder and /tmp")
    if options.numa < 1:
        parser.error("--numa: a machine has at least one node")
    if options.numa > 1 and options.topology != "two":
        parser.error("--numa needs two machines: --topology two")
    import image
    import machine
    suite = Suite(options.suite) if options.suite else None
    debian, more = suite and suite.debian or image.DEBIAN, suite.packages if suite else ()
    container = suite.container if suite else None
    if options.uml:
        from uml import machine as uml_machine
        if options.cpu:
            parser.error("--cpu is for QEMU: not with --uml")
        if options.kernel_b or options.numa > 1:
            parser.error("--kernel-b and --numa are for QEMU: not with --uml")
        boot = uml_machine.ensure(options.kernel, debian, options.debug, more)
        kvm, why = True, None
    else:
        boot = image.ensure(options.kernel, debian, lockdep=options.debug, more=more, container=container)
        kvm, why = (False, "--cpu is given") if options.cpu else machine.probe_kvm(boot)
    if options.kernel_b:
        if options.topology != "two":
            parser.error("--kernel-b needs two machines: --topology two")
        if options.cpu:
            parser.error("--cpu is for machines of one architecture: not with --kernel-b")
        boot["B"] = image.ensure(options.kernel_b)
    options.kernel = boot["SERIES"]
    if options.numa > 1 and any(kernel.architecture(b["SERIES"]) != "amd64" for b in (boot, boot.get("B", boot))):
        parser.error("--numa needs kernels for amd64")
    if release := lacks_driver(options, boot):
        sys.exit(f"error: Linux {release} has no rdma_rxe; choose another kernel or driver")
    how = "using User Mode Linux" if options.uml else f"{'using KVM' if kvm else 'emulating (slow)'}: {why}"
    print(f"==> {how}", file=sys.stderr, flush=True)
    label = "-".join(filter(None, (options.topology, options.driver, options.driver_b, options.kernel_b)))
    of_tests = options.test or options.suite
    label += f"-{options.suite}" if options.suite else ""
    label += ("-debug" if options.uml else "-lockdep") if options.debug else ""
    default = f"out/vm/{boot['SERIES']}-{label}" if of_tests else f"out/vm/script-{machine.TOKEN}"
    out = Path(options.out).resolve() if options.out else CLONE / default
    kernel.check_results(out, ".lock")
    out.mkdir(parents=True, exist_ok=True)
    lock = open(out / ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Another run uses the folder.
        out = out.with_name(f"{out.name}-{machine.TOKEN}")
        out.mkdir()
    for old in out.iterdir():
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
    if not of_tests and not options.out:
        for old in sorted((CLONE / "out/vm").glob("script-*"), key=lambda p: p.stat().st_mtime)[:-10]:
            shutil.rmtree(old, ignore_errors=True)
    if of_tests:
        status = run_tests(options, boot, kvm, out)
        if status in (0, 1):
            note(options, boot, {**dict.fromkeys(LATE_NAMES), **json.loads((out / "summary.json").read_text())})
        if status == 1:
            rerun_with_capture(options, boot, kvm, out)
        return status
    status = run_script(options, boot, kvm, out)
    script = Path(options.script[0]).resolve()
    if script.parent == TESTS:
        note(options, boot, {script.stem: "fail" if status else "pass"})
    return status
