#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# module-path.sh [--quiet]: says where the module for the kernel series KERNEL (default: the series chosen at set-up) is, and what to do
# with it. With --quiet it prints the path alone. Exit status 1 if the module has not been built.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
vars=$("$here/in-root.sh" "$here/kernel.py" show $KERNEL) || exit 1
eval "$(printf '%s\n' "$vars" | sed "s/=\(.*\)/='\1'/")"
ko=$clone/out/$SERIES/rxe_rs.ko
[ -f "$ko" ] || die "there is no $ko; build it: make${KERNEL:+ KERNEL=$KERNEL}"
case ${1:-} in
--quiet) printf '%s\n' "$ko" ;;
*) say "built out/$SERIES/rxe_rs.ko for Linux $RELEASE; try it: make demo; load it on a host: make insmod-help" ;;
esac
