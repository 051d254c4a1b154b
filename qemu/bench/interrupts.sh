# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures the effect of interrupt affinity in docs/tuning.md between two machines with two processors each: the processes are on processor
# 1, the interrupts of the network devices on processor 1 or 0, ROUNDS rounds (default 9) in turn. Prints a row of a table for each point:
# medians and extremes. The processes wait for events, because four emulated processors may share two of the host, which processes that poll
# would keep.
#
#   qemu/build-module.sh && qemu/run --topology two --cpus 2 --seconds 900 --ko out/7.3/rxe_rs.ko -- qemu/bench/interrupts.sh
rounds=${ROUNDS:-9}
values=$(mktemp -d)
SERVED_LINES=0

# interrupts CPU: binds all interrupts of the network devices of both machines to the processor.
interrupts() {
	local node
	for node in a b; do
		on $node bash -ec '
			device=$(readlink -f "/sys/class/net/$1/device")
			[ -d "$device/msi_irqs" ] || device=$(dirname "$device")
			for irq in $(ls "$device/msi_irqs"); do
				# The interrupt for changes of the configuration of a virtio device has a processor of its own choice.
				echo "$2" >"/proc/irq/$irq/smp_affinity_list" 2>/dev/null || continue
				[ "$(cat "/proc/irq/$irq/smp_affinity_list")" = "$2" ]
				bound=yes
			done
			[ -n "$bound" ]' bash "$(netdev $node)" "$1" || fail "the interrupts of $node are not bound to processor $1"
	done
}

# point NAME COLUMN TOOL OPTION…: a test of perftest; COLUMN of the last line of numbers is the value.
point() {
	local name=$1 column=$2 tool=$3 output
	shift 3
	serve b taskset -c 1 "$tool" -d "$(dev b)" -x "$(gid b 4)" -F "$@" >/dev/null
	listening b 18515
	output=$(on a taskset -c 1 "$tool" -d "$(dev a)" -x "$(gid a 4)" -F "$@" "$(ip4 b)") || fail "$name: $output"
	served
	grep -qxF "$name" "$values/order" 2>/dev/null || echo "$name" >>"$values/order"
	awk -v column="$column" '/^ *[0-9]+ +[0-9]+ / { value = $column } END { print value }' <<<"$output" >>"$values/$name, $processor"
}

links
for _ in $(seq "$rounds"); do
	for processor in 1 0; do
		interrupts $processor
		point "SEND of 64 KiB, completion events, MiB per s" 4 ib_send_bw -s 65536 -n 300 -e
		point "64 bytes, completion events, latency in us" 5 ib_send_lat -s 64 -n 500 -e
	done
done
while read -r name; do
	for processor in 1 0; do median "$values/$name, $processor"; done |
		awk -v name="$name" '{ cells = cells sprintf(" %s (%s to %s) |", $1, $2, $3) } END { printf "| %s |%s\n", name, cells }'
done <"$values/order"
