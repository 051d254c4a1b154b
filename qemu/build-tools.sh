#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-tools.sh: builds tools/ for Debian 13 in the toolchain root: out/tools/rxectl, its manual pages in out/tools/man and its shell
# completions in out/tools/completions; also out/tools/mutate, which makes hostile packets for the tests.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-tools.sh"
export CARGO_TARGET_DIR="$cache/target/1.85"
# With the crates that `make test` fetched no network is needed.
build() { cargo build --quiet --release --locked --offline "$@" 2>/dev/null || cargo build --release --locked "$@"; }
build -p rxectl
build -p rxe_proto --features sim --example mutate
mkdir -p out/tools
# Another build may be reading the old one.
for program in rxectl examples/mutate; do
	name=${program#*/}
	install -m 755 "$CARGO_TARGET_DIR/release/$program" "out/tools/$name.$$"
	mv "out/tools/$name.$$" "out/tools/$name"
done
out/tools/rxectl generate out/tools
