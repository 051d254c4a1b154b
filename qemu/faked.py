# SPDX-License-Identifier: GPL-2.0
"""What tests of the set-up share: programs of this root that are faked or missing, and a cache folder of their own."""
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

# Leaves what mmdebstrap leaves: a folder with apt's sources. Its name is the last argument, but for "-".
MMDEBSTRAP = """
for last; do [ "$last" = - ] || target=$last; done
[ "$last" != - ] || cat >$state/sources
[ ! -e "$target/etc" ] || { echo "E: $target is not empty" >&2; exit 1; }
mkdir -p "$target/etc/apt"
echo "deb http://mirror.invalid/debian trixie main" >"$target/etc/apt/sources.list"
"""

# What tests fake or take away.
CHANGEABLE = ("apt-get", "apt-cache", "mmdebstrap", "mkfs.ext4", "depmod", "modprobe", "cargo", machine.QEMU)
others = None


def setUpModule():
    """The other programs of this root, in one folder."""
    global others
    others = Path(tempfile.mkdtemp())
    unittest.addModuleCleanup(shutil.rmtree, others)
    others.chmod(0o755)
    for place in ("/usr/sbin", "/usr/bin"):
        for program in os.scandir(place):
            if program.name not in CHANGEABLE and not (others / program.name).is_symlink():
                (others / program.name).symlink_to(program.path)


class Faked(unittest.TestCase):
    """A folder with a PATH of its own: this root's programs, some of them missing or faked. `calls` has what the fakes were called with."""

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
        """What is said meanwhile: lines, at the end."""
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
        """Ends with one line that says why and what to do."""
        with self.heard() as said, self.assertRaises(SystemExit):
            call(what)
        self.assertTrue(said[-1].startswith("error: "), said)
        for word in words:
            self.assertIn(word, said[-1])

    def disk(self, folder, size):
        """Makes a folder a disk of its own."""
        # The toolchain root has no mount(8).
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={size}".encode()), 0, os.strerror(ctypes.get_errno()))
        # A child that has not quite ended may still use it: the mount goes with its last user (MNT_DETACH).
        self.addCleanup(lambda: self.assertEqual(libc.umount2(bytes(folder), 2), 0))

    def small_disk(self):
        self.cache.mkdir()
        self.disk(self.cache, "8m")
