# SPDX-License-Identifier: GPL-2.0
"""Helpers for tests of the set-up: programs that are replaced by fakes or missing, and a cache folder for the test."""
import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import image  # noqa: E402
import kernel  # noqa: E402
import machine  # noqa: E402

# Creates a folder with apt sources, as mmdebstrap does. Its name is the last argument except "-".
MMDEBSTRAP = """
for last; do [ "$last" = - ] || target=$last; done
[ "$last" != - ] || cat >$state/sources
[ ! -e "$target/etc" ] || { echo "E: $target is not empty" >&2; exit 1; }
mkdir -p "$target/etc/apt"
echo "deb http://mirror.invalid/debian trixie main" >"$target/etc/apt/sources.list"
"""

# The programs that tests replace or remove.
CHANGEABLE = ("apt-get", "apt-cache", "mmdebstrap", "mkfs.ext4", "depmod", "modprobe", "cargo", machine.QEMU)
others = None


def setUpModule():
    """Creates a folder with links to the other programs of this root."""
    global others
    others = Path(tempfile.mkdtemp())
    unittest.addModuleCleanup(shutil.rmtree, others)
    others.chmod(0o755)
    for place in ("/usr/sbin", "/usr/bin"):
        for program in os.scandir(place):
            if program.name not in CHANGEABLE and not (others / program.name).is_symlink():
                (others / program.name).symlink_to(program.path)


class Faked(unittest.TestCase):
    """A test with a folder of its own and a PATH with the programs of this root, some of them replaced or missing. Fakes record their
    arguments, which `calls` returns."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.disk(self.folder, "32g")
        self.folder.chmod(0o755)
        self.bin, self.cache = self.folder / "bin", self.folder / "cache"
        self.bin.mkdir()
        for name in CHANGEABLE:
            (self.bin / name).symlink_to(shutil.which(name))
        self.kernels = self.cache / "kernels"
        for changed in (mock.patch.dict(os.environ, PATH=f"{self.bin}:{others}"),
                        mock.patch.multiple(kernel, PROGRESS_SECONDS=0.1, CACHE=self.cache, KERNELS=self.kernels),
                        mock.patch.multiple(image, IMAGES=self.cache / "images", sources=lambda _: "deb http://mirror.invalid/debian trixie main\n")):
            self.enterContext(changed)

    def missing(self, name):
        (self.bin / name).unlink()

    def fake(self, name, text):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\nstate={self.folder}\necho {name} \"$@\" >>$state/calls\n{text}\n")
        (self.bin / name).chmod(0o755)

    def calls(self, name):
        try:
            return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith(name)]
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def heard(self):
        """A context whose value is the list of lines written to stderr in it, filled at its end."""
        lines = []
        with open(self.folder / "said", "w+") as said:
            with contextlib.redirect_stderr(said):
                yield lines
            said.seek(0)
            lines += said.read().splitlines()

    def ensure(self, what=None, call=kernel.ensure):
        with self.heard():
            return call(what)

    def dies(self, *words, what=None, call=kernel.ensure):
        """Asserts that the call exits with an error, whose last line has all `words`."""
        with self.heard() as said, self.assertRaises(SystemExit):
            call(what)
        self.assertTrue(said[-1].startswith("error: "), said)
        for word in words:
            self.assertIn(word, said[-1])

    def disk(self, folder, size):
        """Mounts a file system of that size at a folder."""
        # The toolchain root has no mount(8).
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={size}".encode()), 0, os.strerror(ctypes.get_errno()))
        # A child that is still exiting may use it: a lazy unmount (MNT_DETACH) waits for that.
        self.addCleanup(lambda: self.assertEqual(libc.umount2(bytes(folder), 2), 0))

    def small_disk(self):
        self.cache.mkdir()
        self.disk(self.cache, "8m")
