#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# check-kdir.sh DIR: checks that DIR is a prepared kernel source tree with Rust, fit for building this module. Exit status 0 if it is,
# else 1 and a message that says what is missing.
set -eu
dir=$1
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
[ -f "$dir/Makefile" ] || die "KDIR=$dir is not a kernel source tree; name one that is prepared, or leave KDIR out"
grep -q '^CONFIG_RUST=y' "$dir/include/config/auto.conf" 2>/dev/null ||
	die "KDIR=$dir has no CONFIG_RUST=y or is not prepared; run 'make modules_prepare' there, or leave KDIR out"
grep -q '^CONFIG_RDMA_RXE=y' "$dir/include/config/auto.conf" &&
	die "KDIR=$dir has rdma_rxe built in, and rxe_rs refuses to load beside it; set CONFIG_RDMA_RXE=m or n"
[ -f "$dir/rust/libkernel.rmeta" ] ||
	die "KDIR=$dir lacks rust/libkernel.rmeta, which header packages do not have; name a prepared source tree, or leave KDIR out"
[ -s "$dir/Module.symvers" ] || die "KDIR=$dir has no Module.symvers; copy it from the headers package of the kernel you will run"
