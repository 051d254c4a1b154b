# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# One turn of one driver in a test machine: the driver is loaded, every point measured once, the driver unloaded. The host puts
# `measure` lines after this text. A point's output goes to results/points/NAME, its status to results/points.done.
points=/share/results/points

# protect: ESP in transport mode for all that a and b send each other, with keys that everybody may know.
protect() {
	local n from to
	modprobe -a esp4 xfrm_user gcm 2>/dev/null || true
	for n in a b; do
		for from in a b; do
			if [ $from = a ]; then to=b; else to=a; fi
			ip -n $n xfrm state add src "$(ip4 $from)" dst "$(ip4 $to)" proto esp spi "0x10$(number $from)" reqid 7 mode transport \
				aead 'rfc4106(gcm(aes))' "0x$(printf '%040d' "$(number $from)")" 128 || fail "no ESP"
			ip -n $n xfrm policy add src "$(ip4 $from)" dst "$(ip4 $to)" dir "$(if [ $from = $n ]; then echo out; else echo in; fi)" \
				tmpl proto esp reqid 7 mode transport || fail "no policy"
		done
	done
}

if [ -z "${BENCH_DRIVER:-}" ]; then
	mkdir -p $points /tmp/points
	# With ESP as much more as the active MTU of 4096 needs then.
	for n in a b; do ip -n $n link set v$n mtu $((${BENCH_ESP:+100} + 4200)); done
	[ -z "${BENCH_ESP:-}" ] || protect
	export BENCH_DRIVER=$DRIVER_a BENCH_ON_A='' BENCH_ON_B=''
	if [ "$BENCH_DRIVER" != tcp ]; then
		links || fail "$BENCH_DRIVER: no devices"
		# siw is connected by the connection manager. Bound to no address its server would listen on both devices at once.
		case $BENCH_DRIVER in
		siw) BENCH_ON_A=-R BENCH_ON_B="-R --bind_source_ip $(ip4 b)" ;;
		*) BENCH_ON_A="-x $(gid a 4)" BENCH_ON_B="-x $(gid b 4)" ;;
		esac
	fi
	# The rest runs in node b, next to the servers.
	status=0
	ip netns exec b bash "${BASH_SOURCE[0]}" || status=$?
	[ "$BENCH_DRIVER" = tcp ] || no_links || fail "$BENCH_DRIVER: cannot be removed"
	exit $status
fi

mkfifo /tmp/naps
exec {naps}<>/tmp/naps
# comes PID HEXPORT: waits for a TCP listener, or for the end of the process. No process is started meanwhile: it would be in the way.
comes() {
	local file address state _
	while [ -d "/proc/$1" ]; do
		for file in /proc/net/tcp /proc/net/tcp6; do
			while read -r _ address _ state _; do
				[ "$state:${address##*:}" = "0A:$2" ] && return
			done <$file
		done
		read -rt 0.01 -u "$naps" _
	done
	return 1
}

# measure NAME SECONDS COMMAND…: a perftest pair (its server in b, its client in a), or for `tcp` a client of a standing server.
measure() {
	local name=$1 status=0 _
	shift
	for _ in 1 2 3; do
		status=0
		once "$@" >"/tmp/points/$name" 2>&1 || status=$?
		# perftest measures the processor's frequency first; on a busy host that can fail, and its results are zeros then.
		grep -q '^Correlation coefficient' "/tmp/points/$name" || break
	done
	cp "/tmp/points/$name" "$points/$name"
	echo "$name $status" >>/share/results/points.done
}
# kernel_consumer WHAT SIZE DEPTH COUNT: prints what the module ktests/kbench measures between the two devices.
kernel_consumer() {
	local mark="bench: $RANDOM$RANDOM"
	echo "$mark" >/dev/kmsg
	insmod /share/kbench.ko a=rxe_a b=rxe_b what="$1" size="$2" depth="$3" count="$4" || return
	rmmod kbench
	dmesg | awk -v mark="$mark" 'index($0, mark) { seen = 1 } seen && sub(/.*kbench: /, "kbench: ")'
}
# shellcheck disable=SC2086
once() {
	local seconds=$1 status=0 server
	shift
	if [ "$1" = kbench ]; then
		kernel_consumer "$2" "$3" "$4" "$5"
		return
	fi
	if [ "$BENCH_DRIVER" = tcp ]; then
		taskset -c 0 ip netns exec a timeout "$seconds" "$@"
		return
	fi
	# Each end has a processor: where the scheduler puts them would rule the figures otherwise.
	taskset -c 1 timeout -k 1 "$seconds" "$@" -F -d rxe_b $BENCH_ON_B >/tmp/server 2>&1 &
	server=$!
	if comes $server 4853; then
		taskset -c 0 ip netns exec a timeout -k 1 "$seconds" "$@" -F -d rxe_a $BENCH_ON_A 10.77.0.2 || status=$?
	else
		status=1
	fi
	[ $status = 0 ] || kill $server 2>/dev/null
	wait $server || status=$((status ? status : 1))
	[ $status = 0 ] || sed 's/^/server: /' /tmp/server
	return $status
}

if [ "$BENCH_DRIVER" = tcp ]; then
	taskset -c 1 iperf3 -s >/tmp/iperf3.log 2>&1 &
	comes $! 1451
	taskset -c 1 qperf >/tmp/qperf.log 2>&1 &
	comes $! 4D35
	trap 'kill $(jobs -p)' EXIT
fi
