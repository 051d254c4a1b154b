# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures all points once with one driver, in a test machine: loads the driver, measures, unloads it. The host appends lines with calls of
# `network` and `measure` to this script. The output of a point is results/points/NAME, its status a line of results/points.done.
points=/share/results/points

# protect: configures ESP in transport mode between a and b, with fixed keys.
protect() {
	local n from to
	modprobe -a esp4 xfrm_user gcm 2>/dev/null || true
	for n in a b; do
		for from in a b; do
			if [ $from = a ]; then to=b; else to=a; fi
			ip -n $n xfrm state add src "$(ip4 $from)" dst "$(ip4 $to)" proto esp spi "0x10$(number $from)" reqid 7 mode transport \
				aead 'rfc4106(gcm(aes))' "0x$(printf '%040d' "$(number $from)")" 128 || fail "cannot add the ESP state"
			ip -n $n xfrm policy add src "$(ip4 $from)" dst "$(ip4 $to)" dir "$(if [ $from = $n ]; then echo out; else echo in; fi)" \
				tmpl proto esp reqid 7 mode transport || fail "cannot add the ESP policy"
		done
	done
}

# fill_memory: writes to nearly all memory of the machine. The host provides memory to a virtual machine page by page, at the first access,
# which takes microseconds: otherwise the driver that is measured first, or uses fresh memory, pays for that.
fill_memory() {
	mount -t tmpfs -o size=90% none /mnt || return
	dd if=/dev/zero of=/mnt/memory bs=1M >/dev/null 2>&1 || true # It ends when the file system is full.
	umount /mnt
}

if [ -z "${BENCH_DRIVER:-}" ]; then
	fill_memory || fail "cannot write to the memory of the machine"
	mkdir -p $points /tmp/points
	# With ESP the active MTU of 4096 needs 84 bytes more.
	for n in a b; do ip -n $n link set v$n mtu $((${BENCH_ESP:+100} + 4200)); done
	[ -z "${BENCH_ESP:-}" ] || protect
	[ -z "${BENCH_ICRC:-}" ] || load_here rxe_rs same_host_icrc=1
	export BENCH_DRIVER=$DRIVER_a BENCH_ON_A='' BENCH_ON_B='' BENCH_GID=''
	case $BENCH_DRIVER in
	tcp | limit) ;;
	*)
		links || fail "$BENCH_DRIVER: cannot load the driver and add its devices"
		# siw needs the connection manager. Without an address its server would listen on both devices.
		case $BENCH_DRIVER in
		siw) BENCH_ON_A=-R BENCH_ON_B="-R --bind_source_ip $(ip4 b)" BENCH_GID=0 ;;
		*) BENCH_GID=$(gid a 4) BENCH_ON_A="-x $(gid a 4)" BENCH_ON_B="-x $(gid b 4)" ;;
		esac
		;;
	esac
	# The rest runs in node b, where the servers are.
	status=0
	ip netns exec b bash "${BASH_SOURCE[0]}" || status=$?
	no_links || fail "$BENCH_DRIVER: cannot be removed"
	exit $status
fi

# Reads of this FIFO with a timeout replace sleep(1), which would start a process.
mkfifo /tmp/sleep
exec {sleep_fd}<>/tmp/sleep
# wait_listening PID HEXPORT: waits for a TCP listener; fails if the process ends before. It starts no processes, which would disturb the
# server.
wait_listening() {
	local file address state _
	while [ -d "/proc/$1" ]; do
		for file in /proc/net/tcp /proc/net/tcp6; do
			while read -r _ address _ state _; do
				[ "$state:${address##*:}" = "0A:$2" ] && return
			done <$file
		done
		read -rt 0.01 -u "$sleep_fd" _
	done
	return 1
}

# measure NAME SECONDS COMMAND…: runs a command of `once`, up to three times if perftest cannot determine the frequency of the processor.
measure() {
	local name=$1 status=0 _
	shift
	for _ in 1 2 3; do
		status=0
		once "$@" >"/tmp/points/$name" 2>&1 || status=$?
		# perftest measures the frequency of the processor first. On a busy host that can fail; then its results are zeros. The message may
		# be in the middle of another line.
		grep -q 'Correlation coefficient' "/tmp/points/$name" || break
	done
	cp "/tmp/points/$name" "$points/$name"
	echo "$name $status" >>/share/results/points.done
}
# network KIND: configures the network between the nodes. plain: as it is; nouso: devices without UDP segmentation; lossP, reorderP: the
# same, and P percent of the packets that each node sends are dropped, or sent without the delay of 100 us that the others have.
network() {
	local n
	for n in a b; do
		tc -n $n qdisc del dev v$n root 2>/dev/null
		if [ "$1" = plain ]; then
			ip netns exec $n ethtool -K v$n tx-udp-segmentation on tso on gso on >/dev/null
			continue
		fi
		ip netns exec $n ethtool -K v$n tx-udp-segmentation off >/dev/null || return
		# netem must drop single packets, not buffers that a device would segment.
		case $1 in loss* | reorder*) ip netns exec $n ethtool -K v$n tso off gso off >/dev/null || return ;; esac
		case $1 in
		loss*) tc -n $n qdisc add dev v$n root netem limit 10000 loss "${1#loss}%" || return ;;
		reorder*) tc -n $n qdisc add dev v$n root netem limit 10000 delay 100us reorder $((100 - ${1#reorder}))% || return ;;
		esac
	done
}

# test_module NAME PARAMETER…: loads and unloads a module, which measures while it is loaded, and prints its messages in the kernel log.
test_module() {
	local mark="bench: $RANDOM$RANDOM" module=$1
	shift
	echo "$mark" >/dev/kmsg
	insmod "/share/$module.ko" "$@" || return
	rmmod "$module"
	dmesg | awk -v mark="$mark" -v name="$module: " 'index($0, mark) { seen = 1 } seen && (at = index($0, name)) { print substr($0, at) }'
}

# meter: makes the host record the processor time of the machine. Nothing runs for 0.3 s before and after, so that a delay does not matter.
meters=0
meter() {
	local _
	read -rt 0.3 -u "$sleep_fd" _
	: >"/share/results/meter.$meters"
	read -rt 0.3 -u "$sleep_fd" _
	meters=$((meters + 1))
}
# metered SECONDS FEW MANY COMMAND…: runs the command with few and with many iterations, and `meter` before, between and after.
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

# connect_times SECONDS COUNT: runs cmtime between the nodes, each end on a processor of its own.
connect_times() {
	local server status=0
	taskset -c 1 timeout -k 1 "$1" cmtime -b 10.77.0.2 -c "$2" >/tmp/server 2>&1 &
	server=$!
	while [ -d /proc/$server ] && ! rdma resource show cm_id | grep -q LISTEN; do read -rt 0.01 -u "$sleep_fd" _; done
	taskset -c 0 ip netns exec a timeout -k 1 "$1" cmtime -b 10.77.0.1 -s 10.77.0.2 -c "$2" || status=$?
	[ $status = 0 ] || kill $server 2>/dev/null
	wait $server || status=$((status ? status : 1))
	[ $status = 0 ] || sed 's/^/server: /' /tmp/server
	return $status
}

# once SECONDS COMMAND…: runs one measurement: of a kernel module (kbench, limit), metered, objects or cmtime; for tcp a client of the
# servers started below; else a perftest server in b and its client in a.
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
		# A process of User Mode Linux that moves to another processor pays 40 us for each system call in place of 10 (PERFORMANCE.md).
		taskset -c 0 ip netns exec a timeout "$seconds" /share/bin/objects rxe_a "$BENCH_GID" 10.77.0.2 "$2"
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
	# Each end is bound to a processor; otherwise the values would depend on the scheduler's choice.
	taskset -c 1 timeout -k 1 "$seconds" "$@" -F -d rxe_b $BENCH_ON_B >/tmp/server 2>&1 &
	server=$!
	if wait_listening $server 4853; then
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
	wait_listening $! 1451
	taskset -c 1 qperf >/tmp/qperf.log 2>&1 &
	wait_listening $! 4D35
	trap 'kill $(jobs -p)' EXIT
fi
