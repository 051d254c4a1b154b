#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# bootstrap.sh: creates the toolchain root, if it does not exist: a Debian 13 tree in the cache folder with the compilers that Debian
# builds its kernels with, QEMU and packet decoders. All other scripts run inside it, so that the host needs no package but mmdebstrap,
# which this script installs. It can be interrupted: the root gets its final name when it is complete.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
. "$here/roots.sh"
. "$here/root-recipe"

[ -e "$root/.complete" ] && exit 0

able 14
exec 9>"$cache/.lock-root"
flock -n 9 || { say "another set-up is running, waiting for it"; flock 9; }
[ -e "$root/.complete" ] && exit 0

enough_space 14
need_mmdebstrap
packages=$(grep -v '^#' "$here/root-packages.txt" | sort -u | paste -sd,)

say "making the Debian 13 toolchain root (about 3 GB, a minute or two with a fast mirror)"
tmp=$cache/tmp-root.$$
forgotten "$tmp"
forget "$cache"/tmp-root.*
start=$(date +%s)
# Run by mmdebstrap with the path of the new root. The version is that of the same package for this architecture.
# shellcheck disable=SC2016
unpack='cd "$1/tmp"
	version=$(dpkg-query --admindir="$1/var/lib/dpkg" -W -f "\${Version}" "$unpacked:amd64")
	APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q -o APT::Sandbox::User=root download "$unpacked:$foreign=$version"
	dpkg-deb --fsys-tarfile "$unpacked"_*.deb | tar -xC "$1" ./usr/lib
	rm "$unpacked"_*.deb'
export foreign unpacked
debian_tree "$tmp" "$suite $updates $backports" --architectures="amd64,$foreign" --include="$packages" --customize-hook="set -e; $unpack"
[ -n "$(mirror)" ] || sed -n "s/ $suite / $backports /p" "$tmp/etc/apt/sources.list" >>"$tmp/etc/apt/sources.list"
# In the root apt lists what there is for amd64, unless an option says otherwise (kernel.py).
echo 'APT::Architectures "amd64";' >>"$tmp/etc/apt/apt.conf"
touch "$tmp/.complete"
sync -f "$tmp" || true
mv "$tmp" "$root"
trap - EXIT
say "toolchain root ready in $(( $(date +%s) - start )) s: $root"
