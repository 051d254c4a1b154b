#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-module.sh [-u|-d] [-o OUT] [-k SERIES] [SOURCE] [make arguments …]: builds an external module folder (default: this clone)
# against the prepared kernel tree of the cache, with Debian's own compilers; with -u for User Mode Linux, with -d for its debug
# kernel. Results land in OUT (default: SOURCE/out/SERIES, with -u SOURCE/out/uml-SERIES, with -d SOURCE/out/debug-SERIES).
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
out='' series='' uml='' debug=''
while getopts udo:k: opt; do
	case $opt in
	u) uml=1 ;;
	d) uml=1 debug=1 ;;
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
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-module.sh" ${uml:+-u} ${debug:+-d} \
	${out:+-o "$out"} ${series:+-k "$series"} "$source" "$@"

paths=$here/kernel.py
[ -z "$uml" ] || paths=$here/uml/build.py
TOOLS="CC=gcc-14 HOSTCC=gcc-14"
vars=$("$paths" ${debug:+--debug} show $series) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
kind=${uml:+uml-}
out=${out:-$source/out/${debug:+debug-}${kind#${debug:+uml-}}$SERIES}
mkdir -p "$out"
[ $# -gt 0 ] || set -- modules
if [ -n "$uml" ]; then
	set -- ARCH=um KRUSTFLAGS="$RUSTFLAGS" "$@"
else
	set -- KERNELRELEASE="$RELEASE" "$@"
fi
# shellcheck disable=SC2086
exec make -C "$TREE" $TOOLS M="$source" MO="$(cd "$out" && pwd -P)" -j"$(nproc)" "$@"
