#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-module.sh [-o OUT] [-k SERIES] [SOURCE] [make arguments …]: builds an external module folder (default: this clone)
# against the prepared kernel tree of the cache, with Debian's own compilers. Results land in OUT (default: SOURCE/out/SERIES).
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
out='' series=''
while getopts o:k: opt; do
	case $opt in
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
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-module.sh" ${out:+-o "$out"} ${series:+-k "$series"} "$source" "$@"

vars=$("$here/kernel.py" show $series) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
out=${out:-$source/out/$SERIES}
mkdir -p "$out"
[ $# -gt 0 ] || set -- modules
exec make -C "$TREE" CC=gcc-14 HOSTCC=gcc-14 KERNELRELEASE="$RELEASE" M="$source" MO="$(cd "$out" && pwd -P)" -j"$(nproc)" "$@"
