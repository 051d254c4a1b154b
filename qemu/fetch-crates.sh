#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# fetch-crates.sh: downloads the crates of Cargo.lock to the cache folder; needs no network if they are there already. Runs inside the
# toolchain root.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
cargo fetch --quiet --locked --offline 2>/dev/null && exit 0
say "fetching the crates of Cargo.lock"
cargo fetch --locked || die "cargo cannot fetch the crates; check the network, then run the same command again"
