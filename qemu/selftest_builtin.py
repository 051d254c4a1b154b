#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of the code that refuses to load into a kernel with rdma_rxe built in. Debian has no such kernel, so they examine the object."""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
OBJECT = "rxe_rs/kapi/exclusion.o"


class BuiltIn(unittest.TestCase):
    def compile(self, *flags):
        """Compiles the file; returns the functions that it calls, and the contents of the object."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        series = ["-k", os.environ["KERNEL"]] if os.environ.get("KERNEL") else []
        done = subprocess.run([HERE / "build-module.sh", "-o", folder, *series, HERE.parent, *flags, OBJECT],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        symbols = subprocess.run(["nm", "-u", folder / OBJECT], stdout=subprocess.PIPE, text=True, check=True).stdout
        return symbols.split()[1::2], (folder / OBJECT).read_bytes()

    def test_module(self):
        calls, strings = self.compile()
        self.assertIn("kset_find_obj", calls)
        self.assertIn("register_module_notifier", calls)
        self.assertNotIn(b"is built into this kernel", strings)

    def test_built_in(self):
        """It looks nothing up and registers nothing: it only prints the reason."""
        calls, strings = self.compile("KCFLAGS=-DCONFIG_RDMA_RXE=1")
        self.assertNotIn("kset_find_obj", calls)
        self.assertNotIn("register_module_notifier", calls)
        self.assertIn("_printk", calls)
        self.assertIn(b"is built into this kernel", strings)


if __name__ == "__main__":
    unittest.main()
