# SPDX-License-Identifier: GPL-2.0
"""Boots with Secure Boot: the variables of the firmware, the files on its system partition, and the answers to MokManager.

There are two ways. With a key of the test in the firmware's database `db`, the firmware verifies the kernel, which is signed with that key.
With the keys of Microsoft there, as computers are delivered, it verifies shim, and shim verifies GRUB and the kernel, which are those of
Debian; the owner of the machine enrols a key as a MOK: `mokutil --import` leaves it in a variable, and at the next boot shim starts
MokManager, which asks for the password.
"""
import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import disk  # noqa: E402
import packages  # noqa: E402

FIRMWARE = Path("/usr/share/OVMF")
CODE = FIRMWARE / "OVMF_CODE_4M.secboot.fd"
# The owner of the entries of the firmware's databases of keys: any GUID.
OWNER = "2d3b5a57-6f7d-4c6b-8a0e-5d4f0a9e7c11"
# Where the firmware looks for a loader, where that looks for the next programs, and where GRUB of Debian looks for its configuration.
PARTITION = {
    "EFI/BOOT/BOOTX64.EFI": "/usr/lib/shim/shimx64.efi.signed",
    "EFI/BOOT/grubx64.efi": "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
    "EFI/BOOT/mmx64.efi": "/usr/lib/shim/mmx64.efi.signed",
}
GRUB = "EFI/debian/grub.cfg"
PASSWORD = "password of the MOK"
ENTER, DOWN = b"\r", b"\x1b[B"
# What MokManager shows, in this order, and the keys that are pressed then. docs/install.md says the same.
SCREENS = (
    ("Press any key to perform MOK management", ENTER),
    ("Enroll MOK", DOWN + ENTER),
    ("View key 0", DOWN + ENTER),
    ("Enroll the key(s)?", DOWN + ENTER),
    ("Password:", PASSWORD.encode() + ENTER),
    ("Reboot", ENTER),
)
# A screen is complete when nothing has been written for this time. The limit is for each screen, and for the restart after the last one.
QUIET_SECONDS, SCREEN_SECONDS = 0.5, 300


def own_firmware(files, key, out):
    """The files of a boot with a key of the test: variables of the firmware that have the key, and the kernel signed with it."""
    variables, vmlinuz = out / "firmware.fd", out / "vmlinuz-signed"
    packages.run("virt-fw-vars", "-i", FIRMWARE / "OVMF_VARS_4M.fd", "-o", variables, "--set-pk", OWNER, key.certificate,
                 "--add-kek", OWNER, key.certificate, "--add-db", OWNER, key.certificate, "--sb")
    packages.run("sbsign", "--key", key.key, "--cert", key.certificate, "--output", vmlinuz, files["VMLINUZ"])
    return {"VARIABLES": variables, "SIGNED_VMLINUZ": vmlinuz}


def key_of_dkms(system, out):
    """The key that DKMS has made on a system disk, in the files that own_firmware() expects."""
    key = packages.Key(out, "dkms")
    for name, path in (("mok.key", key.key), ("mok.pub", key.certificate.with_suffix(".der"))):
        packages.run("debugfs", "-R", f"dump /var/lib/dkms/{name} {path}", system)
    packages.run("openssl", "x509", "-inform", "DER", "-in", key.certificate.with_suffix(".der"), "-out", key.certificate)
    return key


def stock_firmware(files, out):
    """The files of a boot by shim: variables of the firmware with the keys of Microsoft, and a system partition with Debian's programs."""
    variables, partition = out / "firmware-shim.fd", out / "partition"
    # Without these variables the firmware reads keys from the serial line as well, not only from the keyboard.
    packages.run("virt-fw-vars", "-i", FIRMWARE / "OVMF_VARS_4M.ms.fd", "-o", variables, *(
        word for name in ("ConIn", "ConOut", "ErrOut") for word in ("--delete", name)))
    for path, source in PARTITION.items():
        (partition / path).parent.mkdir(parents=True, exist_ok=True)
        packages.run("debugfs", "-R", f"dump {source} {partition / path}", files["DISK"])
    return {"VARIABLES": variables, "PARTITION": partition}


def configure(partition, release, line):
    """Writes the configuration of GRUB, which loads the kernel and the initrd of the system disk."""
    path = partition / GRUB
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"search --no-floppy --label {disk.LABEL} --set=root\n"
                    f"linux /boot/vmlinuz-{release} {line}\n"
                    f"initrd /boot/initrd.img-{release}\n"
                    "boot\n")


def options(variables):
    """Options of QEMU: the firmware protects its variables from the kernel by the system management mode."""
    return ["-global", "driver=cfi.pflash01,property=secure,value=on", "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={CODE}",
            "-drive", f"if=pflash,format=raw,unit=1,file={variables}"]


def partition_options(partition):
    """Options of QEMU for the system partition, from which the firmware boots."""
    return ["-drive", f"if=none,id=partition,format=raw,readonly=on,file=fat:{partition}",
            "-device", "virtio-blk-pci,drive=partition,addr=0x9,bootindex=0"]


def plain(screen):
    """The text that a terminal shows, without control sequences; a space for those that move the cursor."""
    return re.sub(r"[\x00-\x20]+", " ", re.sub(r"\x1b(\[[0-9;?=]*[A-Za-z]|.)", " ", screen))


def enrol(line, log):
    """Boots a machine whose serial line is standard input and output, and answers MokManager. Returns why that failed, or None."""
    start = last = time.monotonic()
    shown = b""
    with open(log, "wb") as console, open(log.with_suffix(".err"), "wb") as errors:
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0)
        os.set_blocking(process.stdout.fileno(), False)
        rest = list(SCREENS)
        try:
            while process.poll() is None:
                if time.monotonic() - start > SCREEN_SECONDS:
                    return f"MokManager did not show \"{rest[0][0]}\"" if rest else "the machine did not restart"
                if part := process.stdout.read():
                    console.write(part)
                    shown, last = shown + part, time.monotonic()
                elif rest and time.monotonic() - last > QUIET_SECONDS and rest[0][0] in plain(shown.decode(errors="replace")):
                    # The machine may have ended meanwhile, which the next turn finds out.
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.write(rest[0][1])
                        rest.pop(0)
                    start, shown = time.monotonic(), b""
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdin.close()
            process.stdout.close()
    if rest:
        return f"the machine ended before MokManager showed \"{rest[0][0]}\""
    if process.returncode:
        return f"QEMU failed: {log.with_suffix('.err').read_text(errors='replace')[-500:].strip()}"
    return None
