#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# sanitize.sh [cargo test's arguments]: the tests of the protocol crate, and the driver's lock-free code on real threads (ktests/models),
# under AddressSanitizer, which also looks for leaks. Works in the toolchain root: its compiler instruments the code, and the run-time
# library is gcc's, which speaks the same language.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/sanitize.sh" "$@"
"$here/fetch-crates.sh"
# Sanitizers are an unstable option of rustc. The library must come before all others.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$cache/target/asan"
export RUSTFLAGS="-Zsanitizer=address -Zexternal-clangrt -Zpre-link-arg=-Wl,--no-as-needed -Zpre-link-arg=-lasan"
# With --target, flags are for the tests alone, not for what runs when they are built.
sanitized() { cargo test --target x86_64-unknown-linux-gnu --locked --offline "$@"; }
sanitized -p rxe_models --no-default-features "$@"
sanitized -p rxe_proto "$@"
