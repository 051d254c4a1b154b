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
	export BENCH_DRIVER=$DRIVER_a BENCH_ON_A='' BENCH_ON_B='' BENCH_GID=''
	case $BENCH_DRIVER in
	tcp | limit) ;;
	*)
		links || fail "$BENCH_DRIVER: no devices"
		# siw is connected by the connection manager. Bound to no address its server would listen on both devices at once.
		case $BENCH_DRIVER in
		siw) BENCH_ON_A=-R BENCH_ON_B="-R --bind_source_ip $(ip4 b)" BENCH_GID=0 ;;
		*) BENCH_GID=$(gid a 4) BENCH_ON_A="-x $(gid a 4)" BENCH_ON_B="-x $(gid b 4)" ;;
		esac
		;;
	esac
	# The rest runs in node b, next to the servers.
	status=0
	ip netns exec b bash "${BASH_SOURCE[0]}" || status=$?
	no_links || fail "$BENCH_DRIVER: cannot be removed"
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
		# perftest measures the processor's frequency first; on a busy host that can fail, and its results are zeros then. It may say so in
		# the middle of another line.
		grep -q 'Correlation coefficient' "/tmp/points/$name" || break
	done
	cp "/tmp/points/$name" "$points/$name"
	echo "$name $status" >>/share/results/points.done
}
# network KIND: what lies between the nodes from now on: plain; nouso: devices that do not segment UDP; lossP, reorderP: P percent of the
# packets that each node sends are lost, or overtaken by those of the next 100 us.
network() {
	local n
	for n in a b; do
		tc -n $n qdisc del dev v$n root 2>/dev/null
		if [ "$1" = plain ]; then
			ip netns exec $n ethtool -K v$n tx-udp-segmentation on tso on gso on >/dev/null
			continue
		fi
		ip netns exec $n ethtool -K v$n tx-udp-segmentation off >/dev/null || return
		# What is lost are packets, not what a device would make packets of.
		case $1 in loss* | reorder*) ip netns exec $n ethtool -K v$n tso off gso off >/dev/null || return ;; esac
		case $1 in
		loss*) tc -n $n qdisc add dev v$n root netem limit 10000 loss "${1#loss}%" || return ;;
		reorder*) tc -n $n qdisc add dev v$n root netem limit 10000 delay 100us reorder $((100 - ${1#reorder}))% || return ;;
		esac
	done
}

# test_module NAME PARAMETER…: prints what a module says in the kernel's log, which measures when it is loaded.
test_module() {
	local mark="bench: $RANDOM$RANDOM" module=$1
	shift
	echo "$mark" >/dev/kmsg
	insmod "/share/$module.ko" "$@" || return
	rmmod "$module"
	dmesg | awk -v mark="$mark" -v name="$module: " 'index($0, mark) { seen = 1 } seen && (at = index($0, name)) { print substr($0, at) }'
}

# meter: lets the host note what it has used of its processors until now. Nothing runs meanwhile, so that it may come late.
meters=0
meter() {
	local _
	read -rt 0.3 -u "$naps" _
	: >"/share/results/meter.$meters"
	read -rt 0.3 -u "$naps" _
	meters=$((meters + 1))
}
# metered SECONDS FEW MANY COMMAND…: the command with few and with many iterations, and readings of the meter before, between, after.
metered() {
	local seconds=$1 few=$2 many=$3
	shift 3
	echo "metered $meters $few $many"
	meter
	once "$seconds" "$@" -n "$few" || return
	meter
	once "$seconds" "$@" -n "$many" || return
	meter
}

# connect_times SECONDS COUNT: cmtime between the nodes.
connect_times() {
	local server status=0
	timeout -k 1 "$1" cmtime -b 10.77.0.2 -c "$2" >/tmp/server 2>&1 &
	server=$!
	while [ -d /proc/$server ] && ! rdma resource show cm_id | grep -q LISTEN; do read -rt 0.01 -u "$naps" _; done
	ip netns exec a timeout -k 1 "$1" cmtime -b 10.77.0.1 -s 10.77.0.2 -c "$2" || status=$?
	[ $status = 0 ] || kill $server 2>/dev/null
	wait $server || status=$((status ? status : 1))
	[ $status = 0 ] || sed 's/^/server: /' /tmp/server
	return $status
}

# shellcheck disable=SC2086
once() {
	local seconds=$1 status=0 server
	shift
	case $1 in
	kbench)
		shift
		test_module kbench a=rxe_a b=rxe_b "$@"
		return
		;;
	limit)
		shift
		test_module limit ns=7 "$@" 7</run/netns/a
		return
		;;
	metered)
		shift
		metered "$seconds" "$@"
		return
		;;
	objects)
		ip netns exec a timeout "$seconds" /share/bin/objects rxe_a "$BENCH_GID" 10.77.0.2 "$2"
		return
		;;
	cmtime)
		connect_times "$seconds" "$2"
		return
		;;
	esac
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
