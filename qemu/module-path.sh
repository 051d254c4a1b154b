#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints where the module that was built last is, and for which kernel.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
vars=$("$here/in-root.sh" "$here/kernel.py" show $KERNEL) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
ko=$clone/out/$SERIES/rxe_rs.ko
[ -f "$ko" ] || die "the build left no $ko"
case ${1:-} in
--quiet) printf '%s\n' "$ko" ;;
*) say "built out/$SERIES/rxe_rs.ko for Linux $RELEASE; try it: make demo; load it on a host: make insmod-help" ;;
esac
