#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# miri.sh [ARGUMENT of cargo test …]: runs the tests of the driver's lock-free code on threads (ktests/models) and of the protocol crate
# under Miri, which finds what no sanitizer does: uses of uninitialised memory, violations of pointer provenance and of the aliasing rules
# of references, and effects of weak memory ordering. Debian does not have Miri, so the host's is used.
# RXE_MIRI: the command of Miri, such as "cargo +nightly miri" (default: the first one that works).
# RXE_MIRI_SEEDS: the number of thread schedules (default 4); each of them is twenty runs of every model.
# Exit status 1 if a test failed, or if there is no Miri.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
# `works` must not make rustup install a toolchain.
export RUSTUP_AUTO_INSTALL=0
works() { $1 --version >/dev/null 2>&1; }
if [ -n "${RXE_MIRI:-}" ]; then
	miri=$RXE_MIRI
	works "$miri" || die "RXE_MIRI: \`$miri --version\` does not work"
else
	for miri in 'cargo miri' 'cargo +nightly miri' ''; do
		[ -n "$miri" ] || die "this machine has no Miri. Install it (rustup +nightly component add miri rust-src), or set RXE_MIRI to its command"
		! works "$miri" || break
	done
fi
say "$($miri --version)"
# Crates, the standard library for Miri and build results are in the cache folder.
export CARGO_HOME="$cache/cargo" XDG_CACHE_HOME="$cache" CARGO_TARGET_DIR="$cache/target/miri"
flags=${MIRIFLAGS:-}
status=0
interpreted() { $miri test --locked --no-fail-fast "$@" || status=1; }
export MIRIFLAGS="-Zmiri-many-seeds=0..${RXE_MIRI_SEEDS:-4} $flags"
interpreted -p rxe_models --no-default-features "$@"
# Without isolation, proptest can read the files with cases that failed before. Each property gets a few cases, and simulations of random
# traffic one seed; those of thousands of packets are ignored: they take hours, and cover no more code of the engine than the others.
export MIRIFLAGS="-Zmiri-disable-isolation $flags" PROPTEST_CASES="${PROPTEST_CASES:-4}"
interpreted -p rxe_proto --lib --tests "$@"
exit $status
