# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures the effects of the settings in docs/tuning.md between two namespaces of one machine: ROUNDS rounds (default 5) of all points in
# turn. Prints the median and the extremes of each point. In User Mode Linux (README.md has the options of qemu/run):
#
#   qemu/build-module.sh -u && qemu/run --uml --pin --seconds 600 --ko out/uml-7.3/rxe_rs.ko -- qemu/bench/tuning.sh
rounds=${ROUNDS:-5}
values=$(mktemp -d)

mtu() { for n in a b; do ip -n $n link set v$n mtu "$1"; done; }
uso() { for n in a b; do ip netns exec $n ethtool -K v$n tx-udp-segmentation "$1" >/dev/null; done; }
# rps MASK_B MASK_A: the processors on which packets are processed that arrive at b and at a; 0: those on which they arrive, which are those of
# their senders for veth devices.
rps() {
	on b sh -c "echo $1 >/sys/class/net/vb/queues/rx-0/rps_cpus"
	on a sh -c "echo $2 >/sys/class/net/va/queues/rx-0/rps_cpus"
}
# icrc 0|1: loads the module with or without an ICRC in packets that stay on the host.
icrc() {
	[ "$(cat /sys/module/rxe_rs/parameters/same_host_icrc 2>/dev/null)" != "$1" ] || return 0
	no_links
	load_here rxe_rs "same_host_icrc=$1"
	links
}

# point NAME COLUMN CPUS TOOL OPTION…: a test of perftest, whose client and server run on these two processors; COLUMN of the last line of
# numbers is the value.
point() {
	local name=$1 column=$2 cpus=$3 tool=$4 output
	shift 4
	SERVED_LINES=0 serve b taskset -c "${cpus#*,}" "$tool" -d rxe_b -x "$(gid b 4)" -F "$@" >/dev/null
	listening b 18515
	output=$(on a taskset -c "${cpus%,*}" "$tool" -d rxe_a -x "$(gid a 4)" -F "$@" "$(ip4 b)") || fail "$name: $output"
	served
	awk -v column="$column" '/^ *[0-9]+ +[0-9]+ / { value = $column } END { print value }' <<<"$output" >>"$values/${name//\//_per_}"
}
bandwidth() { point "$1" 4 0,1 ib_write_bw -s 65536 -n 8000 "${@:2}"; }
rate() { point "$1" 5 0,1 ib_write_bw -n 20000 "${@:2}"; }
latency() { point "$1" 5 0,1 ib_send_lat -n 5000 "${@:2}"; }

round() {
	icrc 1
	mtu 4200
	bandwidth 'MTU 4200, 64 KiB, MiB/s'
	bandwidth '4 queue pairs, 64 KiB, MiB/s' -q 4
	point 'SEND, polling, 64 KiB, MiB/s' 4 0,1 ib_send_bw -s 65536 -n 8000
	point 'SEND, event driven, 64 KiB, MiB/s' 4 0,1 ib_send_bw -s 65536 -n 8000 -e
	uso off
	bandwidth 'no segmentation offload, 64 KiB, MiB/s'
	uso on
	mtu 1500
	bandwidth 'MTU 1500, 64 KiB, MiB/s'
	mtu 9000
	bandwidth 'MTU 9000, 64 KiB, MiB/s'
	mtu 4200
	rate '8 bytes, requests posted singly, millions per second' -s 8
	rate '8 bytes, lists of 16 requests, millions per second' -s 8 -l 16
	latency '64 bytes, polling, us' -s 64
	latency '64 bytes, events, us' -s 64 -e
	latency '64 bytes inline, polling, us' -s 64 -I 64
	latency '64 bytes not inline, polling, us' -s 64 -I 0
	rps 2 1
	bandwidth 'received on the processor of the receiver, 64 KiB, MiB/s'
	latency '64 bytes, polling, received on the processor of the receiver, us' -s 64
	latency '64 bytes, events, received on the processor of the receiver, us' -s 64 -e
	rps 0 0
	icrc 0
	bandwidth 'no ICRC on the same host, 64 KiB, MiB/s'
	point 'no ICRC on the same host, 1 MiB, MiB/s' 4 0,1 ib_write_bw -s 1048576 -n 1000
	icrc 1
	point 'with an ICRC, 1 MiB, MiB/s' 4 0,1 ib_write_bw -s 1048576 -n 1000
}

links
for number in $(seq "$rounds"); do
	echo "round $number"
	round
done
for file in "$values"/*; do
	name=${file##*/}
	read -r middle least greatest <<<"$(median "$file")"
	printf '%-55s %10s (%s to %s)\n' "${name//_per_//}" "$middle" "$least" "$greatest"
done
