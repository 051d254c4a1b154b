# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures the effect of the queues of an adapter in docs/tuning.md between two machines with two processors each, whose adapters have
# several queues (igb): one queue, two queues, and two over which packets are spread by their ports as well, ROUNDS rounds (default 5) in
# turn. Prints a row of a table for each: medians and extremes of the bandwidth of four queue pairs that wait for events, and of the share
# of packets that arrived in the busiest queue of the receiver. Four emulated processors share those of the host, so a second queue cannot
# make anything faster there.
#
#   qemu/build-module.sh && qemu/run --topology two --nic igb --numa 2 --cpus 2 --seconds 900 --ko out/7.3/rxe_rs.ko -- qemu/bench/queues.sh
rounds=${ROUNDS:-5}
values=$(mktemp -d)
SERVED_LINES=0

# queues COUNT FIELDS: sets the number of queues of both adapters, and of which fields of UDP packets the queue is a hash.
queues() {
	local node
	for node in a b; do
		on $node ethtool -L "$(netdev $node)" combined "$1" 2>/dev/null || on $node ethtool -l "$(netdev $node)" | grep -q "^Combined:.*$1\$" ||
			fail "the adapter does not have $1 queues"
		on $node ethtool -N "$(netdev $node)" rx-flow-hash udp4 "$2"
	done
	for node in a b; do soon on $node sh -c "ibv_devinfo -d $(dev $node) | grep -q PORT_ACTIVE"; done
}

# received: prints the number of packets that each queue of b has received, in a line.
received() { on b ethtool -S "$(netdev b)" | sed -n 's/^ *rx_queue_[0-9]*_packets: //p' | paste -sd' '; }

# point NAME: measures with the present settings.
point() {
	local before after
	before=$(received)
	serve b ib_send_bw -d "$(dev b)" -x "$(gid b 4)" -F -s 65536 -n 100 -q 4 -e >/dev/null
	listening b 18515
	on a ib_send_bw -d "$(dev a)" -x "$(gid a 4)" -F -s 65536 -n 100 -q 4 -e "$(ip4 b)" >"$values/output" || fail "$1: $(cat "$values/output")"
	served
	after=$(received)
	awk '/^ *[0-9]+ +[0-9]+ / { value = $4 } END { print value }' "$values/output" >>"$values/$1, rate"
	printf '%s\n%s\n' "$before" "$after" | awk '
		NR == 1 { split($0, before) }
		NR == 2 { for (i = 1; i <= NF; i++) { n = $i - before[i]; all += n; if (n > most) most = n } printf "%.0f\n", 100 * most / all }
	' >>"$values/$1, share"
}

links
# What QEMU emulates of the segmentation of UDP is fragmentation.
for node in a b; do on $node ethtool -K "$(netdev $node)" tx-udp-segmentation off; done
for _ in $(seq "$rounds"); do
	queues 1 sd && point 'one'
	queues 2 sd && point 'two, by addresses'
	queues 2 sdfn && point 'two, by addresses and ports'
done
for name in 'one' 'two, by addresses' 'two, by addresses and ports'; do
	for what in rate share; do median "$values/$name, $what"; done |
		awk -v name="$name" '{ cells = cells sprintf(" %s (%s to %s) |", $1, $2, $3) } END { printf "| %s |%s\n", name, cells }'
done
