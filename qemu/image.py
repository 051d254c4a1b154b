#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Creates the files that a test machine boots from, in the cache folder. Runs inside the toolchain root.

image.py [SERIES]    creates those that do not exist, and prints the paths of all as NAME=VALUE lines

- The root file system: an ext4 image of a small Debian 13, or of another suite, with stock rdma-core and its tools. Its name has a hash of
  the package list, but an image of Debian testing is not updated: `make distclean`, or deleting the image, makes the next run create
  one with the current packages.
- The modules image: the modules of the stock kernel, one image per release.
- The initramfs: busybox, the modules that are needed to mount the two images and the shared folder, and `guest-init`. Its name has a hash
  of guest-init and of the list of modules.

Files are written under a temporary name and renamed when they are complete.
"""
import fcntl
import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import kernel  # noqa: E402
import kernel_build  # noqa: E402

HERE = Path(__file__).resolve().parent
IMAGES = kernel.CACHE / "images"
RECIPE = "3"
DEBIAN = "trixie"
BOOT_MODULES = ("virtio_blk", "virtio_net", "ext4", "overlay")
# How a machine mounts the shared folder, with the modules for that. Debian's cloud kernels have no 9P.
SHARES = {"9p": ("9p", "9pnet_virtio"), "virtiofs": ("virtiofs",)}


def digest(*parts):
    joined = "\0".join(p if isinstance(p, str) else p.decode("latin1") for p in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]


def packages(path=HERE / "image-packages.txt"):
    """The packages of a list, one per line beside comments."""
    lines = path.read_text().splitlines()
    return sorted({line.strip() for line in lines if line.strip() and not line.startswith("#")})


def make_ext4(folder, target, slack_mib):
    """Creates an ext4 image of a folder with `slack_mib` MiB and a fifth of its size to spare."""
    used = int(subprocess.run(["du", "-sxm", "--apparent-size", folder], check=True, stdout=subprocess.PIPE,
                              text=True).stdout.split()[0])
    tmp = target.with_suffix(".tmp")
    tmp.unlink(missing_ok=True)
    kernel.run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", "-d", folder, tmp,
               f"{used + used // 5 + slack_mib}M", quiet=IMAGES / "mkfs.log")
    tmp.rename(target)


def sources(suite):
    """The apt sources of a suite: for Debian 13 those of the toolchain root, with updates and backports; else the same mirror."""
    own = Path("/etc/apt/sources.list").read_text()
    if suite == DEBIAN:
        return own
    lines = (line.split() for line in own.splitlines())
    return "".join(" ".join([*words[:2], suite, *words[3:]]) + "\n" for words in lines if words[2:3] == [DEBIAN])


def unpacked(folder):
    """Does what the maintainer scripts of packages would have done that tests need: they cannot run where the programs of the packages are
    those of another architecture."""
    for name in ("passwd", "group"):
        shutil.copy(folder / f"usr/share/base-passwd/{name}.master", folder / "etc" / name)
    shutil.copy(folder / "usr/share/libc-bin/nsswitch.conf", folder / "etc/nsswitch.conf")
    for link, program in (("awk", "mawk"), ("which", "which.debianutils")):
        (folder / "usr/bin" / link).symlink_to(program)


def rootfs(suite, more=(), architecture="amd64"):
    """The root file system with the programs of a Debian suite; `more`: packages in addition to the list."""
    names = sorted({*packages(), *more})
    foreign = architecture != "amd64"
    target = IMAGES / f"rootfs-{digest(RECIPE, *([] if suite == DEBIAN else [suite]), *([architecture] if foreign else []), *names)}.ext4"
    if target.exists():
        return target
    kernel.need_space(IMAGES, 3)
    kernel.say(f"making the test machines' root file system (Debian {suite} with stock rdma-core, about a minute)")
    folder = IMAGES / "rootfs.tmp.d"
    shutil.rmtree(folder, ignore_errors=True)
    log = IMAGES / "rootfs.log"
    log.unlink(missing_ok=True)
    # The package lists of a mirror of testing may be older than their validity; signatures are checked nevertheless.
    late = [] if suite == DEBIAN else ['--aptopt=Acquire::Check-Valid-Until "false"']
    # An unpacked tree has no essential packages unless they are named.
    variant = ["--variant=extract", f"--architectures={architecture}", "--include=?essential"] if foreign else ["--variant=apt"]
    kernel.run("mmdebstrap", "--mode=root", *variant, '--aptopt=Acquire::Languages "none"', *late,
               "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
               "--include=" + ",".join(names), suite, folder, "-", quiet=log, input=sources(suite).encode())
    if foreign:
        unpacked(folder)
    tests = folder / "usr/share/doc/rdma-core/tests"
    for packed in tests.glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    for top in ("share", "results"):
        (folder / top).mkdir(exist_ok=True)
    own_lib = folder / "lib"
    if own_lib.is_dir() and not own_lib.is_symlink():
        # As in Debian 11. The modules are mounted below /usr.
        (own_lib / "modules").symlink_to("../usr/lib/modules")
    (folder / "etc/hostname").write_text("rxe\n")
    (folder / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (folder / "etc/resolv.conf").unlink(missing_ok=True)
    make_ext4(folder, target, 64)
    shutil.rmtree(folder)
    kernel.say(f"root file system ready: {target.stat().st_size >> 20} MiB")
    return target


def built_modules_image(base, folder):
    """The modules image of a kernel of kernel_build.py, whose folder is `base`."""
    target = base / "modules.ext4"
    if not target.exists():
        make_ext4(folder, target, 16)
    return target


def modules_image(info):
    base = kernel.KERNELS / info["release"]
    target = base / "modules.ext4"
    if target.exists():
        return target
    kernel.run("depmod", "-b", base / "image/usr", "-F", kernel.find_file(
        base / "image", f"usr/lib/modules/{info['release']}/System.map", f"boot/System.map-{info['release']}"),
        info["release"], quiet=base / "depmod.log")
    folder = base / "image/usr/lib/modules" / info["release"]
    for link in ("build", "source"):
        (folder / link).unlink(missing_ok=True)
    make_ext4(folder, target, 16)
    return target


def share_of(tree):
    """The key of SHARES for a kernel."""
    return "9p" if kernel.has(tree, "9P_FS") else "virtiofs"


def boot_modules(info, share):
    """The files of BOOT_MODULES, of those that mount the shared folder, and of their dependencies, in load order. What is built into the
    kernel has none."""
    base = kernel.KERNELS / info["release"] / "image/usr"
    files = []
    for name in (*BOOT_MODULES, *SHARES[share]):
        listing = kernel.output("modprobe", "-d", base, "-S", info["release"], "--show-depends", name)
        for line in listing.splitlines():
            if line.startswith("insmod "):
                path = Path(line.split()[1])
                if path not in files:
                    files.append(path)
    return files


def initramfs(base, files, busybox="/bin/busybox"):
    """The initramfs in folder `base`, with busybox, `guest-init` and these modules, in load order."""
    init = (HERE / "guest-init").read_bytes()
    target = base / f"initramfs-{digest(RECIPE, init, *(path.name for path in files))}.cpio.gz"
    if target.exists():
        return target
    folder = base / "initramfs.tmp.d"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "modules").mkdir(parents=True)
    (folder / "bin").mkdir()
    shutil.copy(busybox, folder / "bin/busybox")
    (folder / "init").write_bytes(init)
    (folder / "init").chmod(0o755)
    names = []
    for path in files:
        name = path.name.removesuffix(".xz")
        data = path.read_bytes()
        (folder / "modules" / name).write_bytes(lzma.decompress(data) if path.suffix == ".xz" else data)
        names.append(name)
    (folder / "modules.list").write_text("\n".join(names) + "\n")
    listing = "\n".join(str(p.relative_to(folder)) for p in sorted(folder.rglob("*"))) + "\n"
    packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=folder, input=listing.encode(), check=True,
                            stdout=subprocess.PIPE).stdout
    tmp = target.with_suffix(".tmp")
    tmp.write_bytes(gzip.compress(packed, 1))
    tmp.rename(target)
    shutil.rmtree(folder)
    return target


def ensure(series, suite=DEBIAN, lockdep=False, more=(), container=None):
    """Prepares the files that a machine with the kernel of `series` and the programs of a Debian suite (and `more` packages) boots from;
    `lockdep`: with the kernel of that name of kernel_build.py in place of the stock one; `container`: a Debian suite, whose root file system
    is a further disk of the machine."""
    info = kernel.ensure(series)
    if lockdep:
        kernel_build.ensure(info["series"], "lockdep")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with open(kernel.CACHE / ".lock-image", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.environ.setdefault("PATH", "/usr/sbin:/usr/bin")
        architecture = kernel.architecture(info["series"])
        boot = {**kernel.paths(info), "ROOTFS": rootfs(suite, more, architecture)}
        if container:
            boot["CONTAINER"] = rootfs(container, architecture=architecture)
        if not lockdep:
            # The image first: modules_image() runs depmod, whose result boot_modules() needs.
            modules, share = modules_image(info), share_of(boot["TREE"])
            base = kernel.KERNELS / info["release"]
            own = [base / "image/usr/bin/busybox"] if architecture != "amd64" else []
            return {**boot, "SHARE": share, "MODULES_IMAGE": modules, "INITRD": initramfs(base, boot_modules(info, share), *own)}
        base, paths = kernel_build.folder(info, "lockdep"), kernel_build.paths(info, "lockdep")
        return {**boot, **paths, "SHARE": share_of(paths["TREE"]), "VMLINUZ": paths["KERNEL"],
                "MODULES_IMAGE": built_modules_image(base, paths["MODULES"]), "INITRD": initramfs(base, [])}


if __name__ == "__main__":
    for key, value in ensure((sys.argv[1:] + [""])[0] or None).items():
        print(f"{key}={value}")
