#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Makes a prepared machine for rxe-ci (docs/ci.md): a folder with all that a machine boots from. Enters the toolchain root by itself.

ci-machine.py [--kernel SERIES] [--uml] [--out DIR] [--tar]

The machine is DIR/RELEASE (default DIR: out/ci), with the module that was built last for that kernel; with --uml it is DIR/RELEASE-uml, for
User Mode Linux, whose kernel is built if need be. --tar also packs it as DIR/rxe-ci-NAME.tar.zst. Prints the path of the folder. A machine
that is up to date is left as it is; of another one each file is written under a temporary name and renamed, so that a machine that runs from
the folder keeps its files.
"""
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
GUEST = CLONE / "tools/rxe-ci/guest"
# The format of machine.json and of the messages between rxe-ci and guest/init. tools/rxe-ci/src/prepared.rs has the same number.
FORMAT = 2


def is_copy(target, source):
    """Whether a file is a copy of another one, by size, time and mode."""
    try:
        old, new = target.stat(), source.stat()
    except FileNotFoundError:
        return False
    return (old.st_size, old.st_mtime_ns, old.st_mode) == (new.st_size, new.st_mtime_ns, new.st_mode)


def install(source, target):
    """Copies a file, with holes for its zeros."""
    target.parent.mkdir(parents=True, exist_ok=True)
    tmp = target.with_name(target.name + ".tmp")
    subprocess.run(["cp", "--sparse=always", "--preserve=timestamps,mode", source, tmp], check=True)
    tmp.rename(target)


def replace(path, text):
    """Writes a file anew."""
    tmp = path.with_name(path.name + ".tmp")
    tmp.write_text(text)
    tmp.rename(path)


def stripped(module, folder):
    """A copy of the module without debugging information, of the same time."""
    copy = folder / "rxe_rs.ko"
    shutil.copy(module, copy)
    subprocess.run(["strip", "--strip-debug", copy], check=True)
    times = module.stat()
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    return copy


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def field(module, name):
    return subprocess.run(["modinfo", "-F", name, module], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def below(folder, prefix):
    """The files below a folder, each with its name in the machine."""
    return {f"{prefix}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*"))
            if path.is_file() and path.parent.name != "__pycache__"}


def parts(boot):
    """What a machine boots from besides the module: the name of each file in the machine and where it is."""
    if "KERNEL" in boot:
        return {"linux": boot["KERNEL"], "root.ext4": boot["ROOTFS"], "guest/uml-init": HERE / "uml/guest-init", **below(GUEST, "guest"),
                **below(boot["MODULES"], "modules")}
    return {"vmlinuz": boot["VMLINUZ"], "initramfs": boot["INITRD"], "root.ext4": boot["ROOTFS"], "modules.ext4": boot["MODULES_IMAGE"],
            **below(GUEST, "guest")}


def install_all(sources, folder):
    """Copies the files that have changed, by their names in the folder, and writes the checksums of all. If it is interrupted, there are no
    checksums, so that the next run writes them even if it finds nothing to copy."""
    sums = folder / "SHA256SUMS"
    for name, source in sources.items():
        if not is_copy(folder / name, source):
            sums.unlink(missing_ok=True)
            install(source, folder / name)
    if not sums.exists():
        replace(sums, "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(sources)))


def make(boot, module, folder):
    """Makes or updates the machine of a kernel; `boot`: what image.ensure() or that of User Mode Linux returns."""
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "work.tmp.d"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    sources = {"rxe_rs.ko": stripped(module, work), **parts(boot)}
    install_all(sources, folder)
    shutil.rmtree(work)
    description = {"format": FORMAT, "kind": "uml" if "KERNEL" in boot else "qemu", "release": boot["RELEASE"], "series": boot["SERIES"],
                   "module_version": field(folder / "rxe_rs.ko", "version"),
                   "sizes": {name: (folder / name).stat().st_size for name in sources if "/" not in name}}
    replace(folder / "machine.json", json.dumps(description, indent=2) + "\n")
    return folder


def boot_files(options):
    """The files that a machine boots from, where the module for its kernel is built, and the command for that up to the series."""
    import image
    import kernel
    if options.uml:
        from uml import machine
        boot = machine.ensure(options.kernel or None)
        return {**boot, "RELEASE": boot["MODULES"].name}, CLONE / f"out/uml-{boot['SERIES']}/rxe_rs.ko", "qemu/build-module.sh -u -k "
    boot = image.ensure(options.kernel or None)
    if boot["SHARE"] != "9p":
        kernel.die(f"Linux {boot['RELEASE']} has no 9P file system, by which rxe-ci shares folders; take the flavour amd64 or rt-amd64")
    return boot, CLONE / "out" / boot["SERIES"] / "rxe_rs.ko", "make KERNEL="


def pack(folder):
    """Packs a machine; returns the path of the archive."""
    target = folder.parent / f"rxe-ci-{folder.name}.tar.zst"
    tmp = target.with_suffix(".tmp")
    subprocess.run(["tar", "--create", "--sparse", "--owner=0", "--group=0", "--use-compress-program=zstd -T0", "--file", tmp,
                    "-C", folder.parent, folder.name], check=True)
    tmp.rename(target)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="")
    parser.add_argument("--uml", action="store_true")
    parser.add_argument("--out", type=Path, default=CLONE / "out/ci")
    parser.add_argument("--tar", action="store_true")
    options = parser.parse_args()
    if not os.environ.get("RXE_IN_ROOT"):
        os.execv(HERE / "in-root.sh", ["in-root.sh", str(Path(__file__).resolve()), *sys.argv[1:]])
    sys.path.insert(0, str(HERE))
    import kernel
    kernel.check_visible(options.out.resolve())
    boot, module, build = boot_files(options)
    build = f"build it: {build}{boot['SERIES']}"
    if not module.exists():
        kernel.die(f"there is no {module}; {build}")
    if field(module, "vermagic").split()[0] != boot["RELEASE"]:
        kernel.die(f"{module} is not for Linux {boot['RELEASE']}; {build}")
    kernel.need_space(CLONE, 1)
    name = boot["RELEASE"] + ("-uml" if options.uml else "")
    folder = make(boot, module, options.out.absolute() / name)
    if options.tar:
        kernel.say(f"packed {pack(folder)}")
    print(folder)


if __name__ == "__main__":
    main()
