#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# bootstrap.sh [TARGET]: creates the toolchain root, if it does not exist: a Debian 13 tree in the cache folder with the compilers that
# Debian builds its kernels with, QEMU and packet decoders. All other scripts run inside it, so that the host needs no package but
# mmdebstrap, which this script installs. TARGET is the make target that error messages name. It can be interrupted: the root gets its
# final name when it is complete.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
. "$here/root-recipe"

[ -e "$root/.complete" ] && exit 0

[ "$(id -u)" = 0 ] || die "setting up needs root (chroot, mounts). Run it as root: sudo make $*"
command -v apt-get >/dev/null || die "setting up needs apt, which this machine does not have; use a Debian 12 or 13 host"

mkdir -p "$cache" || die "cannot create the cache folder $cache; set RXE_RS_CACHE to a folder with 14 GB free"
exec 9>"$cache/.lock-root"
flock -n 9 || { say "another set-up is running, waiting for it"; flock 9; }
[ -e "$root/.complete" ] && exit 0

free=$(df -Pk "$cache" | awk 'NR==2 { print int($4 / 1048576) }')
[ "$free" -ge 14 ] || die "$cache has $free GB free, 14 GB are needed; free some or set RXE_RS_CACHE to another disk"

if ! command -v mmdebstrap >/dev/null; then
	say "installing the Debian package mmdebstrap on this machine (the only one needed)"
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends mmdebstrap; } >&2 ||
		die "apt-get could not install mmdebstrap; see its messages above, then run the same command again"
fi

# Packages come from the mirror that this machine uses, or else from the default of mmdebstrap.
mirror=$(apt-get indextargets --format '$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)' 2>/dev/null |
	awk -F'|' '$1 == "Packages" && $2 == "Debian" && $3 == "Debian" { print $4; exit }')
packages=$(grep -v '^#' "$here/root-packages.txt" | sort -u | paste -sd,)

say "making the Debian 13 toolchain root (about 3 GB, a minute or two with a fast mirror)"
tmp=$cache/tmp-root.$$
# mmdebstrap mounts /proc and other file systems inside the new root. In a mount and a PID namespace of its own they are unmounted
# however it ends, so that the removal of an incomplete root never enters a mounted file system.
forget() { rm -rf --one-file-system "$@"; }
trap 'forget "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
forget "$cache"/tmp-root.*
alone() { unshare --mount --propagation private --pid --fork --kill-child --mount-proc -- "$@"; }
start=$(date +%s)
# Run by mmdebstrap with the path of the new root. The version is that of the same package for this architecture.
# shellcheck disable=SC2016
unpack='cd "$1/tmp"
	version=$(dpkg-query --admindir="$1/var/lib/dpkg" -W -f "\${Version}" "$unpacked:amd64")
	APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q -o APT::Sandbox::User=root download "$unpacked:$foreign=$version"
	dpkg-deb --fsys-tarfile "$unpacked"_*.deb | tar -xC "$1" ./usr/lib
	rm "$unpacked"_*.deb'
export foreign unpacked
debstrap() {
	alone mmdebstrap --mode=root --variant=apt --architectures="amd64,$foreign" --aptopt='Acquire::Languages "none"' --include="$packages" \
		--customize-hook="set -e; $unpack" "$suite" "$tmp" "$@" >&2 ||
		die "mmdebstrap failed; see its messages above, then run the same command again"
}
if [ -n "$mirror" ]; then
	for s in "$suite" "$updates" "$backports"; do
		printf 'deb %s %s main\n' "$mirror" "$s"
	done | debstrap -
else
	debstrap
	sed -n "s/ $suite / $backports /p" "$tmp/etc/apt/sources.list" >>"$tmp/etc/apt/sources.list"
fi
# In the root apt lists what there is for amd64, unless an option says otherwise (kernel.py).
echo 'APT::Architectures "amd64";' >>"$tmp/etc/apt/apt.conf"
touch "$tmp/.complete"
sync -f "$tmp" || true
mv "$tmp" "$root"
trap - EXIT
say "toolchain root ready in $(( $(date +%s) - start )) s: $root"
