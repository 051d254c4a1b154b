#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# check-kdir.sh DIR: whether DIR is a kernel source tree that Rust modules can be built in; says what is missing.
set -eu
dir=$1
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
[ -f "$dir/Makefile" ] || die "KDIR=$dir is not a kernel tree"
grep -q '^CONFIG_RUST=y' "$dir/include/config/auto.conf" 2>/dev/null ||
	die "KDIR=$dir has no CONFIG_RUST=y or is not prepared; run 'make modules_prepare' there, or leave KDIR out"
grep -q '^CONFIG_RDMA_RXE=y' "$dir/include/config/auto.conf" &&
	die "KDIR=$dir has rdma_rxe built in: rxe_rs would refuse to load beside it; set CONFIG_RDMA_RXE=m or n"
[ -f "$dir/rust/libkernel.rmeta" ] ||
	die "KDIR=$dir lacks rust/libkernel.rmeta: header packages do not carry it, a prepared source tree does; or leave KDIR out"
[ -s "$dir/Module.symvers" ] || die "KDIR=$dir has no Module.symvers; copy it from the headers package of the kernel you will run"
