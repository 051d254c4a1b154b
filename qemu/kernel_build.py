#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Builds kernels with other configurations from the stock source, in the cache folder. Runs inside the toolchain root.

kernel_build.py ensure KIND [SERIES]    build it unless it is ready, print its folder
kernel_build.py show KIND [SERIES]      the same, but print its paths as NAME=VALUE lines

KIND is one of KINDS: the source is that of the stock kernel with patches, the options are arguments of scripts/config. The result is
CACHE/KIND-RELEASE-KEY/ with the built tree `src/` (prepared for external Rust modules), the kernel `linux` and the installed modules
below `modules/`. KEY is a hash of patches, options and RECIPE: a change of their files, even of a comment, causes a new build. `ready` is
written last; the next run continues an interrupted build. Exit status 1 on errors.
"""
import fcntl
import hashlib
import os
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import kernel  # noqa: E402

RECIPE = "1"
GCC = ("CC=gcc-14", "HOSTCC=gcc-14")


@dataclass(frozen=True)
class Kind:
    """`tools`: arguments of make that select the compilers of the kernel and its modules; `needed`: options that the resulting
    configuration must have; `result`: the kernel's file in the tree; `steps`: about how many lines a build prints."""
    title: str
    arch: str
    lists: tuple
    needed: tuple
    result: str
    steps: int
    patches: tuple = ()
    tools: tuple = GCC
    rustflags: str = ""


# The module loader of User Mode Linux supports absolute relocations only, and modules are far from the kernel's text.
UML_RUSTFLAGS = "-Crelocation-model=static -Ccode-model=large"
UML_NEEDED = ("CONFIG_RUST=y", "CONFIG_RDMA_RXE=m", "CONFIG_RDMA_SIW=m", "CONFIG_SMP=y")
LOCKS_NEEDED = ("CONFIG_FAILSLAB=y", "CONFIG_FAIL_PAGE_ALLOC=y", "CONFIG_PROVE_LOCKING=y", "CONFIG_PROVE_RCU=y",
                "CONFIG_DEBUG_ATOMIC_SLEEP=y", "CONFIG_RUST_DEBUG_ASSERTIONS=y", "CONFIG_KUNIT=y")
KINDS = {
    # Runs kernel code at native speed: for measurements and quick tests.
    "uml": Kind("User Mode Linux kernel", "um", ("uml/config.txt", "uml/optimize.txt"),
                (*UML_NEEDED, "CONFIG_CC_OPTIMIZE_FOR_PERFORMANCE=y"), "linux", 2200, patches=("uml/uml.patch",),
                rustflags=UML_RUSTFLAGS),
    # `make test-debug`: KASAN and kmemleak. Clang compiles it, because Rust code is instrumented for KASAN only then.
    "uml-debug": Kind("User Mode Linux debug kernel", "um", ("uml/config.txt", "uml/debug.txt"),
                      (*UML_NEEDED, *LOCKS_NEEDED, "CONFIG_KASAN=y", "CONFIG_DEBUG_KMEMLEAK=y", "CONFIG_UBSAN=y"), "linux", 2200,
                      patches=("uml/uml.patch", "uml/debug.patch"), tools=("LLVM=1",), rustflags=UML_RUSTFLAGS),
    # `make test-debug`: lockdep and checks of contexts, on several processors.
    "lockdep": Kind("lockdep kernel", "x86_64", ("lockdep/config.txt",),
                    ("CONFIG_RUST=y", "CONFIG_RDMA_RXE=m", "CONFIG_SMP=y", *LOCKS_NEEDED), "arch/x86/boot/bzImage", 2600),
}


def text_of(files):
    return [(HERE / name).read_text() for name in files]


def folder(info, name):
    kind = KINDS[name]
    text = RECIPE + kind.rustflags + "".join(text_of(kind.patches) + text_of(kind.lists))
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return kernel.CACHE / f"{name}-{info['release']}-{key}"


def options(kind):
    lines = "".join(text_of(kind.lists)).splitlines()
    return [word for line in lines if not line.startswith("#") for word in shlex.split(line)]


def release(info, name):
    """What `uname -r` prints in that kernel, which must have been built."""
    return (folder(info, name) / "src/include/config/kernel.release").read_text().strip()


def paths(info, name):
    base = folder(info, name)
    kind = KINDS[name]
    return {"RELEASE": info["release"], "SERIES": info["series"], "KERNEL": base / "linux", "TREE": base / "src",
            "MODULES": base / "modules/lib/modules" / release(info, name), "ARCH": kind.arch, "RUSTFLAGS": kind.rustflags,
            "TOOLS": " ".join(kind.tools)}


def copy_source(info, base, log, kind):
    """A clean copy of the stock source, patched."""
    if (base / "src").exists():
        return
    tmp = base / "src.tmp"
    # `patch` replaces files, so that the stock tree does not change.
    kernel.clean_copy(kernel.KERNELS / info["release"] / "src", tmp, log)
    for patch in kind.patches:
        kernel.run("patch", "-d", tmp, "-p1", "--batch", "-i", HERE / patch, quiet=log)
    tmp.rename(base / "src")


def build(info, base, kind):
    log = base / "build.log"
    tree = base / "src"
    jobs = f"-j{os.cpu_count()}"
    make = ("make", f"ARCH={kind.arch}", *kind.tools)
    copy_source(info, base, log, kind)
    if not (base / "configured").exists():
        kernel.run(*make, "-C", tree, "x86_64_defconfig", quiet=log)
        kernel.run("scripts/config", *options(kind), cwd=tree, quiet=log)
        kernel.run(*make, "-C", tree, "olddefconfig", quiet=log)
        (base / "configured").touch()
    for need in kind.needed:
        if need not in (tree / ".config").read_text().splitlines():
            kernel.die(f"the configuration of the {kind.title} does not have {need}: see {tree}/.config and qemu/{kind.lists[-1]}")
    kernel.run("nice", *make, "-C", tree, jobs, "all", quiet=log, steps=kind.steps)
    kernel.run(*make, "-C", tree, "INSTALL_MOD_PATH=" + str(base / "modules.tmp"), "modules_install", quiet=log)
    shutil.rmtree(base / "modules", ignore_errors=True)
    (base / "modules.tmp").rename(base / "modules")
    for link in (base / "modules/lib/modules").glob("*/build"):
        link.unlink()
    shutil.copy(tree / kind.result, base / "linux")


def ensure(series, name):
    kind = KINDS[name]
    info = kernel.ensure(series)
    base = folder(info, name)
    if (base / "ready").exists():
        return info
    base.mkdir(parents=True, exist_ok=True)
    with open(kernel.CACHE / ".lock-build", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "ready").exists():
            start = time.monotonic()
            kernel.need_space(base, 4)
            kernel.say(f"building the {kind.title} {info['release']} (ten to twenty minutes on two processors, once; "
                       f"log: {base}/build.log)")
            build(info, base, kind)
            (base / "ready").touch()
            kernel.say(f"{kind.title} ready in {time.monotonic() - start:.0f} s: {base}")
    return info


def main():
    if not os.environ.get("RXE_IN_ROOT"):
        kernel.die("this must run inside the toolchain root: qemu/in-root.sh qemu/kernel_build.py …")
    verb, name, series, *_ = sys.argv[1:] + ["", "", ""]
    if verb not in ("ensure", "show") or name not in KINDS:
        kernel.die(__doc__)
    info = ensure(series or None, name)
    if verb == "ensure":
        print(folder(info, name))
    else:
        for variable, value in paths(info, name).items():
            print(f"{variable}={value}")


if __name__ == "__main__":
    main()
