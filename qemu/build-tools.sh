#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# build-tools.sh: builds tools/ for Debian 13 in the toolchain root: out/tools/rxectl, its manual pages in out/tools/man and its shell
# completions in out/tools/completions.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/build-tools.sh"
export CARGO_TARGET_DIR="$cache/target/1.85"
# With the crates that `make test` fetched no network is needed.
cargo build --quiet --release --locked -p rxectl --offline 2>/dev/null || cargo build --release --locked -p rxectl
mkdir -p out/tools
# Another build may be reading the old one.
install -m 755 "$CARGO_TARGET_DIR/release/rxectl" "out/tools/rxectl.$$"
mv "out/tools/rxectl.$$" out/tools/rxectl
out/tools/rxectl generate out/tools
