# SPDX-License-Identifier: GPL-2.0
"""Tests of vm/cli.py and vm/verdict.py: the selection of tests, their verdicts and the report."""
import contextlib
import io
import json
import shutil
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import kernel
import machine
from vm import cli, discovery, verdict

BOOT = {"RELEASE": "7.3.4", "SERIES": "7.3"}


def options(**said):
    given = dict(topology="netns", test=None, without=[], debug=False, suite=None, kernel=None, driver="rxe_rs", driver_b=None, uml=False, ko=[],
                 limit=None)
    return types.SimpleNamespace(**given | said)


def tests_of(text, name="sample"):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.test"
        path.write_text(text)
        return discovery.tests_of(path)


class Module(unittest.TestCase):
    def test_command_that_builds_it(self):
        for said, command in (({}, "qemu/build-module.sh"), ({"kernel": "7.2"}, "qemu/build-module.sh -k 7.2"),
                              ({"kernel": "7.2", "uml": True}, "qemu/build-module.sh -u -k 7.2"), ({"uml": True, "debug": True}, "qemu/build-module.sh -d"),
                              ({"debug": True}, "qemu/build-module.sh -l")):
            self.assertEqual(cli.build_command(options(**said)), command)

    def test_kernels_without_the_other_driver(self):
        with tempfile.TemporaryDirectory() as folder:
            boots = {}
            for name, text in (("cloud", "# CONFIG_RDMA_RXE is not set\n"), ("common", "CONFIG_RDMA_RXE=m\n")):
                boots[name] = {"TREE": Path(folder) / name, "RELEASE": name}
                boots[name]["TREE"].mkdir()
                (boots[name]["TREE"] / ".config").write_text(text)

            def lacking(boot):
                return [cli.lacks_driver(options(driver=a, driver_b=b), boot)
                        for a, b in (("rxe_rs", None), ("rdma_rxe", None), ("rxe_rs", "rdma_rxe"))]
            cloud, common = boots["cloud"], boots["common"]
            self.assertEqual(lacking(cloud), [None, "cloud", "cloud"])
            self.assertEqual(lacking(common), [None, None, None])
            # Two machines with different kernels.
            self.assertEqual(lacking({**cloud, "B": common}), [None, "cloud", None])
            self.assertEqual(lacking({**common, "B": cloud}), [None, "cloud", "cloud"])


class Results(unittest.TestCase):
    """The folder of --out, in which the results of the run before are removed."""

    def refused(self, folder, **options):
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                kernel.check_results(folder, ".lock", **options)
        except SystemExit:
            return said.getvalue()
        return None

    def test_what_is_of_others_is_not_removed(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(kernel, "CACHE", Path(name)):
            folder = kernel.CACHE
            self.assertIsNone(self.refused(folder / "new", files=True))
            self.assertIsNone(self.refused(folder, files=True))
            (folder / "letter").touch()
            self.assertIsNone(self.refused(folder))
            self.assertIn("such as letter;", self.refused(folder, files=True))
            (folder / "photos").mkdir()
            self.assertIn("such as photos;", self.refused(folder))
            (folder / ".lock").touch()
            self.assertIsNone(self.refused(folder, files=True))
        self.assertIn("has files of others", self.refused(kernel.CLONE))

    def test_folders_of_the_clone(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(kernel, "CLONE", Path(name)):
            (kernel.CLONE / "out/vm/run/boot-1").mkdir(parents=True)
            self.assertIsNone(self.refused(kernel.CLONE / "out/vm/run"))
            self.assertIn("such as vm;", self.refused(kernel.CLONE / "out"))

    def test_places_that_only_the_toolchain_root_has(self):
        self.assertIn("toolchain root", self.refused(Path("/home/me/results")))


class Refused(unittest.TestCase):
    def refusal(self, *arguments):
        """The last line of what qemu/run prints when it refuses arguments; nothing is prepared or started before."""
        said = io.StringIO()
        with mock.patch.dict("os.environ", RXE_IN_ROOT="1"), mock.patch("sys.argv", ["run", *arguments]), contextlib.redirect_stderr(said), \
                mock.patch("image.ensure", side_effect=AssertionError), self.assertRaises(SystemExit) as end:
            cli.main("usage")
        self.assertEqual(end.exception.code, 2)
        return said.getvalue().splitlines()[-1]

    def test_nothing_to_run(self):
        self.assertIn("nothing to run: give --test, --suite or a script", self.refusal("--topology", "two"))

    def test_no_script(self):
        self.assertIn("there is no script /home/me/script.sh in the toolchain root", self.refusal("--", "/home/me/script.sh"))

    def test_numa_nodes(self):
        for more in ((), ("--topology", "netns"), ("--uml",)):
            self.assertIn("--numa needs two machines: --topology two", self.refusal("--numa", "2", "--test", "x.*", *more))
        self.assertIn("--numa: a machine has at least one node", self.refusal("--numa", "0", "--topology", "two", "--test", "x.*"))

    def test_processors(self):
        for more, why in ((("--uml",), "--cpu is for QEMU: not with --uml"),
                          (("--topology", "two", "--kernel-b", "7.3-arm64"), "--cpu is for machines of one architecture")):
            said = io.StringIO()
            with mock.patch.dict("os.environ", RXE_IN_ROOT="1"), contextlib.redirect_stderr(said), \
                    mock.patch("sys.argv", ["run", "--cpu", "cortex-a72", "--test", "x.*", *more]), \
                    mock.patch("image.ensure", return_value={"SERIES": "7.3"}), self.assertRaises(SystemExit):
                cli.main("usage")
            self.assertIn(why, said.getvalue())

    def test_numa_nodes_of_another_architecture(self):
        for boot in ({"SERIES": "7.3-arm64"}, {"SERIES": "7.3", "B": {"SERIES": "7.3-arm64"}}):
            said = io.StringIO()
            with mock.patch.dict("os.environ", RXE_IN_ROOT="1", RXE_ACCEL="tcg"), contextlib.redirect_stderr(said), \
                    mock.patch("sys.argv", ["run", "--numa", "2", "--topology", "two", "--test", "x.*"]), \
                    mock.patch("image.ensure", return_value=boot), self.assertRaises(SystemExit):
                cli.main("usage")
            self.assertIn("--numa needs kernels for amd64", said.getvalue())


class Chosen(unittest.TestCase):
    TESTS = tests_of("test_one() { :; }\ntest_other() { :; }\n# topology: netns\ntest_near() { :; }\n# topology: two\ntest_far() { :; }\n")
    TESTS += tests_of("test_one() { :; }\n", "samples")

    def chosen(self, **said):
        return [t.name for t in cli.choose(self.TESTS, options(**said))]

    def test_patterns_select(self):
        for patterns, names in ((["sample.one"], ["sample.one"]), (["sample.*"], ["sample.one", "sample.other", "sample.near"]),
                                (["*.one"], ["sample.one", "samples.one"]), (["*.o*r", "samples.*"], ["sample.other", "samples.one"]),
                                # In the order of the files, each test once.
                                (["samples.*", "*.one", "*"], ["sample.one", "sample.other", "sample.near", "samples.one"]),
                                (["sample"], []), (["one"], []), (["sample.on"], []), (["SAMPLE.one"], []), (["sample.far"], [])):
            with self.subTest(patterns=patterns):
                self.assertEqual(self.chosen(test=patterns), names)

    def test_without_leaves_out(self):
        self.assertEqual(self.chosen(without=["*.o*"]), ["sample.near"])
        self.assertEqual(self.chosen(test=["sample.*"], without=["*.one", "*.near", "nothing.*"]), ["sample.other"])
        self.assertEqual(self.chosen(test=["sample.one"], without=["sample.one"]), [])

    def test_topologies(self):
        self.assertEqual(self.chosen(topology="two"), ["sample.one", "sample.other", "sample.far", "samples.one"])

    def test_leaks_come_last_on_a_debug_kernel(self):
        leaks = tests_of("test_memory() { :; }\n", "leaks")
        with mock.patch.object(cli, "all_tests", lambda: leaks + self.TESTS):
            found = [t.name for t in cli.choose(leaks + self.TESTS, options(debug=True))]
            self.assertEqual(found, ["sample.one", "sample.other", "sample.near", "samples.one", "leaks.memory"])
            self.assertEqual(self.chosen(test=["*.near"], debug=True), ["sample.near", "leaks.memory"])
            self.assertEqual(self.chosen(test=["nothing"], debug=True), [])

    def test_failed_leaks_are_captured(self):
        """They are no tests of a suite, although they run behind its tests on a debug kernel."""
        sessions = []

        class Again(Machine):
            def prepare(self, plan):
                super().prepare(plan)
                self.share = self.results
                sessions.append(self)

            def watch(self, *_):
                (self.results / f"{self.plan[0]}.pcap").write_text("packets")

        leaks = tests_of("test_memory() { :; }\n", "leaks")
        with mock.patch.object(cli, "all_tests", lambda: leaks), mock.patch.object(cli, "tests_for", lambda _: self.TESTS), \
                mock.patch.object(cli, "Session", Again), tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            out = Path(folder)
            (out / "summary.json").write_text(json.dumps({"sample.one": "pass", "leaks.memory": "fail"}))
            cli.rerun_with_capture(options(debug=True, suite="other"), BOOT, True, out)
            self.assertTrue((out / "failed/leaks.memory/leaks.memory.pcap").exists())
        self.assertEqual([session.plan for session in sessions], [["leaks.memory"]])

    def test_a_limit_is_for_all(self):
        tests = tests_of("test_one() { :; }\n# timeout: 5\ntest_two() { :; }\n")
        self.assertEqual([t.seconds for t in cli.choose(tests, options())], [60, 5])
        self.assertEqual([t.seconds for t in cli.choose(tests, options(limit=900))], [900, 900])


class Machine:
    """A fake session. Each test has the result in `happens`: exit status, output, kernel log (None: it was not stored); without a status the
    machine ends. It also ends behind the tests `last`, and while it boots if the number of the boot is in `dead`."""
    happens = {}
    boots = []
    with_kvm = []
    late = ""
    last = ()
    dead = ()
    counters = ""

    def __init__(self, options, _boot, kvm, folder):
        self.options, self.kvm = options, kvm
        self.folder, self.share, self.results = folder, folder, folder / "results"
        self.machines = [types.SimpleNamespace(node="a", serial=folder / "serial-a.log", alive=lambda: False, serial_text=lambda: "")]

    def prepare(self, plan, script_args=()):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.results.mkdir(parents=True)
        self.plan = [name for name, *_ in plan]
        self.boots.append(self.plan)
        self.with_kvm.append(self.kvm)

    def start(self):
        self.machines[0].serial.write_text("guest-init: no root file system\n")

    def stop(self):
        pass

    def booted(self):
        return len(self.boots) not in self.dead

    def watch(self, limits, on_begin, on_end, live=None):
        if not self.booted():
            return "the machine ended unexpectedly"
        for name in self.plan:
            on_begin(name)
            status, said, kernel = self.happens[name]
            (self.results / f"{name}.log").write_text(said)
            (self.results / f"{name}.counters").write_text(self.counters)
            for node in cli.nodes(self.options) if kernel is not None else ():
                (self.results / f"{name}.dmesg-{node}").write_text(f"[ 5.0] rxe-test: begin {name}\n{kernel}")
            if status is None:
                return "the machine ended unexpectedly"
            on_end(name, status, 0.5)
            if name in self.last:
                return "the machine ended unexpectedly"
        (self.results / "after.dmesg-a").write_text(self.late)
        return None


class Verdicts(unittest.TestCase):
    GOOD, BAD = "[ 5.1] rxe_rs: loaded\n", "[ 5.1] kernel BUG at net/core/skbuff.c:200!\n"

    def run_tests(self, happens, **said):
        """Runs tests with these results; returns the exit status, the verdict of each test and the output."""
        tests = tests_of("".join(f"test_{name}() {{ :; }}\n" for name in happens))
        for name in ("needs", "topologies"):
            if name in said:
                setattr(tests[0], name, said.pop(name))
        printed = io.StringIO()
        Machine.happens = {f"sample.{name}": what for name, what in happens.items()}
        Machine.boots, Machine.with_kvm = [], []
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(cli, "Session", Machine), \
                mock.patch.object(machine, "distrust_kvm", return_value=False) as self.distrusted, \
                mock.patch.object(cli, "all_tests", lambda: tests), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = cli.run_tests(options(**said), BOOT, True, Path(folder))
            summary = Path(folder) / "summary.json"
            verdicts = json.loads(summary.read_text()) if summary.exists() else {}
        return status, {name.removeprefix("sample."): verdict for name, verdict in verdicts.items()}, printed.getvalue()

    def test_statuses(self):
        status, verdicts, text = self.run_tests({"good": (0, "", self.GOOD), "skipped": (4, "SKIP: no such thing\n", self.GOOD),
                                                 "bad": (1, "FAIL: unequal\n", self.GOOD), "slow": (124, "TIMEOUT\n", "")})
        self.assertEqual(status, 1)
        self.assertEqual(verdicts, {"good": "pass", "skipped": "skip", "bad": "fail", "slow": "fail"})
        self.assertIn("1..4\n", text)
        self.assertIn("\nok 2 sample.skipped # SKIP no such thing\n", text)
        self.assertIn("\nnot ok 3 sample.bad ", text)
        self.assertIn("# FAIL: unequal\n", text)
        self.assertIn("# 1 passed, 2 failed, 1 skipped\n", text)

    def test_passed_and_skipped_is_success(self):
        self.assertEqual(self.run_tests({"good": (0, "", self.GOOD), "skipped": (4, "SKIP: no\n", self.GOOD)})[0], 0)

    def test_kernel_reports_fail_passed_and_skipped_tests(self):
        status, verdicts, _ = self.run_tests({"good": (0, "", self.BAD), "skipped": (4, "SKIP: no\n", self.BAD), "next": (0, "", "")})
        self.assertEqual((status, verdicts), (1, {"good": "fail", "skipped": "fail", "next": "pass"}))

    def test_missing_kernel_logs_fail_passed_and_skipped_tests(self):
        """If the disk is full, the machine cannot store them, and nobody knows what they had."""
        status, verdicts, text = self.run_tests({"good": (0, "", None), "skipped": (4, "SKIP: no\n", None), "next": (0, "", "")})
        self.assertEqual((status, verdicts), (1, {"good": "fail", "skipped": "fail", "next": "pass"}))
        self.assertIn("dmesg-a: there is no kernel log of the test", text)
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder)
            (results / "x.y.dmesg-a").write_text("[ 5.0] rxe-test: begin x.y\n")
            (results / "x.y.dmesg-b").write_text("[ 5.0] rxe-test: begin x.yz\n")
            self.assertEqual([line.split(":")[0] for line in verdict.missing_logs(results, "x.y", "ab")], ["dmesg-b"])

    def test_complaints_after_the_last_test_fail_the_run(self):
        with mock.patch.object(Machine, "late", self.BAD):
            status, verdicts, text = self.run_tests({"good": (0, "", self.GOOD)})
        self.assertEqual((status, verdicts), (1, {"good": "pass", "after": "fail"}))
        self.assertIn("not ok 2 kernel log after the last test\n", text)
        self.assertIn("kernel BUG at net", text)

    def test_a_skip_without_a_reason_is_a_failure(self):
        """Programs that fail may have the same status."""
        status, verdicts, text = self.run_tests({"good": (0, "", ""), "failed": (4, "no such device\n", "")})
        self.assertEqual((status, verdicts), (1, {"good": "pass", "failed": "fail"}))
        self.assertIn("# no such device\n", text)

    def test_artefacts_of_a_failure_are_kept(self):
        kept = {}
        with mock.patch.object(cli.Report, "keep", lambda report, name, session: kept.setdefault(name, report.out / name)):
            self.run_tests({"good": (0, "", ""), "bad": (1, "FAIL: why\n", "")})
        self.assertEqual(list(kept), ["sample.bad"])

    def test_counters_follow_the_output_of_a_failure(self):
        """However many they are, they do not displace what the test itself has printed last."""
        with mock.patch.object(Machine, "counters", "".join(f"rxe0 counter_{n}:1\n" for n in range(60))):
            _, _, text = self.run_tests({"bad": (1, "FAIL: unequal\n", self.GOOD)})
        self.assertIn("# FAIL: unequal\n# rxe0 counter_0:1\n", text)
        self.assertIn("# rxe0 counter_59:1\n# artefacts:", text)

    def test_remaining_tests_run_in_another_machine(self):
        status, verdicts, text = self.run_tests({"good": (0, "", ""), "deadly": (None, "", ""), "next": (0, "", "")})
        self.assertEqual((status, verdicts), (1, {"good": "pass", "deadly": "fail", "next": "pass"}))
        self.assertEqual(Machine.boots, [["sample.good", "sample.deadly", "sample.next"], ["sample.next"]])
        self.assertIn("the machine ended unexpectedly", text)

    def test_crash_while_no_test_runs(self):
        """Between two tests, and behind the last one: the run has failed, although each test has passed."""
        for last, boots in (("sample.good", 2), ("sample.next", 1)):
            with mock.patch.object(Machine, "last", (last,)):
                status, verdicts, text = self.run_tests({"good": (0, "", ""), "next": (0, "", "")})
            self.assertEqual((status, verdicts), (1, {"good": "pass", "next": "pass", "after": "fail"}))
            self.assertEqual(len(Machine.boots), boots)
            self.assertIn("not ok 3 machine while no test was running\n#   the machine ended unexpectedly\n", text)

    def test_a_machine_that_does_not_boot_is_started_again(self):
        """The first one, and the one that replaces a machine that a test has crashed. What it said last is shown."""
        happens = {"good": (0, "", ""), "deadly": (None, "", ""), "next": (0, "", "")}
        with mock.patch.object(Machine, "dead", (1, 2, 4, 5)):
            status, verdicts, text = self.run_tests(happens)
        self.assertEqual((status, verdicts), (1, {"good": "pass", "deadly": "fail", "next": "pass"}))
        self.assertEqual(Machine.boots, [["sample.good", "sample.deadly", "sample.next"]] * 3 + [["sample.next"]] * 3)
        self.assertEqual(text.count("started again"), 4)
        # It is emulated from then on.
        self.assertEqual(Machine.with_kvm, [True] + [False] * 5)
        self.distrusted.assert_called_once()
        self.assertIn("(files in boot-2):\n#   guest-init: no root file system\n#   the machine ended unexpectedly\n", text)

    def test_a_script_is_run_again_in_another_machine(self):
        """As long as it has not begun."""
        for dead, status, boots in (((), 7, 1), ((1, 2), 7, 3), ((1, 2, 3), 1, 3)):
            with self.subTest(dead=dead), mock.patch.object(Machine, "dead", dead), mock.patch.object(cli, "Session", Machine), \
                    mock.patch.object(machine, "distrust_kvm", return_value=False), tempfile.TemporaryDirectory() as folder, \
                    contextlib.redirect_stderr(io.StringIO()) as said:
                Machine.boots, Machine.with_kvm = [], []
                Machine.happens = {"script": (7, "", self.GOOD)}
                (Path(folder) / "script").touch()
                given = options(script=[str(Path(folder) / "script")], seconds=9)
                self.assertEqual(cli.run_script(given, BOOT, True, Path(folder)), status)
                self.assertEqual(Machine.with_kvm, [True, False, False][:boots])
                self.assertEqual(said.getvalue().count("started again"), boots - 1)

    def test_a_machine_that_never_boots_has_failed(self):
        with mock.patch.object(Machine, "dead", (1, 2, 3)):
            status, verdicts, text = self.run_tests({"good": (0, "", ""), "next": (0, "", "")})
        self.assertEqual((status, verdicts), (1, {"good": "fail", "next": "fail", "after": "fail"}))
        self.assertEqual(len(Machine.boots), 3)
        self.assertIn("not ok 3 machine before the first test\n#   guest-init: no root file system\n#   the machine ended unexpectedly\n", text)
        self.assertEqual(text.count("# not run\n"), 2)

    def test_each_crash_keeps_its_artefacts(self):
        """Two machines crash between tests: both are in the report, with numbers of their own, and the files of both are stored."""
        kept = []
        with mock.patch.object(Machine, "last", ("sample.good", "sample.next")), \
                mock.patch.object(cli.Report, "keep", lambda report, name, session, stem: kept.append((name, session.folder.name, stem))):
            status, verdicts, text = self.run_tests({"good": (0, "", ""), "next": (0, "", ""), "last": (0, "", "")})
        self.assertEqual((status, verdicts), (1, {"good": "pass", "next": "pass", "last": "pass", "after": "fail", "after-2": "fail"}))
        self.assertEqual(kept, [("after", "boot-1", "after"), ("after-2", "boot-2", "after")])
        self.assertIn("not ok 4 machine while no test was running\n", text)
        self.assertIn("not ok 5 machine while no test was running\n", text)
        self.assertIn("# 3 passed, 2 failed, 0 skipped\n", text)

    def test_tests_that_did_not_run_have_failed(self):
        deadly = {name: (None, "", "") for name in "abcdefghij"}
        status, verdicts, text = self.run_tests(deadly)
        self.assertEqual((status, verdicts), (1, dict.fromkeys(deadly, "fail")))
        self.assertLess(len(Machine.boots), len(deadly))
        self.assertEqual(text.count("# not run"), len(deadly) - len(Machine.boots))

    def test_unknown_names_are_an_error(self):
        """The message has all of them, and no test runs, not even those that other patterns select."""
        for patterns, unmatched in ((["sample.god"], "sample.god"), (["sample.*", "sample.god", "simple.*"], "sample.god simple.*")):
            status, verdicts, text = self.run_tests({"good": (0, "", self.GOOD)}, test=patterns)
            self.assertEqual((status, verdicts, Machine.boots), (2, {}, []))
            self.assertIn(f"error: no test of that name: {unmatched};", text)

    def test_tests_of_another_topology(self):
        """qemu/run --list shows those as well, so it is no help to be referred to that."""
        status, verdicts, text = self.run_tests({"good": (0, "", self.GOOD)}, test=["sample.*", "sample.god"], topologies=["netns"], topology="two")
        self.assertEqual((status, verdicts, Machine.boots), (2, {}, []))
        self.assertIn("error: only with --topology netns: sample.*\n", text)
        self.assertIn("error: no test of that name: sample.god;", text)

    def test_selecting_no_test_is_an_error(self):
        status, verdicts, text = self.run_tests({"good": (0, "", self.GOOD)}, test=["sample.*"], without=["*"])
        self.assertEqual((status, verdicts, Machine.boots), (2, {}, []))
        self.assertIn("error: no test is selected", text)

    def test_needs_are_built(self):
        """If that fails, the run ends with an error before a machine is started."""
        good = {"good": (0, "", "")}
        with mock.patch.object(cli.subprocess, "run", return_value=types.SimpleNamespace(returncode=1, stdout="")) as built:
            self.assertEqual(self.run_tests(good)[0], 0)
            built.assert_not_called()
            status, verdicts, text = self.run_tests(good, needs=("tools",))
            self.assertEqual((status, verdicts, Machine.boots), (2, {}, []))
            self.assertIn("error: cannot build the tools", text)
            built.assert_called_once()
        with mock.patch.object(cli, "build_test_module", return_value="made/kverbs.ko") as built:
            modules = ["rxe_rs.ko"]
            self.assertEqual(self.run_tests(good, needs=("kverbs",), ko=modules)[0], 0)
            built.assert_called_once()
            self.assertEqual(modules, ["rxe_rs.ko", "made/kverbs.ko"])


if __name__ == "__main__":
    unittest.main()
