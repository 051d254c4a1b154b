#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# suite-module.sh SUITE: builds the module, in out/SUITE/, for the kernel that another suite of Debian has now: testing, sid or experimental.
# Such kernels are built by other compilers than those of Debian 13, so the cache folder gets a tree of that suite: suite-SUITE/ with the
# compilers, the kernel's headers and its source. A later run brings it up to date, if the network can be reached. Nothing is run: the test
# machines have the kernels of Debian 13. Exit status 1 if the module does not build, for which the messages of the compilers say why, or if it
# can panic; 3 if nobody can build it, because the suite no longer has the compiler that built its kernel.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
. "$here/roots.sh"
suites="testing sid experimental"
name=${1:-}
case " $suites " in
*" $name "*) ;;
*) die "Debian has no suite '$name' with a kernel of its own; choose one of: $suites" ;;
esac
gigabytes=6
root=$cache/suite-$name
# Compilers, and what the build of a kernel tree needs beside those that the headers depend on.
packages=rustc,rust-src,bindgen,libclang-dev,make,bc,flex,bison,libelf-dev,libssl-dev,pahole,xz-utils,python3,cpio,kmod,perl,rsync,libc6-dev,ca-certificates
kernel="linux-headers-amd64 linux-source"
sources=$name
# Most packages are not in experimental, and the kernels there are built by the compilers of sid, whatever experimental has.
if [ "$name" = experimental ]; then
	sources="sid experimental"
	kernel="linux-headers-amd64/experimental linux-source/experimental"
fi

able $gigabytes
exec 9>"$cache/.lock-suite-$name"
flock -n 9 || { say "another build for $name is running, waiting for it"; flock 9; }
if [ ! -e "$root/.complete" ]; then
	enough_space $gigabytes
	need_mmdebstrap
	[ "$sources" = "$name" ] || [ -n "$(mirror)" ] ||
		die "apt of this machine has no mirror of Debian from which $name could come; choose another suite"
	tmp=$cache/tmp-suite-$name
	forget "$tmp" "$root"
	forgotten "$tmp"
	say "making a tree of Debian $name with its compilers and the source of its kernel (about 4 GB, a few minutes)"
	debian_tree "$tmp" "$sources" --architectures=amd64 --include="$packages,$(echo "$kernel" | tr ' ' ,)"
	touch "$tmp/.complete"
	mv "$tmp" "$root"
	trap - EXIT
else
	say "bringing the tree of Debian $name up to date"
	# shellcheck disable=SC2086
	inside sh -c 'apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y full-upgrade && apt-get -q -y install "$@"' sh $kernel \
		>"$root/upgrade.log" 2>&1 || say "that failed: its kernel may no longer be the newest one (see $root/upgrade.log)"
fi

# The newest of the kernels whose headers are installed (experimental has 7.4-rc3-amd64, too); its source is installed, too.
release=$(ls "$root/usr/src" | sed -nE '/^linux-headers-[0-9.]+(-rc[0-9]+)?([+][^-]*)?-amd64$/p' | sort -V | tail -n 1)
[ -n "$release" ] || die "$root has no headers of a kernel; remove it, then run the same command again"
release=${release#linux-headers-}
# Symbols of Rust have a hash of the compiler in their names.
needed=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(rustc [^ ]*\).*/\1/p' "$root/usr/src/linux-headers-$release/.config")
has=$(inside rustc --version | cut -d' ' -f1-2)
if [ "$needed" != "$has" ]; then
	say "Linux $release of Debian $name was built by $needed, and $name has $has now: the module can be built for its next kernel only"
	exit 3
fi
series=$(echo "$release" | cut -d. -f1-2)
series=${series%%[-+]*}
tree=/usr/src/rxe_rs-$release
if [ ! -e "$root$tree.ready" ]; then
	say "preparing the source of Linux $release (about five minutes)"
	forget "$root"/usr/src/rxe_rs-*
	inside sh -e -c '"$1" unpack "$2" "$3"; "$1" prepare "$3" "$4" "$5"' sh "$clone/tools/deb/kernel-tree" \
		"/usr/src/linux-source-$series.tar.xz" "$tree" "/usr/src/linux-headers-$release" "$release" >"$root/prepare.log" 2>&1 ||
		{ tail -n 20 "$root/prepare.log" >&2; die "the source of Linux $release could not be prepared (all messages: $root/prepare.log)"; }
	touch "$root$tree.ready"
fi
out=$clone/out/$name
mkdir -p "$out"
echo "$release" >"$out/release"
if ! inside "$clone/tools/deb/kernel-tree" make "$tree" "$release" M="$clone" MO="$out" modules; then
	rm -f "$out/rxe_rs.ko"
	die "rxe_rs does not build for Linux $release of Debian $name: its first message says what differs from the kernels of Debian 13"
fi
inside "$here/panics.sh" "$out"
say "built out/$name/rxe_rs.ko for Linux $release; it has not been run"
