#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# sanitize.sh [ARGUMENT of cargo test …]: runs the tests of the protocol crate, and those of the driver's lock-free code on threads
# (ktests/models), under AddressSanitizer with LeakSanitizer. Enters the toolchain root: its rustc instruments the code, and gcc's
# run-time library, which has the same interface as LLVM's, is linked.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
[ -n "${RXE_IN_ROOT:-}" ] || exec "$here/in-root.sh" "$here/sanitize.sh" "$@"
"$here/fetch-crates.sh"
# Sanitizers are an unstable option of rustc. AddressSanitizer requires that its library is loaded before all others.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$cache/target/asan"
export RUSTFLAGS="-Zsanitizer=address -Zexternal-clangrt -Zpre-link-arg=-Wl,--no-as-needed -Zpre-link-arg=-lasan"
# With --target, RUSTFLAGS do not apply to build scripts and procedural macros.
sanitized() { cargo test --target x86_64-unknown-linux-gnu --locked --offline "$@"; }
sanitized -p rxe_models --no-default-features "$@"
sanitized -p rxe_proto "$@"
