#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-module.sh [-u] [-o OUT] [-k SERIES] [SOURCE] [make arguments …]: builds an external module folder (default: this clone)
# against the prepared kernel tree of the cache, with Debian's own compilers; with -u for User Mode Linux. Results land in OUT
# (default: SOURCE/out/SERIES, with -u SOURCE/out/uml-SERIES).
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
out='' series='' uml=''
while getopts uo:k: opt; do
	case $opt in
	u) uml=1 ;;
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
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-module.sh" ${uml:+-u} \
	${out:+-o "$out"} ${series:+-k "$series"} "$source" "$@"

paths=$here/kernel.py
[ -z "$uml" ] || paths=$here/uml/build.py
vars=$("$paths" show $series) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
out=${out:-$source/out/${uml:+uml-}$SERIES}
mkdir -p "$out"
[ $# -gt 0 ] || set -- modules
if [ -n "$uml" ]; then
	set -- ARCH=um KRUSTFLAGS="$RUSTFLAGS" "$@"
else
	set -- KERNELRELEASE="$RELEASE" "$@"
fi
exec make -C "$TREE" CC=gcc-14 HOSTCC=gcc-14 M="$source" MO="$(cd "$out" && pwd -P)" -j"$(nproc)" "$@"
