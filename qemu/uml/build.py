#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Builds the User Mode Linux kernel in the cache folder. Runs inside the toolchain root.

build.py ensure [SERIES]    make it ready, print its folder
build.py show [SERIES]      print its paths as NAME=VALUE lines

It is the stock kernel's source with `uml.patch` and the options of `config.txt`: CACHE/uml-RELEASE-KEY/ with the built tree
(`src/`, fit for external Rust modules), the kernel `linux` and the installed modules below `modules/`. The key covers the
patch, the options and the recipe. `ready` is written last; an interrupted build is continued by the next one.
"""
import fcntl
import hashlib
import os
import shlex
import shutil
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import kernel  # noqa: E402

RECIPE = "1"
LOG_LINES = 2200
MAKE = ("make", "ARCH=um", "CC=gcc-14", "HOSTCC=gcc-14")
# The module loader of User Mode Linux knows absolute relocations only, and modules live far from the kernel's text.
RUSTFLAGS = "-Crelocation-model=static -Ccode-model=large"


def folder(info):
    text = RECIPE + RUSTFLAGS + (HERE / "uml.patch").read_text() + (HERE / "config.txt").read_text()
    return kernel.CACHE / f"uml-{info['release']}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def options():
    words = []
    for line in (HERE / "config.txt").read_text().splitlines():
        if not line.startswith("#"):
            words += shlex.split(line)
    return words


def paths(info):
    base = folder(info)
    return {"RELEASE": info["release"], "SERIES": info["series"], "UML": base / "linux", "TREE": base / "src",
            "MODULES": base / "modules", "RUSTFLAGS": RUSTFLAGS}


class Progress:
    """Says now and then how far a build is, by the lines of its log."""

    def __init__(self, log):
        self.log, self.done = log, threading.Event()

    def __enter__(self):
        threading.Thread(target=self.watch, daemon=True).start()

    def __exit__(self, *_):
        self.done.set()

    def watch(self):
        while not self.done.wait(30):
            lines = self.log.read_text(errors="replace").splitlines()
            kernel.say(f"User Mode Linux: {len(lines)} of about {LOG_LINES} steps, now {' '.join(lines[-1].split()[:3])}")


def copy_source(info, base, log):
    """A clean copy of the stock source, patched."""
    if (base / "src").exists():
        return
    tmp = base / "src.tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    # Hard links cost no space. What a build writes it writes to new files, and `patch` replaces files, so the stock tree
    # keeps its contents; its own generated files are left out or removed from the copy.
    kernel.run("cp", "-al", kernel.KERNELS / info["release"] / "src", tmp, quiet=log)
    kernel.run("make", "-C", tmp, "mrproper", quiet=log)
    kernel.run("patch", "-d", tmp, "-p1", "--batch", "-i", HERE / "uml.patch", quiet=log)
    tmp.rename(base / "src")


def build(info, base):
    log = base / "build.log"
    tree = base / "src"
    jobs = f"-j{os.cpu_count()}"
    copy_source(info, base, log)
    if not (base / "configured").exists():
        kernel.run(*MAKE, "-C", tree, "x86_64_defconfig", quiet=log)
        kernel.run("scripts/config", *options(), cwd=tree, quiet=log)
        kernel.run(*MAKE, "-C", tree, "olddefconfig", quiet=log)
        (base / "configured").touch()
    for need in ("CONFIG_RUST=y", "CONFIG_RDMA_RXE=m", "CONFIG_RDMA_SIW=m", "CONFIG_SMP=y"):
        if need not in (tree / ".config").read_text().splitlines():
            kernel.die(f"the User Mode Linux configuration lacks {need}: see {tree}/.config and qemu/uml/config.txt")
    with Progress(log):
        kernel.run("nice", *MAKE, "-C", tree, jobs, "all", quiet=log)
    kernel.run(*MAKE, "-C", tree, "INSTALL_MOD_PATH=" + str(base / "modules.tmp"), "modules_install", quiet=log)
    shutil.rmtree(base / "modules", ignore_errors=True)
    (base / "modules.tmp").rename(base / "modules")
    for link in (base / "modules/lib/modules").glob("*/build"):
        link.unlink()
    shutil.copy(tree / "linux", base / "linux")


def ensure(series):
    info = kernel.ensure(series)
    base = folder(info)
    if (base / "ready").exists():
        return info
    base.mkdir(parents=True, exist_ok=True)
    with open(kernel.CACHE / ".lock-uml", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "ready").exists():
            start = time.monotonic()
            kernel.say(f"building the User Mode Linux kernel {info['release']} (about ten minutes on two processors, once; "
                       f"log: {base}/build.log)")
            build(info, base)
            (base / "ready").touch()
            kernel.say(f"User Mode Linux ready in {time.monotonic() - start:.0f} s: {base}")
    return info


def main():
    if not os.environ.get("RXE_IN_ROOT"):
        kernel.die("this runs inside the toolchain root: qemu/in-root.sh qemu/uml/build.py …")
    verb = (sys.argv[1:] + [""])[0]
    series = (sys.argv[2:] + [""])[0] or None
    if verb == "ensure":
        print(folder(ensure(series)))
    elif verb == "show":
        for name, value in paths(ensure(series)).items():
            print(f"{name}={value}")
    else:
        kernel.die(__doc__)


if __name__ == "__main__":
    main()
