# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures WRITE of 64 KiB over network devices of several kinds, with settings of ethtool, by rdma_rxe and this driver in turn, in one machine
# also with an ICRC in all packets, as between hosts: ROUNDS rounds (default 3). Prints a row of a table for each device: medians and
# extremes in MiB/s, and the ratios to rdma_rxe. docs/tuning.md has those of the devices of one machine, in User Mode Linux, and of the
# adapters that QEMU emulates, between two machines:
#
#   qemu/build-module.sh -u && qemu/run --uml --pin --seconds 900 --ko out/uml-7.3/rxe_rs.ko -- qemu/bench/devices.sh
#   qemu/build-module.sh && qemu/run --topology two [--nic e1000e] --seconds 900 --ko out/7.3/rxe_rs.ko -- qemu/bench/devices.sh
rounds=${ROUNDS:-3}
variants="rdma_rxe rxe_rs"
[ "$TOPOLOGY" = two ] || variants="$variants icrc"
values=$(mktemp -d)
SERVED_LINES=0
order=$values/order
# Devices below which a link is, and those that it is on.
. /share/tests/netdev.test

# point NAME COUNT DEVICE-A GID-A DEVICE-B GID-B NODE-B ADDRESS: transfers COUNT messages and stores the bandwidth under the name.
point() {
	local output
	serve "$7" ib_write_bw -d "$5" -x "$6" -F -s 65536 -n "$2" >/dev/null
	listening "$7" 18515
	output=$(on a ib_write_bw -d "$3" -x "$4" -F -s 65536 -n "$2" "$8") || fail "$1: $output"
	served
	grep -qxF "$1" "$order" 2>/dev/null || echo "$1" >>"$order"
	awk '/^ *65536 / { print $4 }' <<<"$output" >>"$values/$1, $variant"
}

# --- one machine -----------------------------------------------------------------------------------------------------------------

# over NAME: measures between the links that `up` made.
over() { point "$1" 4000 rxe_na "$(index a 4)" rxe_nb "$(index b 4)" b "$(four b)" && remove_devices; }
# pair_of_veth MTU: a pair of veth devices, wa and wb.
pair_of_veth() { start && MTU=$1 veth_pair; }
named_n() { each link set w@ down && each link set w@ name n@; }
on_loopback() {
	ip -n a addr add "$(four a)/32" dev lo
	add a rxe_na lo
	soon eval '[ "$(port_state a rxe_na)" = PORT_ACTIVE ]'
	local gid
	gid=$(index a 4)
	point "lo" 4000 rxe_na "$gid" rxe_na "$gid" a "$(four a)"
	del a rxe_na
	ip -n a addr del "$(four a)/32" dev lo
}
one_machine() {
	pair_of_veth 1500 && named_n && up && over "veth, MTU 1500"
	pair_of_veth 4200 && named_n && up && over "veth, MTU 4200"
	pair_of_veth 4200 && named_n && up
	for n in a b; do on $n ethtool -K n$n tx-udp-segmentation off >/dev/null; done
	over "veth, MTU 4200, \`tx-udp-segmentation off\`"
	on_loopback
	pair_of_veth 4200 && each link add n@ type bridge && each link set w@ master n@ && up && over "bridge above veth"
	pair_of_veth 4200 && each link add link w@ name n@ type vlan id 7 && up w && over "VLAN above veth"
	pair_of_veth 4200 && each link add link w@ name n@ type macvlan mode bridge
	for n in a b; do on $n sysctl -qw net.ipv4.conf.w$n.arp_ignore=1; done
	up && over "MACVLAN above veth"
	pair_of_veth 4200 && each link add n@ type bond mode active-backup miimon 50 && each link set w@ down && each link set w@ master n@ &&
		each link set w@ up && up && over "bond of one veth, MTU 1500"
}

# --- two machines ----------------------------------------------------------------------------------------------------------------

# features ARGUMENT…: the settings of ethtool in both machines; fails if a device does not have them.
features() {
	local n
	for n in a b; do on $n ethtool -K "$(netdev $n)" "$@" >/dev/null 2>&1 || return; done
}
between() { point "$1" 300 "$(dev a)" "$(gid a 4)" "$(dev b)" "$(gid b 4)" b "$(ip4 b)"; }
mtu_of_both() { for n in a b; do on $n ip link set "$(netdev $n)" mtu "$1" || return; done; }
two_machines() {
	local kind feature
	kind=$(basename "$(readlink /sys/class/net/eth0/device/driver)")
	between "$kind, MTU 1500"
	if mtu_of_both 4200; then
		between "$kind, MTU 4200"
		mtu_of_both 1500
	fi
	for feature in gro tx-udp-segmentation tx sg; do
		features $feature off || continue
		between "$kind, \`$feature off\`"
		features $feature on sg on || true
	done
}

for _ in $(seq "$rounds"); do
	for variant in $variants; do
		no_links
		DRIVER_a=${variant/icrc/rxe_rs}
		DRIVER_b=$DRIVER_a
		[ "$variant" != icrc ] || load_here rxe_rs same_host_icrc=1
		links
		if [ "$TOPOLOGY" = two ]; then two_machines; else one_machine; fi
	done
done
while read -r name; do
	for variant in $variants; do
		median "$values/$name, $variant"
	done | awk -v name="$name" '
		{ cells = cells sprintf(" %d (%d to %d) |", $1, $2, $3); if (NR > 1) ratios = ratios sprintf("%s%.1f", NR > 2 ? "; " : "", $1 / first); else first = $1 }
		END { printf "| %s |%s %s |\n", name, cells, ratios }'
done <"$order"
