# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# One turn of one driver in a test machine: the driver is loaded, every point measured once, the driver unloaded. The host puts
# `measure` lines after this text. A point's output goes to results/points/NAME, its status to results/points.done.
points=/share/results/points
mkdir -p $points /tmp/points
for n in a b; do ip -n $n link set v$n mtu 4200; done
driver=$DRIVER_a
server=

# hears PID HEXPORT…: whether the process's network namespace has a TCP listener on one of the ports. No fork: it is in the way.
hears() {
	local pid=$1 file local_address state port _
	shift
	for file in tcp tcp6; do
		while read -r _ local_address _ state _; do
			[ "$state" = 0A ] || continue
			for port; do [ "${local_address##*:}" = "$port" ] && return 0; done
		done <"/proc/$pid/net/$file"
	done 2>/dev/null
	return 1
}
exec {naps}<> <(:)
nap() { read -rt "$1" -u $naps _; }
# comes PID HEXPORT: waits for the listener, or for the end of the process.
comes() {
	while ! hears "$1" "$2"; do
		[ -d "/proc/$1" ] || return 1
		nap 0.01
	done
}

# measure NAME SECONDS COMMAND…: a perftest pair (its server in b, its client in a), or for `tcp` a client of a standing server.
measure() {
	local name=$1 seconds=$2 status=0 extra_a='' extra_b=''
	shift 2
	if [ "$driver" = tcp ]; then
		ip netns exec a timeout "$seconds" "$@" >"/tmp/points/$name" 2>&1 || status=$?
	else
		if [ "$driver" != siw ]; then
			extra_a="-x $gid_a"
			extra_b="-x $gid_b"
		else
			extra_a=-R
			extra_b=-R
		fi
		# shellcheck disable=SC2086
		ip netns exec b timeout -k 1 "$seconds" "$@" -F -d rxe_b $extra_b >/tmp/points/server 2>&1 &
		server=$!
		# shellcheck disable=SC2086
		if comes $server 4853; then
			ip netns exec a timeout -k 1 "$seconds" "$@" -F -d rxe_a $extra_a 10.77.0.2 >"/tmp/points/$name" 2>&1 || status=$?
		else
			status=1
		fi
		[ $status = 0 ] || kill $server 2>/dev/null
		wait $server || status=$((status ? status : 1))
		[ $status = 0 ] || sed 's/^/server: /' /tmp/points/server >>"/tmp/points/$name"
	fi
	cp "/tmp/points/$name" "$points/$name"
	echo "$name $status" >>/share/results/points.done
}

if [ "$driver" = tcp ]; then
	ip netns exec b iperf3 -s >/tmp/iperf3.log 2>&1 &
	comes $! 1451 || fail "iperf3 does not listen"
	ip netns exec b qperf >/tmp/qperf.log 2>&1 &
	comes $! 4D35 || fail "qperf does not listen"
else
	links || fail "$driver: no devices"
	if [ "$driver" != siw ]; then
		gid_a=$(gid a 4)
		gid_b=$(gid b 4)
	fi
fi
