#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# confined.sh COMMAND [ARGUMENT …]: runs a command in a mount namespace in which only the clone and the cache folder are writable, and
# returns its status. Tests run in it, so that a test that writes elsewhere fails. TMPDIR is an empty tmpfs in the cache folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
[ "$(id -u)" = 0 ] || die "testing needs root (chroot, mounts). Run the same command with sudo"
mkdir -p "$cache/tmp"
export HOME="${HOME:-/root}"
cwd=$(pwd -P)
export RXE_CLONE="$clone" RXE_CWD="$cwd" TMPDIR="$cache/tmp" RXE_CONFINED=1
exec unshare --mount --propagation private -- /bin/sh -eu -c '
	for folder in "$RXE_CLONE" "$RXE_RS_CACHE"; do mount --bind "$folder" "$folder"; done
	mount -t tmpfs -o mode=1777 tmpfs "$TMPDIR"
	# mountinfo has octal escapes in names.
	while read -r _ _ _ _ target _; do
		target=$(printf %b "$target")
		case $target in
		"$RXE_CLONE" | "$RXE_RS_CACHE" | "$TMPDIR") ;;
		# Interfaces of the kernel, and devices.
		/proc | /proc/* | /sys | /sys/* | /dev) ;;
		*) mount -o remount,bind,ro "$target" 2>/dev/null || : ;;
		esac
	done </proc/self/mountinfo
	for folder in / /tmp "$HOME"; do
		[ ! -w "$folder" ] || echo "==> $folder cannot be made read-only: files that tests leave there are not noticed" >&2
	done
	cd "$RXE_CWD"
	exec "$@"
' sh "$@"
