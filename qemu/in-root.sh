#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# in-root.sh [COMMAND [ARGUMENT …]]: runs a command (default: a shell) inside the toolchain root, in the current folder, and returns its
# status. The clone, the cache folder and /tmp have the same paths as outside. Mounts are private to the command; TMPDIR, /run and
# /dev/shm are empty, and removed when it ends. Of the environment only RXE_RS_CACHE, RXE_ACCEL, TERM and the proxies are passed on.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
[ -e "$root/.complete" ] || "$here/bootstrap.sh"
[ "$(id -u)" = 0 ] || die "entering the toolchain root needs root. Run the same command with sudo"
cwd=$(pwd -P)
[ $# -gt 0 ] || set -- /bin/bash

# The command must not be process 1 of the PID namespace, for which signals without a handler, such as SIGINT, are ignored. Nor must
# unshare be the process that the caller may terminate, because it ignores SIGTERM; it is killed when this shell ends, and with it the
# command.
export RXE_ROOT="$root" RXE_CLONE="$clone" RXE_CWD="$cwd" RXE_RS_CACHE="$cache"
setpriv --pdeathsig KILL -- unshare --mount --propagation private --pid --fork --kill-child -- /bin/sh -eu -c '
	into() { mkdir -p "$RXE_ROOT$1"; mount --rbind "$1" "$RXE_ROOT$1"; }
	mount --bind "$RXE_ROOT" "$RXE_ROOT"
	mount --rbind /dev "$RXE_ROOT/dev"
	mount --rbind /sys "$RXE_ROOT/sys"
	mount -t proc proc "$RXE_ROOT/proc"
	for d in /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$RXE_ROOT$d"; done
	into /tmp
	here() { mkdir -p "$RXE_ROOT$1"; mount --bind "$1" "$RXE_ROOT$1"; }
	case $RXE_RS_CACHE/ in /tmp/*) ;; *) here "$RXE_RS_CACHE" ;; esac
	case $RXE_CLONE/ in /tmp/*) ;; *) here "$RXE_CLONE" ;; esac
	for f in /etc/resolv.conf /etc/hosts; do
		[ -e "$f" ] && cat "$f" 2>/dev/null >"$RXE_ROOT$f" || :
	done
	# The root uses the certificate authorities of this machine: a proxy may have a certificate of a local one.
	certs=/etc/ssl/certs/ca-certificates.crt
	[ ! -s $certs ] || mount --bind $certs "$RXE_ROOT$certs"
	exec chroot "$RXE_ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/run TERM="${TERM:-dumb}" LC_ALL=C.UTF-8 \
		RXE_RS_CACHE="$RXE_RS_CACHE" RXE_IN_ROOT=1 RXE_ACCEL="${RXE_ACCEL:-}" CARGO_HOME="$RXE_RS_CACHE/cargo" \
		http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" no_proxy="${no_proxy:-}" \
		/bin/sh -c '\''cd "$1" 2>/dev/null || cd /; shift; "$@"; exit $?'\'' sh "$RXE_CWD" "$@"
' sh "$@" || exit $?
