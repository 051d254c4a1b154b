# SPDX-License-Identifier: GPL-2.0
"""Tests that each promise of SECURITY.md names a test, which exists."""
import fnmatch
import unittest
from pathlib import Path

import security
from vm.discovery import all_tests

TEXT = (Path(__file__).resolve().parent.parent / "SECURITY.md").read_text()
SAMPLE = """# What is promised, and tested
Words about `file.md`.
| promise | test |
|---|---|
| a thing | `sample.one`, `pair::loss` |
- another `sample.*`
# Limits
- nothing `to.see`
"""


class Promises(unittest.TestCase):
    def test_parts_are_found(self):
        self.assertEqual(security.patterns(SAMPLE), ["sample.one", "sample.*", "to.see"])
        self.assertEqual(security.host_tests(SAMPLE), [("pair", "loss")])
        self.assertEqual(list(security.promises(SAMPLE)), ["| a thing | `sample.one`, `pair::loss` |", "- another `sample.*`"])

    def test_each_promise_names_a_test(self):
        lines = list(security.promises(TEXT))
        self.assertGreater(len(lines), 15)
        readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
        self.assertIn(f"makes {len(lines)} promises", readme)
        for line in lines:
            with self.subTest(line=line):
                self.assertTrue(security.patterns(line) or security.host_tests(line))

    def test_tests_exist(self):
        names = [test.name for test in all_tests()]
        for pattern in security.patterns(TEXT):
            with self.subTest(pattern=pattern):
                self.assertTrue(fnmatch.filter(names, pattern))
        for file, test in security.host_tests(TEXT):
            with self.subTest(file=file, test=test):
                self.assertTrue(security.exists_on_host(file, test))
