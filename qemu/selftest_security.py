# SPDX-License-Identifier: GPL-2.0
"""Tests that each promise of SECURITY.md names a test, which exists, and that `make test-security` runs all of them."""
import fnmatch
import re
import unittest
from pathlib import Path

import security
from vm.discovery import all_tests

HERE = Path(__file__).resolve().parent
TEXT = (HERE.parent / "SECURITY.md").read_text()
SAMPLE = """# What is promised, and tested
Words about `file.md`.
| promise | test |
|---|---|
| a thing | `sample.one`, `pair::loss`, `qemu/selftest_one.py` |
- another `sample.*`
# Limits
- nothing `to.see`
"""


class Promises(unittest.TestCase):
    def test_parts_are_found(self):
        self.assertEqual(security.patterns(SAMPLE), ["sample.one", "sample.*", "to.see"])
        self.assertEqual(security.host_tests(SAMPLE), [("pair", "loss")])
        self.assertEqual(security.SCRIPTS.findall(SAMPLE), ["selftest_one.py"])
        self.assertEqual(list(security.promises(SAMPLE)),
                         ["| a thing | `sample.one`, `pair::loss`, `qemu/selftest_one.py` |", "- another `sample.*`"])

    def test_each_promise_names_a_test(self):
        lines = list(security.promises(TEXT))
        self.assertGreater(len(lines), 15)
        readme = (HERE.parent / "README.md").read_text()
        self.assertIn(f"makes {len(lines)} promises", readme)
        for line in lines:
            with self.subTest(line=line):
                self.assertTrue(security.patterns(line) or security.host_tests(line) or security.SCRIPTS.findall(line))

    def test_each_attacker_has_each_effect(self):
        """Each cell of the table of attackers and effects has a number of bits or `cannot`, and a test."""
        rows = [line.strip("| ").split(" | ") for line in security.promises(TEXT)]
        attackers = {cells[0].split(",")[0]: cells[1:] for cells in rows if len(cells) == 7}
        self.assertEqual(list(attackers), ["off-path", "on-path", "peer", "local user", "container root"])
        for attacker, cells in attackers.items():
            for cell in cells:
                with self.subTest(attacker=attacker, cell=cell):
                    self.assertRegex(re.sub("`[^`]*`", "", cell), r"\b(\d+|cannot)\b")
                    self.assertTrue(security.patterns(cell) or security.host_tests(cell))

    def test_tests_exist(self):
        names = [test.name for test in all_tests()] + [test.name for suite in security.suites() for test in suite.tests(None)]
        for pattern in security.patterns(TEXT):
            with self.subTest(pattern=pattern):
                self.assertTrue(fnmatch.filter(names, pattern))
        for file, test in security.host_tests(TEXT):
            with self.subTest(file=file, test=test):
                self.assertIsNotNone(security.crate_of(file, test))
        for script in security.SCRIPTS.findall(TEXT):
            self.assertTrue((HERE / script).exists(), script)


class Chosen(unittest.TestCase):
    """What `make test-security` runs."""

    def test_there_is_something_of_each_kind(self):
        """qemu/run and the shell need at least one name."""
        for kind in security.KINDS:
            with self.subTest(kind=kind):
                self.assertTrue(security.chosen(kind, TEXT))

    def test_every_kind_is_run(self):
        used = re.findall(r"\bnamed (\w+)\)", (HERE / "test.sh").read_text())
        self.assertEqual(sorted(used), sorted(security.KINDS))

    def test_every_named_test_is_run(self):
        tests = all_tests()
        run = {name for kind in ("netns", "two") for name in security.chosen(kind, TEXT)}
        self.assertEqual(set(security.matching(TEXT, tests)), run)

    def test_some_run_twice(self):
        for name in security.BETWEEN_MACHINES:
            self.assertIn(name, security.chosen("two", TEXT))
        for name in security.NATIVE_SPEED:
            self.assertIn(name, security.chosen("uml", TEXT))

    def test_kinds(self):
        text = "`link.add_del`, `link.*`, `ulp.nvme`, `ipsec.*`, `ucx.*`, `pair::everything_at_once`, `users::concurrent_closes`"
        chosen = {kind: security.chosen(kind, text) for kind in security.KINDS}
        self.assertIn("ipsec.mtu", chosen["netns"])
        self.assertEqual(len(chosen["netns"]), len(set(chosen["netns"])))
        self.assertEqual(chosen["two"], ["ulp.nvme", *security.BETWEEN_MACHINES])
        self.assertEqual([chosen[kind] for kind in ("uml", "suites", "crates", "scripts")],
                         [[], ["ucx"], ["-p rxe_proto", "-p rxe_models"], []])


if __name__ == "__main__":
    unittest.main()
