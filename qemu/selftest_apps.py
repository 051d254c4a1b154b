# SPDX-License-Identifier: GPL-2.0
"""Tests of apps_table.py, and of what it has stored: docs/apps.json and the table of programs in rxe_rs/FEATURES.md."""
import io
import json
import os
import re
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import apps_table  # noqa: E402
import stored_table  # noqa: E402
from vm import discovery  # noqa: E402

CEPH = apps_table.cases("ceph")
RUN = ["7.3.4", "emulation", "2026-11-29"]


def log(*lines, driver="rxe_rs", kind="emulation"):
    return "\n".join(["==> emulating (slow)", "KTAP version 1", f"# netns, {driver}, Linux 7.3.4, {kind}", f"1..{len(lines)}", *lines, "# 1 passed"])


class Logs(unittest.TestCase):
    def verdicts(self, *lines, **heading):
        return apps_table.verdicts(log(*lines, **heading), "2026-11-29")

    def test_verdicts(self):
        found = self.verdicts("ok 1 ceph.all_listed # 0.2 s", "ok 2 ceph.one # 3.0 s", "not ok 3 ceph.two # 9.9 s", "# ok 9 ceph.of_its_output",
                              "ok 4 ceph.three # SKIP no such library", "not ok 5 ceph.four # not run", "not ok 6 kernel log after the last test")
        self.assertEqual(found, {"rxe_rs": {name: [verdict, *RUN] for name, verdict in (
            ("ceph.all_listed", "pass"), ("ceph.one", "pass"), ("ceph.two", "fail"), ("ceph.three", "skip"), ("ceph.four", "fail"))}})

    def test_driver(self):
        self.assertEqual(set(self.verdicts("ok 1 ulp.nvme # 1.0 s", driver="rdma_rxe")), {"rdma_rxe"})

    def test_other_runs(self):
        """Those of other tests, of two drivers, of another driver, on a debug kernel; and what is no run."""
        self.assertEqual(self.verdicts("ok 1 link.add_del # 1.0 s"), {})
        for driver in ("rxe_rs against rdma_rxe", "siw"):
            self.assertEqual(self.verdicts("ok 1 ulp.nvme # 1.0 s", driver=driver), {}, driver)
        self.assertEqual(self.verdicts("ok 1 ulp.nvme # 1.0 s", kind="emulation, debug kernel"), {})
        self.assertEqual(apps_table.verdicts("ok 1 ulp.nvme # 1.0 s\n", "2026-11-29"), {})


class Table(unittest.TestCase):
    def row(self, name, **data):
        return next(line for line in apps_table.table(data) if line.startswith(f"| `{name}`"))

    def cells(self, name, **data):
        return [cell.strip() for cell in self.row(name, **data).split("|")[2:-1]]

    def of(self, names, verdict="pass", day="2026-11-29"):
        return {name: [verdict, "7.3.4", "emulation", day] for name in names}

    def test_passed(self):
        both = self.of(CEPH)
        self.assertEqual(self.cells("ceph", rxe_rs=both, rdma_rxe=both), ["3 of 3", "3 of 3", "", "7.3.4, emulation, 2026-11-29"])

    def test_nothing_was_measured(self):
        self.assertEqual(self.cells("ceph"), ["not measured", "not measured", "", ""])
        self.assertEqual(self.cells("ceph", rxe_rs=self.of(CEPH)), ["3 of 3", "not measured", "", "`rxe_rs`: 7.3.4, emulation, 2026-11-29"])

    def test_a_case_was_not_measured(self):
        self.assertEqual(self.cells("ceph", rxe_rs=self.of(CEPH[1:]))[0], "2 of 2, 1 not measured")

    def test_failures(self):
        first, *others = CEPH
        bad = self.of([first], "fail") | self.of(others)
        self.assertEqual(self.cells("ceph", rxe_rs=self.of(CEPH), rdma_rxe=bad)[1:3], ["2 of 3", f"`rdma_rxe`: `{first.split('.', 1)[1]}`"])
        skipped = self.of([first], "skip") | self.of(others)
        self.assertEqual(self.cells("ceph", rxe_rs=skipped, rdma_rxe=self.of(CEPH, "fail"))[:3],
                         ["2 of 3", "0 of 3", f"`rxe_rs`: `{first.split('.', 1)[1]}`; `rdma_rxe`: all"])

    def test_many_failures(self):
        ucx = apps_table.cases("ucx")
        for count, text in ((7, "7 cases"), (len(ucx) - 1, f"all but `{ucx[-1].split('.', 1)[1]}`")):
            data = self.of(ucx[:count], "fail") | self.of(ucx[count:])
            self.assertEqual(self.cells("ucx", rdma_rxe=data)[2], f"`rdma_rxe`: {text}")

    def test_days(self):
        first, *others = CEPH
        data = self.of([first], day="2026-11-30") | self.of(others)
        self.assertEqual(self.cells("ceph", rxe_rs=data, rdma_rxe=data)[3], "7.3.4, emulation, 2026-11-29 to 2026-11-30")
        self.assertEqual(self.cells("ceph", rxe_rs=data, rdma_rxe=self.of(CEPH))[3],
                         "`rxe_rs`: 7.3.4, emulation, 2026-11-29 to 2026-11-30; `rdma_rxe`: 7.3.4, emulation, 2026-11-29")


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("RESULTS", "STORED", "DOCUMENT"):
            self.enterContext(mock.patch.object(apps_table, name, self.folder / "files" / name))

    def log(self, *lines, **heading):
        path = self.folder / f"step-{len(list(self.folder.glob('step-*')))}.log"
        path.write_text(log(*lines, **heading))
        # A minute before midnight, UTC.
        os.utime(path, (1795996740, 1795996740))
        return path

    def test_add(self):
        """The last verdict of a case counts; those of cases that do not exist any more are removed."""
        apps_table.main("add", self.log(f"not ok 1 {CEPH[0]} # 1.0 s", f"ok 2 {CEPH[1]} # 1.0 s"), self.log(f"ok 1 {CEPH[0]} # 1.0 s", "ok 2 ceph.gone # 1.0 s"))
        apps_table.main("add", self.log(f"not ok 1 {CEPH[0]} # 1.0 s", driver="rdma_rxe"))
        data = json.loads(apps_table.RESULTS.read_text())
        self.assertEqual(data, {"rxe_rs": {name: ["pass", "7.3.4", "emulation", "2026-11-29"] for name in CEPH[:2]},
                                "rdma_rxe": {CEPH[0]: ["fail", "7.3.4", "emulation", "2026-11-29"]}})

    def test_show(self):
        with redirect_stdout(io.StringIO()) as shown:
            apps_table.main("show")
        self.assertEqual(shown.getvalue().count("not measured | not measured"), len(apps_table.SUITES | apps_table.FILES))

    def test_store(self):
        apps_table.main("add", self.log(f"ok 1 {CEPH[0]} # 1.0 s"))
        apps_table.STORED.write_text(json.dumps({"rxe_rs": {CEPH[1]: ["pass", *RUN]}, "rdma_rxe": {}}))
        apps_table.DOCUMENT.write_text(f"before\n\n{apps_table.HEAD}\n|---|\n| old |\n\nbehind\n")
        apps_table.main("store")
        data = json.loads(apps_table.STORED.read_text())
        self.assertEqual(list(data["rxe_rs"]), CEPH[:2])
        self.assertEqual(apps_table.DOCUMENT.read_text(), "\n".join(["before", "", *apps_table.table(data), "", "behind", ""]))

    def test_wrong_arguments(self):
        for arguments in ((), ("add",), ("show", "more"), ("plot",)):
            with self.assertRaises(SystemExit) as stopped:
                apps_table.main(*arguments)
            self.assertEqual(stopped.exception.code, apps_table.__doc__)


class Stored(unittest.TestCase):
    """docs/apps.json, which apps_table.py wrote."""
    DATA = json.loads(apps_table.STORED.read_text())

    def test_table_is_that_of_the_stored_results(self):
        lines = apps_table.DOCUMENT.read_text().split("\n")
        start, end = stored_table.place(lines, apps_table.HEAD)
        self.assertEqual(lines[start:end], apps_table.table(self.DATA), "run qemu/apps_table.py store")

    def test_results(self):
        """They have been measured on a kernel that is named, and all those with rxe_rs have passed."""
        self.assertEqual(tuple(self.DATA), apps_table.DRIVERS)
        for driver, by_name in self.DATA.items():
            self.assertEqual(apps_table.merged({}, {driver: by_name})[driver], by_name, "cases that do not exist")
            for name, (verdict, release, kind, day) in by_name.items():
                with self.subTest(driver=driver, name=name):
                    self.assertIn(verdict, ("pass",) if driver == "rxe_rs" else ("pass", "fail", "skip"))
                    self.assertRegex(release, r"^\d+\.\d+\.\d+\+deb13-amd64$")
                    self.assertIn(kind, ("KVM", "emulation", "UML"))
                    self.assertRegex(day, r"^20\d\d-\d\d-\d\d$")
        for row in apps_table.SUITES | apps_table.FILES:
            self.assertNotEqual(self.DATA["rxe_rs"].keys() & set(apps_table.cases(row)), set(), row)


class Rows(unittest.TestCase):
    def test_rows(self):
        """They are those of `make test-apps`."""
        text = (HERE / "test.sh").read_text()
        suites = re.search(r'^\t\[ "\$mode" != apps \] \|\| SUITES="(.*)"$', text, re.M)[1].split()
        self.assertEqual(list(apps_table.SUITES), suites)
        for name in apps_table.FILES:
            self.assertIn(f"'{name}.*'", text)

    def test_all_cases_have_to_pass(self):
        """A case that is expected to fail would not be one that passed, although its verdict is."""
        for name in apps_table.SUITES:
            expected = [line.split()[1] for line in discovery.Suite(name).expected(None) if not line.startswith("#")]
            self.assertEqual(set(expected), {"pass"}, name)


if __name__ == "__main__":
    unittest.main()
