#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# clean-cache.sh: removes the cache folder, for `make distclean`. RXE_RS_CACHE may name a folder that has other files as well, such as that
# where a disk is mounted: then nothing is removed, and exit status 1.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
[ -d "$cache" ] || exit 0
# What the scripts make there: `grep -r 'cache/\|CACHE /' qemu`.
set -- cargo images kernels kvm-probe.json miri target 'target.[2-4]' tmp wheels \
	'.lock-*' 'lockdep-*' 'root-*' 'suite-*' 'tmp-dkms.*' 'tmp-root.*' 'tmp-suite-*' 'uml-*'
# Of each disk.
set -- "$@" lost+found
for name in "$@"; do
	set -- "$@" ! -name "$name"
	shift
done
others=$(find "$cache" -mindepth 1 -maxdepth 1 "$@" -printf ' %f')
[ -z "$others" ] ||
	die "$cache also has files of others:$others; nothing is removed there. Move them elsewhere, or remove by hand what is of this project"
find "$cache" -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf --one-file-system {} +
rmdir "$cache" 2>/dev/null || :
