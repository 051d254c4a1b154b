#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Builds the User Mode Linux kernel in the cache folder. Runs inside the toolchain root.

build.py [--debug] ensure [SERIES]    make it ready, print its folder
build.py [--debug] show [SERIES]      print its paths as NAME=VALUE lines

It is the stock kernel's source with `uml.patch` and the options of `config.txt`: CACHE/uml-RELEASE-KEY/ with the built tree
(`src/`, fit for external Rust modules), the kernel `linux` and the installed modules below `modules/`. The key covers the
patch, the options and the recipe. `ready` is written last; an interrupted build is continued by the next one.

With --debug it is the kernel of `make test-debug`, uml-debug-RELEASE-KEY/: the options of `debug.txt` come after those of
`config.txt`, `debug.patch` after `uml.patch`, and clang compiles it, because Rust code is checked for bad accesses only then.
"""
import fcntl
import hashlib
import os
import re
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
NEEDED = ("CONFIG_RUST=y", "CONFIG_RDMA_RXE=m", "CONFIG_RDMA_SIW=m", "CONFIG_SMP=y")
NEEDED_DEBUG = ("CONFIG_KASAN=y", "CONFIG_DEBUG_KMEMLEAK=y", "CONFIG_UBSAN=y", "CONFIG_FAILSLAB=y", "CONFIG_FAIL_PAGE_ALLOC=y",
                "CONFIG_PROVE_LOCKING=y", "CONFIG_PROVE_RCU=y", "CONFIG_DEBUG_ATOMIC_SLEEP=y", "CONFIG_RUST_DEBUG_ASSERTIONS=y")
GCC = ("CC=gcc-14", "HOSTCC=gcc-14")
LLVM = ("LLVM=1",)
# The module loader of User Mode Linux knows absolute relocations only, and modules live far from the kernel's text.
RUSTFLAGS = "-Crelocation-model=static -Ccode-model=large"


def patches(debug):
    return [HERE / "uml.patch", *([HERE / "debug.patch"] if debug else [])]


def lists(debug):
    return [HERE / "config.txt", *([HERE / "debug.txt"] if debug else [])]


def folder(info, debug=False):
    text = RECIPE + RUSTFLAGS + "".join(path.read_text() for path in patches(debug) + lists(debug))
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return kernel.CACHE / f"uml-{'debug-' if debug else ''}{info['release']}-{key}"


def options(debug):
    words = []
    for path in lists(debug):
        for line in path.read_text().splitlines():
            if not line.startswith("#"):
                words += shlex.split(line)
    return words


def tools(debug):
    """What tells make which compilers the kernel and its modules are made with."""
    return LLVM if debug else GCC


def paths(info, debug=False):
    base = folder(info, debug)
    return {"RELEASE": info["release"], "SERIES": info["series"], "UML": base / "linux", "TREE": base / "src",
            "MODULES": base / "modules", "RUSTFLAGS": RUSTFLAGS, "TOOLS": " ".join(tools(debug))}


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
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if re.match(r"  [A-Z]", line)] or [""]
            kernel.say(f"User Mode Linux: {len(lines)} of about {LOG_LINES} steps, now {' '.join(lines[-1].split()[:3])}")


def copy_source(info, base, log, debug):
    """A clean copy of the stock source, patched."""
    if (base / "src").exists():
        return
    tmp = base / "src.tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    # Hard links cost no space. What a build writes it writes to new files, and `patch` replaces files, so the stock tree
    # keeps its contents; its own generated files are left out or removed from the copy.
    kernel.run("cp", "-al", kernel.KERNELS / info["release"] / "src", tmp, quiet=log)
    kernel.run("make", "-C", tmp, "mrproper", quiet=log)
    for patch in patches(debug):
        kernel.run("patch", "-d", tmp, "-p1", "--batch", "-i", patch, quiet=log)
    tmp.rename(base / "src")


def build(info, base, debug):
    log = base / "build.log"
    tree = base / "src"
    jobs = f"-j{os.cpu_count()}"
    make = ("make", "ARCH=um", *tools(debug))
    copy_source(info, base, log, debug)
    if not (base / "configured").exists():
        kernel.run(*make, "-C", tree, "x86_64_defconfig", quiet=log)
        kernel.run("scripts/config", *options(debug), cwd=tree, quiet=log)
        kernel.run(*make, "-C", tree, "olddefconfig", quiet=log)
        (base / "configured").touch()
    for need in NEEDED + (NEEDED_DEBUG if debug else ()):
        if need not in (tree / ".config").read_text().splitlines():
            kernel.die(f"the User Mode Linux configuration lacks {need}: see {tree}/.config and {lists(debug)[-1]}")
    with Progress(log):
        kernel.run("nice", *make, "-C", tree, jobs, "all", quiet=log)
    kernel.run(*make, "-C", tree, "INSTALL_MOD_PATH=" + str(base / "modules.tmp"), "modules_install", quiet=log)
    shutil.rmtree(base / "modules", ignore_errors=True)
    (base / "modules.tmp").rename(base / "modules")
    for link in (base / "modules/lib/modules").glob("*/build"):
        link.unlink()
    shutil.copy(tree / "linux", base / "linux")


def ensure(series, debug=False):
    info = kernel.ensure(series)
    base = folder(info, debug)
    name = "User Mode Linux debug kernel" if debug else "User Mode Linux kernel"
    if (base / "ready").exists():
        return info
    base.mkdir(parents=True, exist_ok=True)
    with open(kernel.CACHE / ".lock-uml", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "ready").exists():
            start = time.monotonic()
            kernel.say(f"building the {name} {info['release']} (about ten minutes on two processors, once; "
                       f"log: {base}/build.log)")
            build(info, base, debug)
            (base / "ready").touch()
            kernel.say(f"{name} ready in {time.monotonic() - start:.0f} s: {base}")
    return info


def main():
    if not os.environ.get("RXE_IN_ROOT"):
        kernel.die("this runs inside the toolchain root: qemu/in-root.sh qemu/uml/build.py …")
    words = sys.argv[1:]
    debug = words[:1] == ["--debug"]
    verb, series, *_ = words[debug:] + ["", ""]
    info = ensure(series or None, debug) if verb in ("ensure", "show") else None
    if verb == "ensure":
        print(folder(info, debug))
    elif verb == "show":
        for name, value in paths(info, debug).items():
            print(f"{name}={value}")
    else:
        kernel.die(__doc__)


if __name__ == "__main__":
    main()
