# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures processes on two machines that lose or reorder packets, with rdma_rxe at one of them or at both. The host appends lines with
# calls of `pair`, `impair` and `measure` to this script. Results are stored as by turn.sh.
points=/share/results/points
mkdir -p $points
# shellcheck disable=SC2034 # served() of lib.sh reads it.
SERVED_LINES=0

# pair CLIENT SERVER: the drivers of what is measured next.
pair() {
	trap - EXIT
	no_links
	DRIVER_a=$1 DRIVER_b=$2
}

# impair KIND: lossP, reorderP: P percent of the packets that each machine sends are dropped, or sent without the delay that the others have.
impair() {
	local n
	# netem must drop single packets, not buffers that a device would segment.
	for n in a b; do on $n ethtool -K "$(netdev $n)" tx-udp-segmentation off 2>/dev/null || true; done
	case $1 in
	loss*) impair_network loss "${1#loss}%" ;;
	reorder*) impair_network delay 100us reorder $((100 - ${1#reorder}))% ;;
	esac
}

# measure NAME COUNT TOOL [OPTION …]: transfers so many messages of 64 KiB. The timeout of the queue pairs is that which perftest sets by
# default. If something else has run while perftest compared two clocks, it shows no rate, and measures again.
measure() {
	local status
	for _ in 1 2 3; do
		status=0
		QP_TIMEOUT=14 perftest a b 4 "${@:3}" -n "$2" -s 65536 >"$points/$1" 2>&1 || status=$?
		grep -q 'Correlation coefficient' "$points/$1" || break
	done
	echo "$1 $status" >>/share/results/points.done
}
