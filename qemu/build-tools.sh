#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-tools.sh [-a ARCHITECTURE]: builds the programs of tools/ and of the tests for Debian 13, in out/tools/ for amd64 (default), or in
# out/tools-arm64/ for arm64, by cross compilation. Enters the toolchain root. Results: rxectl, and rxe-ci for amd64, with their manual
# pages and shell completions (man, completions); the manual page of the driver, rxe_rs(7); librxe_rs with its headers and its examples
# (lib, include, examples); for tests mutate, which generates hostile packets, rxe_fuzz (ktests/fuzz) and the first librxe_rs
# (ktests/old_library).
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
usage='usage: build-tools.sh [-a amd64 | -a arm64]'
architecture=amd64
while getopts a: opt; do
	case $opt in
	a) architecture=$OPTARG ;;
	*) die "$usage" ;;
	esac
done
[ $# -lt $OPTIND ] || die "$usage"
case $architecture in
amd64) target='' strip=strip out=out/tools programs='rxectl rxe-ci' ;;
arm64) target=aarch64-unknown-linux-gnu strip=aarch64-linux-gnu-strip out=out/tools-arm64 programs=rxectl ;;
*) die "$usage" ;;
esac
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-tools.sh" -a $architecture
own_targets
export CARGO_TARGET_DIR="$targets/1.85" CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc-14
built=$CARGO_TARGET_DIR${target:+/$target}/release
# One build at a time: test runs of this clone that start at the same time share the folder.
exec 9>"$targets/tools.lock"
flock 9
"$here/fetch-crates.sh"
build() { cargo build --release --locked --offline ${target:+--target $target} "$@"; }
# shellcheck disable=SC2046
build $(printf -- '-p %s ' $programs) -p librxe_rs
build -p librxe_rs --example exercise
build -p rxe_proto --features sim --example mutate
build -p rxe_fuzz
build -p old_library
# A program generates its pages when it runs, so one for another architecture needs one for this one.
[ -z "$target" ] || target='' build -p rxectl
mkdir -p $out/lib $out/include $out/examples
# put MODE FILE NAME: installs a file as NAME among the results. A running machine may still read the old one, so it is replaced by rename.
put() {
	install -m "$1" "$2" "$out/$3.new"
	case $3 in lib/*) $strip --strip-debug "$out/$3.new" ;; esac
	mv "$out/$3.new" "$out/$3"
}
for program in $programs; do
	put 755 "$built/$program" "$program"
	"$CARGO_TARGET_DIR/release/$program" generate $out
done
put 755 "$built/examples/mutate" mutate
put 755 "$built/rxe_fuzz" rxe_fuzz
# Programs are linked with the name without a number, and load the library by its soname (tools/librxe_rs/build.rs).
put 644 "$built/librxe_rs.so" lib/librxe_rs.so.1
ln -sf librxe_rs.so.1 $out/lib/librxe_rs.so
put 644 "$built/librxe_rs.a" lib/librxe_rs.a
put 644 "$built/librxe_rs_old.so" lib/librxe_rs_old.so
put 644 uapi/rxe_rs.h include/rxe_rs.h
put 644 tools/librxe_rs/include/rxe_rs_verbs.h include/rxe_rs_verbs.h
put 755 "$built/examples/exercise" examples/exercise
put 755 tools/librxe_rs/examples/sliding_window.py examples/sliding_window.py
put 755 tools/examples/send_fallback.py examples/send_fallback.py
# A warning is an error: the page would lack something.
rst2man --halt=2 tools/deb/rxe_rs.7.rst $out/man/rxe_rs.7
