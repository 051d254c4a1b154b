#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The disks of a machine with an installed Debian 13: that of the system, its writable copy, and one with the files of a test.

A system disk has what Debian's installer leaves on a small server: the packages of the priorities required and important, the kernel of
backports with an initrd of initramfs-tools, systemd, ifupdown with DHCP, and the RDMA tools of Debian. A second one has shim and GRUB as
well, a third one NetworkManager and an NFS server, and no network device in the configuration of ifupdown. All are in the cache folder;
their names have a hash of what they were made from.

disk.py TREE RELEASE FOLDER    writes such a disk of a tree that has these packages, and its kernel RELEASE, to FOLDER
"""
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import image  # noqa: E402
import kernel  # noqa: E402
import machine  # noqa: E402

RECIPE = "1"
SIZE = "4G"
LABEL = "root"
# What the installer writes beside the packages. `allow-hotplug` and DHCP are its defaults.
INTERFACES = "".join(f"allow-hotplug {name}\niface {name} inet dhcp\n" for name in ("enp0s2", "enp0s3"))
INTERFACES_FILE = "etc/network/interfaces.d/ethernet"
SETTINGS = {
    "etc/fstab": f"LABEL={LABEL} / ext4 errors=remount-ro 0 1\n",
    "etc/hostname": "host\n",
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 host\n::1 localhost ip6-localhost ip6-loopback\n",
    INTERFACES_FILE: INTERFACES,
    # Without an identifier systemd takes a boot for the first one, and enables units.
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
}
# The kinds of system disks: the packages that they have beside those of packages.txt, and their settings.
KINDS = {
    "server": ((), SETTINGS),
    "shim": (("grub-efi-amd64-signed", "keyutils", "mokutil", "shim-signed"), SETTINGS),
    "managers": (("network-manager", "nfs-kernel-server"), {path: text for path, text in SETTINGS.items() if path != INTERFACES_FILE}),
}


def bootstrap(folder, names, variant, what):
    """Makes a tree of Debian 13 with these packages; apt takes them from the mirror of the toolchain root."""
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    with open(log, "ab") as output, kernel.Progress(log):
        done = subprocess.run(["mmdebstrap", "--mode=root", f"--variant={variant}", '--aptopt=Acquire::Languages "none"',
                               "--include=" + ",".join(names), image.DEBIAN, folder, "-"], stdout=output, stderr=subprocess.STDOUT,
                              input=image.sources(image.DEBIAN).encode())
    if done.returncode:
        sys.stderr.write(log.read_text(errors="replace")[-3000:])
        kernel.die(f"cannot install Debian 13 for {what}: mmdebstrap failed (all of its output: {log}); check the network, then run the same "
                   "command again")


def system(info, kind="server"):
    """The system disk of a kind with a kernel that is prepared, as {name: path}: DISK, VMLINUZ, INITRD."""
    release = info["release"]
    further, settings = KINDS[kind]
    version = next(version for name, version in info["packages"].items() if name.startswith("linux-modules-"))
    # The kernel needs a newer linux-base than that of Debian 13.
    names = [*image.packages(HERE / "packages.txt"), *further, f"linux-base/{image.DEBIAN}-backports", f"linux-image-{release}={version}"]
    base = image.IMAGES / f"installed-{image.digest(RECIPE, SIZE, json.dumps(settings), *names)}"
    found = files(base)
    if base.exists():
        return found
    image.IMAGES.mkdir(parents=True, exist_ok=True)
    kernel.need_space(image.IMAGES, 5)
    kernel.say(f"installing Debian 13 with Linux {release} on a disk (two minutes)")
    folder = image.IMAGES / "installed.tmp.d"
    bootstrap(folder, names, "important", "the test machine")
    write(folder, base, release, SIZE, settings)
    shutil.rmtree(folder)
    return found


def files(base):
    """The files of a system disk."""
    return {"DISK": base / "disk.ext4", "VMLINUZ": base / "vmlinuz", "INITRD": base / "initrd.img"}


def write(folder, base, release, size, settings):
    """Writes the disk of a tree, and the files of its kernel, to the folder `base`."""
    for path, text in settings.items():
        (folder / path).write_text(text)
    part = base.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    shutil.copy(kernel.find_file(folder, f"boot/vmlinuz-{release}"), part / "vmlinuz")
    shutil.copy(kernel.find_file(folder, f"boot/initrd.img-{release}"), part / "initrd.img")
    (part / "release").write_text(release)
    make_disk(folder, part / "disk.ext4", size, LABEL)
    part.rename(base)


def make_disk(folder, path, size, label):
    """Makes a disk with the files of a folder."""
    kernel.run("mkfs.ext4", "-q", "-F", "-L", label, "-d", folder, path, size, quiet=image.IMAGES / "mkfs.log")


def layer(below, path):
    """Makes a copy-on-write layer above a disk. QEMU itself does so, because the toolchain root has no qemu-img."""
    path.unlink(missing_ok=True)
    size = below.stat().st_size
    commands = (
        ("blockdev-create", {"job-id": "file", "options": {"driver": "file", "filename": str(path), "size": 0}}),
        ("blockdev-add", {"driver": "file", "node-name": "layer", "filename": str(path)}),
        ("blockdev-create", {"job-id": "layer", "options": {"driver": "qcow2", "file": "layer", "size": size, "backing-file": str(below),
                                                            "backing-fmt": "raw"}}),
    )
    process = subprocess.Popen([machine.QEMU, "-machine", "none", "-nodefaults", "-display", "none", "-qmp", "stdio"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)

    def tell(name, arguments):
        """Runs a command; returns its result."""
        process.stdin.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        process.stdin.flush()
        for answer in map(json.loads, process.stdout):
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                fail(answer["error"]["desc"])
        return fail("it ended")

    def fail(why):
        process.kill()
        process.wait()
        kernel.die(f"QEMU cannot make {path}: {why}")

    with process:
        tell("qmp_capabilities", {})
        for name, arguments in commands:
            tell(name, arguments)
            if "job-id" in arguments:
                # Events about the job may precede the result of the command that starts it, so that it is asked for.
                while (job := tell("query-jobs", {})[0])["status"] != "concluded":
                    time.sleep(0.05)
                if "error" in job:
                    fail(job["error"])
                tell("job-dismiss", {"id": arguments["job-id"]})
        tell("quit", {})


def main():
    tree, release, folder = sys.argv[1:]
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # With the compilers of DKMS.
    write(Path(tree), folder, release, "12G", SETTINGS)


if __name__ == "__main__":
    main()
