#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-tools.sh: builds the programs of tools/ and of the tests for Debian 13, in out/tools/. Enters the toolchain root. Results: rxectl
# and rxe-ci with their manual pages and shell completions (man, completions); the manual page of the driver, rxe_rs(7); librxe_rs with its
# headers and its examples (lib, include, examples); for tests mutate, which generates hostile packets, rxe_fuzz (ktests/fuzz) and the first
# librxe_rs (ktests/old_library).
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-tools.sh"
own_targets
export CARGO_TARGET_DIR="$targets/1.85"
# One build at a time: test runs of this clone that start at the same time share the folder.
exec 9>"$targets/tools.lock"
flock 9
"$here/fetch-crates.sh"
build() { cargo build --release --locked --offline "$@"; }
build -p rxectl -p rxe-ci -p librxe_rs
build -p librxe_rs --example exercise
build -p rxe_proto --features sim --example mutate
build -p rxe_fuzz
build -p old_library
mkdir -p out/tools/lib out/tools/include out/tools/examples
# put MODE FILE NAME: installs a file as out/tools/NAME. A running machine may still read the old one, so it is replaced by rename.
put() {
	install -m "$1" "$2" "out/tools/$3.new"
	case $3 in lib/*) strip --strip-debug "out/tools/$3.new" ;; esac
	mv "out/tools/$3.new" "out/tools/$3"
}
put 755 "$CARGO_TARGET_DIR/release/rxectl" rxectl
put 755 "$CARGO_TARGET_DIR/release/rxe-ci" rxe-ci
put 755 "$CARGO_TARGET_DIR/release/examples/mutate" mutate
put 755 "$CARGO_TARGET_DIR/release/rxe_fuzz" rxe_fuzz
# Programs are linked with the name without a number, and load the library by its soname (tools/librxe_rs/build.rs).
put 644 "$CARGO_TARGET_DIR/release/librxe_rs.so" lib/librxe_rs.so.1
ln -sf librxe_rs.so.1 out/tools/lib/librxe_rs.so
put 644 "$CARGO_TARGET_DIR/release/librxe_rs.a" lib/librxe_rs.a
put 644 "$CARGO_TARGET_DIR/release/librxe_rs_old.so" lib/librxe_rs_old.so
put 644 uapi/rxe_rs.h include/rxe_rs.h
put 644 tools/librxe_rs/include/rxe_rs_verbs.h include/rxe_rs_verbs.h
put 755 "$CARGO_TARGET_DIR/release/examples/exercise" examples/exercise
put 755 tools/librxe_rs/examples/sliding_window.py examples/sliding_window.py
put 755 tools/examples/send_fallback.py examples/send_fallback.py
out/tools/rxectl generate out/tools
out/tools/rxe-ci generate out/tools
# A warning is an error: the page would lack something.
rst2man --halt=2 tools/deb/rxe_rs.7.rst out/tools/man/rxe_rs.7
