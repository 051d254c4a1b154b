#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-module.sh [-o OUT] [-k SERIES] [SOURCE] [make arguments …]: builds an external module folder (default: this clone) for
# User Mode Linux. Results land in OUT (default: SOURCE/out/uml-SERIES).
set -eu
here=$(cd "$(dirname "$0")/.." && pwd -P)
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
self=$here/uml/build-module.sh
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$self" ${out:+-o "$out"} ${series:+-k "$series"} "$source" "$@"

vars=$("$here/uml/build.py" show $series) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
out=${out:-$source/out/uml-$SERIES}
mkdir -p "$out"
[ $# -gt 0 ] || set -- modules
exec make -C "$TREE" ARCH=um CC=gcc-14 HOSTCC=gcc-14 KRUSTFLAGS="$RUSTFLAGS" M="$source" MO="$(cd "$out" && pwd -P)" \
	-j"$(nproc)" "$@"
