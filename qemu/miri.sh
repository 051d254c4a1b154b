#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# miri.sh [cargo test's arguments]: the driver's lock-free code on threads (ktests/models) and the protocol crate's tests, interpreted by
# Miri, which sees what no sanitizer does: uninitialised memory, pointers used for what they were not made for, broken rules of references,
# and what weakly ordered memory lets a thread read. Debian has no Miri: this takes the machine's own, or RXE_MIRI ("cargo +nightly miri").
# RXE_MIRI_SEEDS: in how many ways (4) threads take turns; each of them is twenty runs of every model.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
cd "$clone"
# Asking must install nothing.
export RUSTUP_AUTO_INSTALL=0
works() { $1 --version >/dev/null 2>&1; }
if [ -n "${RXE_MIRI:-}" ]; then
	miri=$RXE_MIRI
	works "$miri" || die "RXE_MIRI: \`$miri --version\` does not work"
else
	for miri in 'cargo miri' 'cargo +nightly miri' ''; do
		[ -n "$miri" ] || die "this machine has no Miri. Install it (rustup +nightly component add miri rust-src), or name one by RXE_MIRI"
		! works "$miri" || break
	done
fi
say "$($miri --version)"
# Crates, the interpreted standard library and what is built stay in the cache folder.
export CARGO_HOME="$cache/cargo" XDG_CACHE_HOME="$cache" CARGO_TARGET_DIR="$cache/target/miri"
flags=${MIRIFLAGS:-}
status=0
interpreted() { $miri test --locked "$@" || status=1; }
export MIRIFLAGS="-Zmiri-many-seeds=0..${RXE_MIRI_SEEDS:-4} $flags"
interpreted -p rxe_models --no-default-features "$@"
# Cases that failed once are read from files, and a few cases of each property have to do. Left out are simulations of much traffic, which
# take hours and run the engine as the others do.
export MIRIFLAGS="-Zmiri-disable-isolation $flags" PROPTEST_CASES="${PROPTEST_CASES:-4}"
set -- --lib --test faults --test flush --test fuzz --test keys --test mutate --test occupancy --test paging --test pair --test reads \
	--test services --test states "$@"
interpreted -p rxe_proto "$@"
exit $status
