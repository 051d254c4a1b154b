# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures 64 KiB between two rdma_rxe, and between this driver and rdma_rxe, while both directions lose packets: ROUNDS rounds (default 3)
# in turn. Prints a row of a table for each operation and loss: medians and extremes in MiB/s with two rdma_rxe, with this driver at the
# client and with it at the server, and the ratios of these to the first. The client sends and writes, and reads what the server sends. Two
# emulated machines, so only the ratios mean something:
#
#   qemu/build-module.sh && qemu/run --topology two --seconds 900 --ko out/7.3/rxe_rs.ko -- qemu/bench/lossy_peer.sh
rounds=${ROUNDS:-3}
values=$(mktemp -d)
SERVED_LINES=0

# point NAME TOOL: transfers 100 messages and stores the bandwidth under the name.
point() {
	local output
	output=$(QP_TIMEOUT=14 perftest a b 4 "$2" -n 100 -s 65536) || fail "$1: $output"
	awk '/^ *65536 / { print $4 }' <<<"$output" >>"$values/$1"
}

for _ in $(seq "$rounds"); do
	for pair in "rdma_rxe rdma_rxe" "rxe_rs rdma_rxe" "rdma_rxe rxe_rs"; do
		no_links
		DRIVER_a=${pair% *} DRIVER_b=${pair#* }
		for loss in 0.1 1 3; do
			impair_network loss $loss%
			for tool in ib_send_bw ib_write_bw ib_read_bw; do
				point "$tool, $loss %, $pair" $tool
			done
			restore_network
		done
		trap - EXIT
	done
done
for loss in 0.1 1 3; do
	for tool in ib_send_bw ib_write_bw ib_read_bw; do
		for pair in "rdma_rxe rdma_rxe" "rxe_rs rdma_rxe" "rdma_rxe rxe_rs"; do
			median "$values/$tool, $loss %, $pair"
		done | awk -v name="$tool, $loss %" '
			{ cells = cells sprintf(" %.1f (%.1f to %.1f) |", $1, $2, $3) }
			NR == 1 { first = $1 }
			NR > 1 { ratios = ratios sprintf("%s%.1f", NR > 2 ? "; " : "", $1 / first) }
			END { printf "| %s |%s %s |\n", name, cells, ratios }'
	done
done
