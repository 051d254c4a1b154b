#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# confined.sh COMMAND…: runs a command for which nothing of this machine can be written to but the clone and the cache folder. Tests
# run so: whatever leaves something elsewhere fails there.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
[ "$(id -u)" = 0 ] || die "testing needs root (chroot, mounts). Run it as root: sudo make test"
mkdir -p "$cache/tmp"
export HOME="${HOME:-/root}"
cwd=$(pwd -P)
export RXE_CLONE="$clone" RXE_CWD="$cwd" TMPDIR="$cache/tmp" RXE_CONFINED=1
exec unshare --mount --propagation private -- /bin/sh -eu -c '
	for folder in "$RXE_CLONE" "$RXE_RS_CACHE"; do mount --bind "$folder" "$folder"; done
	mount -t tmpfs -o mode=1777 tmpfs "$TMPDIR"
	# The names of mount points are written with octal escapes.
	while read -r _ _ _ _ target _; do
		target=$(printf %b "$target")
		case $target in
		"$RXE_CLONE" | "$RXE_RS_CACHE" | "$TMPDIR") ;;
		# Switches of the kernel, some of which are others to each process, and devices.
		/proc | /proc/* | /sys | /sys/* | /dev) ;;
		*) mount -o remount,bind,ro "$target" 2>/dev/null || : ;;
		esac
	done </proc/self/mountinfo
	for folder in / /tmp "$HOME"; do
		[ ! -w "$folder" ] || echo "==> $folder stays writable: what is left there is not noticed" >&2
	done
	cd "$RXE_CWD"
	exec "$@"
' sh "$@"
