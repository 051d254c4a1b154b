#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# demo.sh: boots two machines with the stock kernel and the module built last, and runs the stock RDMA tools between them
# (ktests/vm/demo.sh). KERNEL: the kernel series. DRIVER=rdma_rxe: with the kernel's own driver in place of the module.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
driver=${DRIVER:-rxe_rs}
out=out/demo${KERNEL:+-$KERNEL}
set -- --topology two --driver "$driver" ${KERNEL:+--kernel "$KERNEL"} --seconds 420 --out "$clone/$out"
[ "$driver" = rxe_rs ] && set -- "$@" --ko "$(KERNEL=${KERNEL:-} "$here/module-path.sh" --quiet)"
say "booting two machines with the stock Debian kernel, joined by a virtual Ethernet"
if "$here/run" "$@" -- "$clone/ktests/vm/demo.sh"; then
	cat <<-END

	Next:
	  make test            all tests
	  make insmod-help     load the module on a real Debian 13 host
	  qemu/run --help      run your own script in such machines
	END
else
	die "the demo failed; logs: $out/boot-1/serial-a.log, serial-b.log and share/results/"
fi
