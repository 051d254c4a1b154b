# SPDX-License-Identifier: GPL-2.0
"""The packages that a run installs: those under test, the same with a newer version, the module for kernels that the machine does not have,
and the module signed with keys that it has or not; and the check by lintian."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import disk  # noqa: E402
import image  # noqa: E402
import kernel  # noqa: E402

PREFIX = "rxe-rs-modules-"


def names(release):
    """The packages that `make deb` builds for a kernel."""
    return (PREFIX + release, "rxe-rs-dkms", "rxe-rs-tools", "librxe-rs1", "librxe-rs-dev")


def find(folder, name):
    """The file of a package; the newest one if there are several."""
    return max(folder.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime, default=None)


def release_in(folder):
    """The release of the kernel that the newest package of a module in a folder is for. Exits if there is none."""
    deb = find(folder, PREFIX + "*")
    if not deb:
        kernel.die(f"{folder} has no package {PREFIX}…; build the packages: make deb FLAVOUR=arm64")
    return deb.name.split("_")[0].removeprefix(PREFIX)


def check(folder, release):
    """Exits if a package is missing."""
    missing = [name for name in names(release) if not find(folder, name)]
    if missing:
        kernel.die(f"{folder} has no package {missing[0]}; build the packages: make deb")


def run(*arguments, **options):
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        kernel.die(f"failed: {' '.join(map(str, arguments))}: {done.stdout.strip()}")
    return done.stdout


def modinfo(module, changes):
    """Changes fields of the information that modprobe reads from a module, such as `version`."""
    with tempfile.TemporaryDirectory() as folder:
        section = Path(folder) / "modinfo"
        run("objcopy", "--dump-section", f".modinfo={section}", module)
        fields = section.read_bytes().split(b"\0")
        for name, value in changes.items():
            old = [field for field in fields if field.startswith(f"{name}=".encode())]
            if not old:
                kernel.die(f"{module} has no field {name}; build it again: make")
            fields[fields.index(old[0])] = f"{name}={value}".encode()
        section.write_bytes(b"\0".join(fields))
        run("objcopy", "--update-section", f".modinfo={section}", module)


def newer(deb, version, out):
    """Builds a package with the contents of another one and a newer version, which the module in it also has."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        run("dpkg-deb", "--raw-extract", deb, tree)
        control = tree / "DEBIAN/control"
        old = re.search(r"^Version: (.*)$", control.read_text(), re.M)[1]
        control.write_text(re.sub(rf"^Version: .*$|(?<=\(= ){re.escape(old)}(?=\))",
                                  lambda found: f"Version: {version}" if found[0].startswith("V") else version, control.read_text(), flags=re.M))
        for module in tree.rglob("rxe_rs.ko"):
            modinfo(module, {"version": version})
            sums = tree / "DEBIAN/md5sums"
            path = str(module.relative_to(tree))
            lines = [line for line in sums.read_text().splitlines() if not line.endswith(f"  {path}")]
            sums.write_text("\n".join([*lines, run("md5sum", path, cwd=tree).strip()]) + "\n")
        run("dpkg-deb", "--root-owner-group", "--build", tree, out)


def others(release):
    """Releases that are not that of the machine: a later one, and another flavour."""
    later = re.sub(r"^(\d+\.\d+)\.\d+", r"\1.999", release)
    flavour = release.replace("-amd64", "-cloud-amd64") if "-cloud-" not in release else release.replace("-cloud-", "-")
    return {"OTHER_RELEASE": later, "OTHER_FLAVOUR": flavour}


def variants(folder, release, module, out):
    """Fills the folders `packages`, `newer` and `other` of `out`. Returns the settings of cases.sh that say what they have."""
    deb = find(folder, "rxe-rs-tools")
    version = run("dpkg-deb", "--field", deb, "Version").strip()
    if not module.exists():
        kernel.die(f"there is no {module}; build it: make")
    settings = {"VERSION": run("modinfo", "-F", "version", module).strip(), "NEWER": f"{version}.1", **others(release)}
    for name in ("packages", "newer", "other"):
        (out / name).mkdir()
    for name in names(release):
        if name != "rxe-rs-dkms" and name != "librxe-rs-dev":
            shutil.copy(find(folder, name), out / "packages")
            newer(find(folder, name), settings["NEWER"], out / "newer")
    for other in others(release).values():
        with tempfile.TemporaryDirectory() as work:
            copy = shutil.copy(module, Path(work) / "rxe_rs.ko")
            magic = run("modinfo", "-F", "vermagic", copy).strip()
            modinfo(copy, {"vermagic": " ".join([other, *magic.split()[1:]])})
            run(HERE.parent / "build-deb.sh", "-m", copy, "-o", work)
            shutil.copy(find(Path(work), PREFIX + other), out / "other")
    return settings


class Key:
    """A private key and its certificate: two files in a folder."""

    def __init__(self, folder, name):
        self.name, self.key, self.certificate = name, folder / f"{name}.key", folder / f"{name}.pem"

    def make(self):
        """Makes the two files; returns this key."""
        run("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", f"/CN={self.name}/",
            "-keyout", self.key, "-out", self.certificate)
        return self


def signed(folder, release, module, key, certificate):
    """Puts the package of the module, signed with a key, into a folder that it makes."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as work:
        files = {"SIGN_KEY": str(key), "SIGN_CERT": str(certificate)}
        run(HERE.parent / "build-deb.sh", "-m", module, "-o", work, env=os.environ | files)
        shutil.copy(find(Path(work), PREFIX + release), folder)


def lintian():
    """A tree of Debian 13 with lintian, in the cache folder."""
    folder = image.IMAGES / f"lintian-{image.digest('1')}"
    if not folder.exists():
        image.IMAGES.mkdir(parents=True, exist_ok=True)
        kernel.need_space(image.IMAGES, 2)
        kernel.say("installing lintian (a minute)")
        part = image.IMAGES / "lintian.tmp.d"
        disk.bootstrap(part, ["lintian"], "apt", "lintian")
        part.rename(folder)
    return folder


def lint(folder, release, out, verdicts, label=""):
    """Adds a verdict for each package: lintian must not report an error. `label`: what its name begins with."""
    root = lintian()
    place = root / "tmp/packages"
    for name in names(release):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        deb = shutil.copy(find(folder, name), place)
        done = subprocess.run(["chroot", root, "/usr/bin/env", "LC_ALL=C.UTF-8", "lintian", "--allow-root", "--tag-display-limit", "0",
                               f"/tmp/packages/{Path(deb).name}"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with open(out / "lintian.log", "a") as log:
            log.write(f"==== {label}{name}\n{done.stdout}")
        errors = [line for line in done.stdout.splitlines() if line.startswith("E:")]
        # Its status is 2 if there are errors, and 1 if it could not run.
        verdicts.add(done.returncode == 0 and not errors, f"lintian.{label}{name.removesuffix('-' + release)}",
                     errors or done.stdout.splitlines()[-5:])
    shutil.rmtree(place)
