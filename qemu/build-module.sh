#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-module.sh [-u|-d|-l] [-o OUT] [-k SERIES] [SOURCE] [ARGUMENT of make …]: builds the external module in the folder SOURCE (default:
# this clone) with Debian's compilers, inside the toolchain root, and returns the status of make.
#
# -k SERIES   for the stock kernel of that series (default: the series chosen at set-up), which is prepared if necessary
# -u          for the User Mode Linux kernel of that series (qemu/kernel_build.py)
# -d          for the User Mode Linux debug kernel
# -l          for the lockdep kernel
# -o OUT      the folder for results (default: SOURCE/out/SERIES; with -u, -d, -l uml-SERIES, debug-SERIES, lockdep-SERIES)
#
# The default argument of make is the target `modules`.
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
if [ -z "${RXE_IN_ROOT:-}" ]; then
	visible "$source" ${out:+"$out"}
	exec "$here/in-root.sh" "$here/build-module.sh" $flag ${out:+-o "$out"} ${series:+-k "$series"} "$source" "$@"
fi

TOOLS='' ARCH='' RUSTFLAGS=''
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
	# shellcheck disable=SC2086
	exec make -C "$TREE" -j"$(nproc)" $TOOLS ARCH="$ARCH" ${RUSTFLAGS:+KRUSTFLAGS="$RUSTFLAGS"} M="$source" MO="$(cd "$out" && pwd -P)" "$@"
fi
exec "$clone/tools/deb/kernel-tree" make "$TREE" "$RELEASE" M="$source" MO="$(cd "$out" && pwd -P)" "$@"
