# SPDX-License-Identifier: GPL-2.0
"""Python packages from PyPI that suites run. They are unpacked in the cache folder, and need the network once."""
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kernel import CACHE, die


def ensure(requirement):
    """Returns the folder with the contents of the wheel of a requirement such as `name==1.2`, without those that it depends on."""
    folder = CACHE / "wheels" / requirement
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", work / "wheel",
                               requirement], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            die(f"pip cannot download {requirement}: {why[0]}; check the network, then run the same command again")
        for wheel in (work / "wheel").iterdir():
            zipfile.ZipFile(wheel).extractall(work / "contents")
        shutil.move(work / "contents", folder)
    return folder
