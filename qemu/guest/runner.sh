#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# runner.sh: runs the tests of /share/plan in a test machine: a line each, `NAME SECONDS FILE FUNCTION`. Writes the start and the end of
# each test to results/events-a, which the host reads, and the output of each test, the kernel log of each machine and, if the test fails,
# the counters of the devices to results/. The kernel log of a test starts where that of the previous test ended, so that no report between
# two tests is lost; `after.dmesg-NODE` is the log after the last test. RXE_CAPTURE: if set, the RoCE packets of each test are captured.
# A test finds its own name, file and time limit, and the line of the log behind which its own begins, in the variables that are exported.
. /share/guest/lib.sh

results=/share/results
nodes=a
[ "$TOPOLOGY" = two ] && nodes="a b"

for n in $nodes; do call "$n" mark "end of the boot"; done
last="end of the boot"
while read -r name seconds file function; do
	[ -n "$name" ] || continue
	log=$results/$name
	for n in $nodes; do call "$n" mark "begin $name"; done
	echo "begin $name" >>$results/events-a
	if [ -n "${RXE_CAPTURE:-}" ]; then CAPTURE_LIMITS="-s 160 -c 100000" capture a "$name.pcap"; fi
	start=${EPOCHREALTIME/./}
	export RXE_TEST=$name RXE_FILE=$file RXE_MARK=$last RXE_LIMIT=$seconds
	timeout -k 5 "$seconds" bash /share/guest/case.sh "$file" $function >"$log.log" 2>&1 </dev/null
	status=$?
	[ $status = 124 ] && echo "TIMEOUT after $seconds s" >>"$log.log"
	case $status in
	0 | 4) ;;
	*) for n in $nodes; do
		echo "counters in the machine of $n:"
		call "$n" sh -c 'grep -sv "^0$" /sys/class/infiniband/*/ports/1/hw_counters/* | sed "s|.*infiniband/||; s|/ports.*/| |"'
	done >"$log.counters" 2>&1 ;;
	esac
	if [ -n "${RXE_CAPTURE:-}" ]; then captured a; fi
	reap
	took=$(((${EPOCHREALTIME/./} - start) / 1000))
	for n in $nodes; do
		{
			[ ! -e "$log.kept-$n" ] || cat "$log.kept-$n"
			call "$n" since "$last"
		} >"$log.dmesg-$n"
		rm -f "$log.kept-$n"
		call "$n" mark "end $name"
	done
	last="end $name"
	echo "end $name $status $took" >>$results/events-a
done </share/plan
for n in $nodes; do call "$n" since "$last" >"$results/after.dmesg-$n"; done
[ "$TOPOLOGY" = two ] && python3 /share/guest/agent.py quit
exit 0
