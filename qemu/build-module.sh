#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-module.sh [-u|-d|-l] [-o OUT] [-k SERIES] [SOURCE] [make arguments …]: builds an external module folder (default: this clone)
# against the prepared kernel tree of the cache, with Debian's own compilers; or against a kernel of kernel_build.py: -u User Mode
# Linux, -d its debug kernel, -l the lockdep kernel. Results land in OUT (default: SOURCE/out/SERIES; uml-SERIES, debug-SERIES,
# lockdep-SERIES).
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
out='' series='' kind='' flag='' label=''
while getopts udlo:k: opt; do
	case $opt in
	u) flag=-u kind=uml label=uml- ;;
	d) flag=-d kind=uml-debug label=debug- ;;
	l) flag=-l kind=lockdep label=lockdep- ;;
	o) out=$OPTARG ;;
	k) series=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
source=$clone
if [ $# -gt 0 ] && [ -d "$1" ]; then
	source=$(cd "$1" && pwd -P)
	shift
fi
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-module.sh" $flag \
	${out:+-o "$out"} ${series:+-k "$series"} "$source" "$@"

TOOLS="CC=gcc-14 HOSTCC=gcc-14" ARCH='' RUSTFLAGS=''
if [ -n "$kind" ]; then
	vars=$("$here/kernel_build.py" show "$kind" $series) || exit 1
else
	vars=$("$here/kernel.py" show $series) || exit 1
fi
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
out=${out:-$source/out/$label$SERIES}
mkdir -p "$out"
[ $# -gt 0 ] || set -- modules
if [ -n "$kind" ]; then
	set -- ARCH="$ARCH" ${RUSTFLAGS:+KRUSTFLAGS="$RUSTFLAGS"} "$@"
else
	set -- KERNELRELEASE="$RELEASE" "$@"
fi
# shellcheck disable=SC2086
exec make -C "$TREE" $TOOLS M="$source" MO="$(cd "$out" && pwd -P)" -j"$(nproc)" "$@"
