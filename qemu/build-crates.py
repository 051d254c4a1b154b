#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Builds the tests and examples of the Rust crates that use verbs, as they are on crates.io, for the suite `crates`.

qemu/build-crates.py    writes out/crates/CRATE/PROGRAM: `unit`, the tests of the library, those of tests/, and the examples

Runs inside the toolchain root.
"""
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kernel import CACHE

CLONE = Path(__file__).resolve().parent.parent
OUT = CLONE / "out/crates"

CRATES = {"ibverbs": "0.9.2", "sideway": "0.4.3"}
# Dependencies whose version in the crate's Cargo.lock needs a newer compiler than Debian's.
OLDER = {"sideway": {"home": "0.5.11"}}
# This one runs the compiler, to check that invalid programs are rejected: it uses no device.
NOT_BUILT = {"compiletest"}


def cargo(*arguments, cwd, **options):
    return subprocess.run(["cargo", *arguments], cwd=cwd, check=True, **options)


def sources(work):
    """Downloads the crates and copies their sources to folders of their own, outside of the workspace of this clone."""
    probe = work / "probe"
    (probe / "src").mkdir(parents=True)
    (probe / "src/lib.rs").touch()
    (probe / "Cargo.toml").write_text('[package]\nname = "probe"\nedition = "2021"\n[dependencies]\n'
                                      + "".join(f'{name} = "={version}"\n' for name, version in CRATES.items()))
    cargo("fetch", "--quiet", cwd=probe)
    found = json.loads(cargo("metadata", "--format-version", "1", "--offline", cwd=probe, stdout=subprocess.PIPE).stdout)
    for package in found["packages"]:
        if CRATES.get(package["name"]) == package["version"]:
            shutil.copytree(Path(package["manifest_path"]).parent, work / package["name"])


def build(name, folder):
    """Builds the tests and examples of a crate and yields their names and paths."""
    for dependency, version in OLDER.get(name, {}).items():
        cargo("update", "--quiet", dependency, "--precise", version, cwd=folder)
    tests = [f"--test={path.stem}" for path in sorted((folder / "tests").glob("*.rs")) if path.stem not in NOT_BUILT]
    for what in (["test", "--no-run", "--lib", *tests], ["build", "--examples"]):
        out = cargo(*what, "--locked", "--release", "--message-format=json", cwd=folder, stdout=subprocess.PIPE).stdout
        for message in map(json.loads, out.splitlines()):
            if message.get("executable"):
                yield "unit" if "lib" in message["target"]["kind"] else message["target"]["name"], Path(message["executable"])


def main():
    if "RXE_IN_ROOT" not in os.environ:
        os.execv(CLONE / "qemu/in-root.sh", ["in-root.sh", __file__])
    os.environ["CARGO_TARGET_DIR"] = str(CACHE / "target/crates")
    work = CACHE / "target/crates-source"
    # Clones share the folders.
    with open(CACHE / ".lock-crates", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(OUT, ignore_errors=True)
        try:
            sources(work)
            for name in CRATES:
                (OUT / name).mkdir(parents=True)
                for program, path in build(name, work / name):
                    shutil.copy(path, OUT / name / program)
                    print(f"{name}/{program}")
        except (subprocess.CalledProcessError, OSError) as error:
            shutil.rmtree(OUT, ignore_errors=True)
            sys.exit(f"error: the crates cannot be built: {error}; crates that are not in the cache folder yet need the network")


if __name__ == "__main__":
    main()
