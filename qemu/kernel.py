#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Selects, downloads and prepares a stock Debian kernel in the cache folder. Runs inside the toolchain root.

kernel.py ensure [SERIES]    prepare the newest kernel of a series (7.2, 7.3) or of a flavour of it (7.2-rt, 7.3-arm64; without a number,
                             as `cloud`, of the newest series), unless one is ready, and print its release
kernel.py refresh [SERIES]   the same, but look for a newer release even if one is ready
kernel.py show [SERIES]      print the paths of the kernel that `ensure` prepares, as NAME=VALUE lines
kernel.py list               print the releases in backports, newest first, and the packages that each lacks

Without SERIES the series that was chosen first is used, which is the newest that was complete at that time. Exit status 1 on errors.

A ready kernel is CACHE/kernels/RELEASE/ with `image/` (the files of the packages as installed: vmlinuz, modules, System.map), `src/`
(the source tree, prepared with the stock configuration and symbol versions) and the file `ready`, which is written last. All steps
write under a temporary name first, so that the next run continues an interrupted one.
"""
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

SUPPORTED = ("7.2", "7.3")
# Debian's flavours, as in the names of its packages, and what they are. Those with a name are used only if they are named.
FLAVOURS = {"": "", "rt": "PREEMPT_RT", "cloud": "for virtual machines: few drivers, no rdma_rxe", "arm64": "64-bit ARM",
            "cloud-arm64": "64-bit ARM, for virtual machines", "arm64-16k": "64-bit ARM, pages of 16 KiB"}
# The interval between messages about the progress of a long command.
PROGRESS_SECONDS = 15
# Option of the command line of each machine: the kernel log must hold all that a test causes. Some kernels have 16 KiB by default.
LOG_BUFFER = "log_buf_len=4M"
CLONE = Path(__file__).resolve().parent.parent
# Also part of the package rxe-rs-dkms.
TREE_SCRIPT = CLONE / "tools/deb/kernel-tree"
CACHE = Path(os.environ.get("RXE_RS_CACHE") or Path.home() / ".cache/rxe_rs")
KERNELS = CACHE / "kernels"


def joined(*parts):
    """The name that these parts form; the common flavour has none."""
    return "-".join(part for part in parts if part)


def suffix(flavour):
    """The end of the release of a flavour."""
    return flavour if "arm64" in flavour else joined(flavour, "amd64")


# All kernels, by the names that KERNEL and --kernel accept: 7.2, 7.3, 7.2-rt, …
NAMES = tuple(joined(series, flavour) for flavour in FLAVOURS for series in SUPPORTED)


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def die(text):
    print(f"error: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


class Progress:
    """Reports the progress of a command periodically, by the lines of its log. With `steps`, lines that begin with a word in capitals count
    as steps of kbuild, of which there are about `steps`."""

    def __init__(self, log, steps=None):
        self.log, self.steps, self.start, self.done = log, steps, time.monotonic(), threading.Event()

    def __enter__(self):
        threading.Thread(target=self.watch, daemon=True).start()

    def __exit__(self, *_):
        self.done.set()

    def watch(self):
        while not self.done.wait(PROGRESS_SECONDS):
            lines = [" ".join(line.split()[:3]) for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            if self.steps:
                lines = [line for line in lines if re.match(r"[A-Z]+ ", line)]
            count = f", {len(lines)} of about {self.steps} steps" if self.steps else ""
            say(f"  {time.monotonic() - self.start:.0f} s{count}, now {lines[-1] if lines else 'at the beginning'}")


def run(*args, quiet=None, steps=None, **kwargs):
    """Runs a command, and exits with a message if it fails. With `quiet` its output goes to that log file, whose end is shown if the
    command fails; its progress is reported."""
    if quiet is None:
        done = subprocess.run(args, stdout=sys.stderr, **kwargs)
        if done.returncode:
            die(f"failed: {' '.join(map(str, args))}")
        return
    with open(quiet, "ab") as log, Progress(Path(quiet), steps):
        done = subprocess.run(args, stdout=log, stderr=subprocess.STDOUT, **kwargs)
    if done.returncode:
        sys.stderr.write(Path(quiet).read_text(errors="replace")[-4000:])
        die(f"failed: {' '.join(map(str, args))} (all of its output: {quiet})")


def need_space(folder, gigabytes):
    free = shutil.disk_usage(folder).free >> 30
    if free < gigabytes:
        die(f"{folder} has {free} GB free, {gigabytes} GB are needed; free some space or set RXE_RS_CACHE to a folder on another disk")


def check_visible(folder):
    """Ends the program if a folder is not the same one outside of the toolchain root, where nobody would find what is written there."""
    if not any(folder.is_relative_to(place) for place in (CLONE, CACHE, "/tmp")):
        die(f"{folder} is a folder of the toolchain root; name one in the clone, in the cache folder or in /tmp")


def check_results(folder, mark, files=False):
    """Ends the program if results cannot be in a folder, in which a run removes those of the run before: the folders, and with `files` all. It
    has none, or is one below out/ of the clone, or has the file `mark`, which a run makes there; and it is the same folder outside of the
    toolchain root."""
    check_visible(folder)
    own = folder.is_relative_to(CLONE / "out") and folder != CLONE / "out"
    if own or not folder.exists() or (folder / mark).exists():
        return
    if others := [path.name for path in folder.iterdir() if files or path.is_dir()]:
        die(f"{folder} has files of others, which would be removed, such as {min(others)}; name a folder that is empty or does not exist")


def output(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout


def architecture(series):
    """The Debian architecture of a kernel."""
    return "arm64" if "arm64" in (series or "").split("-") else "amd64"


# apt's own user cannot write to the cache folder.
AS_ROOT = ("-o", "APT::Sandbox::User=root")


def apt(series):
    """The options of apt for packages of the architecture of a kernel. For another one than that of the toolchain root, apt has lists of its
    own in the cache folder."""
    if architecture(series) == "amd64":
        return ()
    folder = KERNELS / f"apt-{architecture(series)}"
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    settings = {"APT::Architecture": architecture(series), "APT::Architectures": architecture(series), "Dir::State::status": "/dev/null",
                "Dir::State::lists": folder / "lists", "Dir::Cache": folder}
    return (*AS_ROOT, *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")))


def package_table(series=None):
    """The linux-* packages in Debian's package lists for the architecture of a kernel: {name: [version, …]}, newest version first."""
    options = apt(series)
    done = subprocess.run(["apt-get", *options, "update", "-q"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode or "Failed to fetch" in done.stderr:
        sys.stderr.write(done.stderr)
        have = ", ".join(sorted({json.loads(m.read_text())["series"] for m in KERNELS.glob("*/ready")}))
        die("cannot read Debian's package lists; check the network, then run the same command again"
            + (f", or use what is prepared already: KERNEL={have}" if have else ""))
    names = output("apt-cache", *options, "pkgnames", "linux-").split()
    wanted = [n for n in names if re.match(r"linux-(source-\d|(binary|binary-unsigned|modules|headers|kbuild|base)-\d)", n)]
    # The initramfs of a machine of another architecture cannot have the busybox of the toolchain root.
    wanted += ["busybox-static"] if options else []
    table = {}
    for line in output("apt-cache", *options, "madison", *wanted).splitlines():
        name, version, _ = (field.strip() for field in line.split("|", 2))
        table.setdefault(name, [])
        if version not in table[name]:
            table[name].append(version)
    return table


def version_key(release):
    return tuple(int(n) for n in re.match(r"(\d+)\.(\d+)\.(\d+)", release).groups())


def candidates(table):
    """The releases of the supported series and flavours, newest first, with the packages that each needs and those of them that are
    missing."""
    ends = {suffix(flavour): flavour for flavour in FLAVOURS}
    pattern = rf"linux-modules-((\d+\.\d+)\.\d+\+deb13)-({'|'.join(ends)})"
    found = []
    for name in table:
        match = re.fullmatch(pattern, name)
        if not match or match[2] not in SUPPORTED:
            continue
        abi, base, flavour = match[1], match[2], ends[match[3]]
        release = f"{abi}-{match[3]}"
        version = table[name][0]
        image = f"linux-binary-{release}"
        if image not in table:
            # The signed package of a new version can be days late; the unsigned package has the same kernel.
            image = f"linux-binary-unsigned-{release}"
        needed = {n: version for n in (
            image, name, f"linux-headers-{release}", f"linux-headers-{abi}-common", f"linux-kbuild-{abi}",
            f"linux-base-{release}", f"linux-source-{base}")}
        needed |= {n: table[n][0] for n in ("busybox-static",) if n in table}
        missing = [n for n, v in needed.items() if v not in table.get(n, [])]
        found.append({"release": release, "series": joined(base, flavour), "version": version, "packages": needed, "missing": missing})
    return sorted(found, key=lambda c: version_key(c["release"]), reverse=True)


def wanted(series, info):
    """Whether a release is the kernel `series`, or, if that is a flavour without a number, of that flavour, or, if it is None, of the common
    one."""
    base, _, flavour = info["series"].partition("-")
    return base in SUPPORTED and series in (info["series"], flavour or None)


def resolve(series):
    """The newest complete release of `series`, or of the newest supported series that has one."""
    for c in candidates(package_table(series)):
        if not c["missing"] and wanted(series, c):
            return c
    die(f"Debian 13 backports have no complete {series or '7.2 or 7.3'} kernel (image, modules, headers, source) at present; "
        "`qemu/in-root.sh qemu/kernel.py list` shows what is missing")


def cached(series):
    """The newest release that is ready, or None. With one, no network is needed."""
    ready = []
    for mark in KERNELS.glob("*/ready"):
        info = json.loads(mark.read_text())
        if wanted(series, info):
            ready.append(info)
    default = KERNELS / "default"
    if series is None:
        # Without a series the first choice is kept. Otherwise a kernel that was prepared by name would become the default.
        if not default.exists():
            return None
        ready = [i for i in ready if i["series"] == default.read_text().strip()]
    return max(ready, key=lambda i: version_key(i["release"]), default=None)


def paths(info):
    base = KERNELS / info["release"]
    return {"RELEASE": info["release"], "SERIES": info["series"], "TREE": base / "src",
            "VMLINUZ": base / "vmlinuz", "MODULES": base / "image/usr/lib/modules" / info["release"]}


def download(info, base):
    """Downloads the packages; apt checks their signatures and shows its progress."""
    debs = base / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    unneeded = source_package(info) if prepared_source(info) else None
    missing = [f"{n}={v}" for n, v in info["packages"].items() if n != unneeded and not list(debs.glob(f"{n}_*.deb"))]
    if missing:
        say(f"downloading {len(missing)} packages of Linux {info['release']}")
    part = base / "debs.part"
    for package in missing:
        # An interrupted download leaves an incomplete file under its final name.
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        run("apt-get", *apt(info["series"]), "download", *AS_ROOT, package, cwd=part)
        for deb in part.iterdir():
            deb.rename(debs / deb.name)
    return debs


def source_package(info):
    return f"linux-source-{info['series'].split('-')[0]}"


def prepared_source(info):
    """The source tree of another flavour of the same version that is ready, or None."""
    name = source_package(info)
    for mark in KERNELS.glob("*/ready"):
        if json.loads(mark.read_text())["packages"].get(name) == info["packages"][name]:
            return mark.parent / "src"
    return None


def clean_copy(source, target, log):
    """Copies a source tree without its generated files. Hard links need no space: builds write to new files, so that the other tree does
    not change."""
    shutil.rmtree(target, ignore_errors=True)
    run("cp", "-al", source, target, quiet=log)
    run("make", "-C", target, "mrproper", quiet=log)


def one_deb(debs, name):
    return next(debs.glob(f"{name}_*.deb"))


def unpack_image(info, debs, base):
    if (base / "image").exists():
        return
    say("unpacking image, modules and headers")
    tmp = base / "image.tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir()
    for name in info["packages"]:
        if not name.startswith("linux-source"):
            run("dpkg-deb", "-x", one_deb(debs, name), tmp)
    tmp.rename(base / "image")


def unpack_source(info, debs, base):
    if (base / "src.unpacked").exists() or (base / "src").exists():
        return
    tmp = base / "src.tmp"
    other = prepared_source(info)
    if other:
        say(f"copying the kernel source from {other}")
        clean_copy(other, tmp, base / "copy.log")
        tmp.rename(base / "src.unpacked")
        return
    say("unpacking the kernel source (1.8 GB)")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir()
    deb = one_deb(debs, source_package(info))
    run("bash", "-o", "pipefail", "-c",
        f"dpkg-deb --fsys-tarfile {deb} | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | xz -dc -T0 "
        f"| tar -x -C {tmp} --strip-components=1")
    tmp.rename(base / "src.unpacked")


def find_file(root, *patterns):
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                return path
    die(f"the kernel packages have no file {patterns[0]} under {root}")


def has(tree, option):
    """Whether the configuration of a prepared tree has an option, built in or as a module."""
    return re.search(rf"^CONFIG_{option}=[ym]$", (tree / ".config").read_text(), re.M) is not None


def prepare(info, base):
    """Prepares the source tree for building modules; takes 90 s on two processors."""
    if (base / "src").exists():
        return
    release = info["release"]
    tree = base / "src.unpacked"
    headers = base / "image/usr/src" / f"linux-headers-{release}"
    for name in (".config", "Module.symvers"):
        find_file(headers, name)
    say("preparing the kernel tree for Rust modules (a minute or two)")
    log = base / "prepare.log"
    log.unlink(missing_ok=True)
    final = base / "src"
    # Generated files contain absolute paths, so the tree gets its final name before it is prepared.
    tree.rename(final)
    run(TREE_SCRIPT, "prepare", final, headers, release, quiet=log)


def ensure(series, refresh=False):
    if series is not None and series not in (*NAMES, *filter(None, FLAVOURS)):
        die(f"KERNEL={series} is not supported; choose one of {', '.join(NAMES)} or leave it out")
    KERNELS.mkdir(parents=True, exist_ok=True)
    info = None if refresh else cached(series)
    if info:
        return info
    with open(CACHE / ".lock-kernel", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        info = None if refresh else cached(series)
        if info:
            return info
        start = time.monotonic()
        say("choosing a kernel from Debian 13 backports")
        info = resolve(series)
        base = KERNELS / info["release"]
        base.mkdir(parents=True, exist_ok=True)
        if not (base / "ready").exists():
            if not (base / "src.unpacked").exists():
                need_space(base, 6)
            say(f"Linux {info['release']}")
            # A run that failed or was killed may have left a half-prepared tree under the final name.
            if (base / "src").exists():
                (base / "src").rename(base / "src.unpacked")
            debs = download(info, base)
            unpack_source(info, debs, base)
            unpack_image(info, debs, base)
            prepare(info, base)
            vmlinuz = find_file(base / "image", f"usr/lib/modules/{info['release']}/vmlinuz*", "boot/vmlinuz*")
            shutil.copy(vmlinuz, base / "vmlinuz")
            tmp = base / "ready.tmp"
            tmp.write_text(json.dumps(info, indent=1) + "\n")
            tmp.rename(base / "ready")
            shutil.rmtree(debs)
            say(f"Linux {info['release']} ready in {time.monotonic() - start:.0f} s: {base}")
        if series is None:
            (KERNELS / "default").write_text(info["series"] + "\n")
        return info


def main():
    if not os.environ.get("RXE_IN_ROOT"):
        die("this runs inside the toolchain root: qemu/in-root.sh qemu/kernel.py …")
    args = sys.argv[1:]
    verb = args[0] if args else ""
    series = (args[1] if len(args) > 1 else "") or None
    if verb == "ensure":
        print(ensure(series)["release"])
    elif verb == "refresh":
        print(ensure(series, refresh=True)["release"])
    elif verb == "show":
        for name, value in paths(ensure(series)).items():
            print(f"{name}={value}")
    elif verb == "list":
        for c in (c for series in ("", "arm64") for c in candidates(package_table(series))):
            print(c["release"], "complete" if not c["missing"] else "lacks " + " ".join(c["missing"]))
    else:
        die(__doc__)


if __name__ == "__main__":
    main()
