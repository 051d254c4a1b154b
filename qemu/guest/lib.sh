# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Functions for test scripts. There are two nodes, a and b: network namespaces of one machine connected by a veth pair (TOPOLOGY=netns), or
# two machines connected by an Ethernet (TOPOLOGY=two, scripts run in a). The functions take the node as their argument and work with both.
. /share/env
SELF=$(cat /run/rxe-node 2>/dev/null)
# Python programs of tests import from tests/lib and guest/.
export PYTHONPATH=/share/tests:/share/guest

# --- the two nodes ---------------------------------------------------------------------------------------------------------------

# on NODE COMMAND…: runs a command at the node; its output and status are those of the function.
on() {
	local node=$1
	shift
	if [ "$TOPOLOGY" = netns ]; then
		ip netns exec "$node" "$@"
	elif [ "$node" = "$SELF" ]; then
		"$@"
	else
		python3 /share/guest/agent.py call "$@"
	fi
}

# call NODE FUNCTION…: runs a function of this file in the machine of NODE (not inside its network namespace).
call() {
	local node=$1
	shift
	if [ "$TOPOLOGY" = netns ] || [ "$node" = "$SELF" ]; then
		"$@"
	else
		python3 /share/guest/agent.py call bash -c '. /share/guest/lib.sh; "$@"' bash "$@"
	fi
}

netdev() { if [ "$TOPOLOGY" = netns ]; then echo "v$1"; else echo eth0; fi; }
dev() { if [ "$TOPOLOGY" = netns ]; then echo "rxe_$1"; else echo rxe0; fi; }
number() { case $1 in a) echo 1 ;; b) echo 2 ;; esac; }
ip4() { echo "10.77.0.$(number "$1")"; }
ip6() { echo "fd77::$(number "$1")"; }
addr() { "ip$2" "$1"; }
driver() { local v=DRIVER_$1; echo "${!v}"; }
link_type() { case $(driver "$1") in rdma_rxe) echo rxe ;; *) driver "$1" ;; esac; }

# topology_up: creates the network namespaces and sets the addresses; called once per machine.
topology_up() {
	local n
	if [ "$TOPOLOGY" = netns ]; then
		for n in a b; do
			ip netns add $n
			ip -n $n link set lo up
		done
		veth_up
	else
		eth0_up
		ip link set eth1 up
		ip addr add "10.78.0.$(number "$SELF")/24" dev eth1
	fi
}

# eth0_up: enables the network device of this machine, one of two, and sets its addresses.
eth0_up() {
	local d
	# User Mode Linux has other names.
	for d in /sys/class/net/vec*; do
		[ ! -e "$d" ] || ip link set "${d##*/}" name "eth${d##*/vec}"
	done
	# The machine has no udev; only virtio_net is loaded already.
	[ -e /sys/class/net/eth0 ] || modprobe -a $(cat /sys/bus/pci/devices/*/modalias)
	ip link set eth0 up
	ip addr add "$(ip4 "$SELF")/24" dev eth0
	ip addr add "$(ip6 "$SELF")/64" dev eth0 nodad
}

veth_up() {
	local n
	ip link add va netns a type veth peer name vb netns b
	for n in a b; do
		ip -n $n addr add "$(ip4 $n)/24" dev v$n
		ip -n $n addr add "$(ip6 $n)/64" dev v$n nodad
		ip -n $n link set v$n up
	done
}

# --- kernel log ------------------------------------------------------------------------------------------------------------------

mark() { echo "rxe-test: $*" >/dev/kmsg; }
# log_part NTH MARK: the kernel log behind the NTH newest such mark, up to the next one. If the mark has been overwritten by what came later,
# all of it, behind a line that says so and fails the test (../gate.py).
log_part() {
	dmesg | awk -v nth="$1" -v mark="rxe-test: $2" '
		index($0, mark) { marks[++count] = NR }
		{ line[NR] = $0 }
		END {
			begin = count < nth ? 0 : marks[count - nth + 1]
			end = nth > 1 ? marks[count - nth + 2] : NR + 1
			if (!begin)
				print "rxe-test: the log has been overwritten since \"" substr(mark, 11) "\""
			for (n = begin + 1; n < end; n++)
				print line[n]
		}'
}
# since MARK: the kernel log behind the newest such mark.
since() { log_part 1 "$*"; }
# keep_log: for a test that may write more than the kernel log of this machine holds: stores what has come since the test before it, or since
# the last call, with the results of the test (runner.sh).
keep_log() {
	mark "$RXE_MARK"
	log_part 2 "$RXE_MARK" >>"/share/results/$RXE_TEST.kept-$SELF"
}

# --- driver ----------------------------------------------------------------------------------------------------------------------

# load NODE: loads the driver of the node in its machine, unless it is loaded.
load() { call "$1" load_here "$(driver "$1")"; }
# module_file MODULE: the file of a module under test for the kernel of this machine, or nothing.
module_file() {
	local folder=/share
	[ ! -d "/share/$SELF" ] || folder=/share/$SELF
	[ ! -e "$folder/$1.ko" ] || echo "$folder/$1.ko"
}
# load_here MODULE [PARAMETER=VALUE …]: loads the module under test and its dependencies, or, if there is none of that name, the kernel's.
load_here() {
	grep -q "^$1 " /proc/modules && return 0
	local file d
	file=$(module_file "$1")
	if [ "$file" ]; then
		for d in $(modinfo -F depends "$file" | tr , ' '); do
			if [ "$(module_file "$d")" ]; then load_here "$d"; else modprobe "$d"; fi || return
		done
		insmod "$file" "${@:2}"
	else
		modprobe "$@"
	fi
}
unload() { call "$1" rmmod "$(driver "$1")"; }

# add NODE [DEVICE] [NETDEV], del NODE [DEVICE]: rdma link add/del at the node.
add() { on "$1" rdma link add "${2:-$(dev "$1")}" type "$(link_type "$1")" netdev "${3:-$(netdev "$1")}"; }
del() { on "$1" rdma link del "${2:-$(dev "$1")}"; }
have() { call "$1" test -e "/sys/class/infiniband/${2:-$(dev "$1")}"; }

# links: loads the driver and adds the device of both nodes, unless they exist.
links() {
	local n
	for n in a b; do
		have $n && continue
		load $n && add $n || return
	done
}

# resolve_neighbours: a lost packet of ARP or neighbour discovery is retransmitted after a second only, and RDMA does not wait that long.
resolve_neighbours() {
	local family
	for family in 4 6; do
		on a ping -c 1 -W 10 "$(addr b $family)" >/dev/null
		on b ping -c 1 -W 10 "$(addr a $family)" >/dev/null
	done
}

# impair_network NETEM-OPTION…: what netem does to the packets of both nodes, until restore_network or the end of the shell.
impair_network() {
	local n
	links
	resolve_neighbours
	for n in a b; do
		call $n modprobe sch_netem
		on $n tc qdisc replace dev "$(netdev $n)" root netem "$@" limit 100000
	done
	trap restore_network EXIT
}
restore_network() { for n in a b; do on $n tc qdisc del dev "$(netdev $n)" root; done; }

# no_links: removes all devices and unloads the drivers in both machines.
no_links() { call a no_links_here; if [ "$TOPOLOGY" = two ]; then call b no_links_here; fi; }
no_links_here() {
	local d m
	for d in /sys/class/infiniband/*; do
		# It may disappear meanwhile, with a namespace that has been deleted.
		[ ! -e "$d" ] || rdma link del "${d##*/}" || [ ! -e "$d" ]
	done
	for m in rxe_rs rdma_rxe siw; do
		if grep -q "^$m " /proc/modules; then rmmod $m || return; fi
	done
}

# firewall NODE: a firewall at the node that drops what no rule accepts. no_firewalls: removes all rules of nftables at both nodes, and the
# modules that they have loaded: connection tracking must not stay, because some tests load it in a certain order.
firewall() { on "$1" nft -f /share/tests/lib/firewall.nft; }
no_firewalls() {
	local n
	for n in a b; do on $n nft flush ruleset; done
	for n in a b; do call $n no_firewall_modules_here || return; done
}
no_firewall_modules_here() {
	local m
	for m in nft_queue nfnetlink_queue nft_ct nf_conntrack; do
		# The rules are freed a little later.
		! grep -q "^$m " /proc/modules || soon modprobe -r "$m" || return
	done
}

# gid NODE 4|6: prints the index of the node's GID of that address family. gids NODE [DEVICE] prints all GIDs.
gid() {
	local want i
	case $2 in
	4) want=$(printf '0000:0000:0000:0000:0000:ffff:0a4d:%04x' "$(number "$1")") ;;
	6) want=$(printf 'fd77:0000:0000:0000:0000:0000:0000:%04x' "$(number "$1")") ;;
	esac
	call "$1" gid_here "$(dev "$1")" "$want"
}
gid_here() {
	local i
	for _ in $(seq 50); do
		for i in $(seq 0 15); do
			[ "$(cat "/sys/class/infiniband/$1/ports/1/gids/$i" 2>/dev/null)" = "$2" ] && echo "$i" && return
		done
		sleep 0.1
	done
	echo "device $1 has no GID $2" >&2
	return 1
}
gids() { call "$1" gids_here "${2:-$(dev "$1")}"; }
gids_here() { cat "/sys/class/infiniband/$1/ports/1/gids/"* 2>/dev/null | grep -v '^0000:0000:0000:0000:0000:0000:0000:0000$'; }

# active_mtu NODE [DEVICE], port_state NODE [DEVICE]: print these attributes as ibv_devinfo shows them.
active_mtu() { on "$1" ibv_devinfo -d "${2:-$(dev "$1")}" | awk '/active_mtu/ { print $2 }'; }
port_state() { on "$1" ibv_devinfo -d "${2:-$(dev "$1")}" | awk '/state:/ { print $2 }'; }

# counter NODE NAME [DEVICE]: prints a hardware counter of port 1.
counter() { call "$1" cat "/sys/class/infiniband/${3:-$(dev "$1")}/ports/1/hw_counters/$2"; }

# --- clients and servers ---------------------------------------------------------------------------------------------------------

# serve NODE COMMAND…: starts a server in the background; `served` waits for it and shows its output.
serve() {
	local node=$1
	shift
	SERVER_LOG=$(mktemp)
	echo "[$node] $*"
	on "$node" "$@" >"$SERVER_LOG" 2>&1 &
	SERVER=$!
}

# listening NODE PORT|cm: waits until a socket listens on the TCP port, or an RDMA CM identifier listens, at the node.
listening() {
	local i
	for i in $(seq 100); do
		kill -0 "$SERVER" 2>/dev/null || { served || true; fail "the server ended before its client was started"; }
		if [ "$2" = cm ]; then
			# Identifiers of kernel users, such as RDS, listen as long as their modules are loaded.
			if on "$1" rdma resource show cm_id 2>/dev/null | grep LISTEN | grep -qv 'comm \['; then
				# The state is set before the port is open (cma_ib_listen), and a request in between is rejected.
				sleep 0.2
				return
			fi
		else
			on "$1" ss -Hltn "sport = :$2" | grep -q . && return
		fi
		sleep 0.1
	done
	served || true
	fail "nothing listens on $2 at node $1"
}

# stop_server [SIGNAL]: ends the server. SERVER is the shell that runs `on`, whose child is the server or what has started it at the other
# machine; the shell ends when that has ended.
stop_server() { pkill "-${1:-TERM}" -P "$SERVER" || kill "-${1:-TERM}" "$SERVER" 2>/dev/null || true; }

# served: waits ten seconds for the server to end, and kills it after that; shows its output (the last SERVED_LINES lines, if set) and
# returns its status.
served() {
	local status=0 i
	for i in $(seq 100); do
		kill -0 "$SERVER" 2>/dev/null || break
		[ "$i" = 100 ] && { echo "the server did not end within 10 s and is killed"; stop_server KILL; }
		sleep 0.1
	done
	wait "$SERVER" || status=$?
	tail -n "${SERVED_LINES:-+1}" "$SERVER_LOG" | sed 's/^/  | /'
	rm -f "$SERVER_LOG"
	return $status
}

# client NODE COMMAND…: prints a command and runs it at the node.
client() {
	local node=$1
	shift
	echo "[$node] $*"
	on "$node" "$@"
}

# perftest CLIENT SERVER FAMILY TOOL OPTION…: runs a tool of perftest between two nodes. A busy host stops an emulated machine for seconds
# at times. Eight times the timeout that perftest sets by default, 14, are 0.5 s; eight times 18 are 8.6 s. QP_TIMEOUT is another one.
perftest() {
	local client=$1 server=$2 family=$3 tool=$4
	shift 4
	serve "$server" "$tool" -d "$(dev "$server")" -x "$(gid "$server" "$family")" -F -u "${QP_TIMEOUT:-18}" "$@"
	listening "$server" 18515
	client "$client" "$tool" -d "$(dev "$client")" -x "$(gid "$client" "$family")" -F -u "${QP_TIMEOUT:-18}" "$@" "$(ip4 "$server")"
	served
}
# perftest_by_cm CLIENT SERVER TOOL OPTION…: the same, connected by librdmacm.
perftest_by_cm() {
	local client=$1 server=$2 tool=$3
	shift 3
	serve "$server" "$tool" -R -F -u "${QP_TIMEOUT:-18}" "$@"
	listening "$server" cm
	client "$client" "$tool" -R -F -u "${QP_TIMEOUT:-18}" "$@" "$(ip4 "$server")"
	served
}
# qperf_by_cm CLIENT SERVER TEST: a test of qperf for two seconds, connected by librdmacm. The tests ver_* compare the results of ATOMICs.
# qperf's server names the port to its client before it listens on it (cm_open_server in its rdma.c), so a request that is rejected is repeated.
qperf_by_cm() {
	local client=$1 server=$2 test=$3 attempt status output
	serve "$server" qperf
	listening "$server" 19765
	for attempt in 1 2 3 4 5; do
		status=0
		output=$(client "$client" qperf -cm 1 -t 2 -m 4096 "$(ip4 "$server")" "$test" 2>&1) || status=$?
		printf '%s\n' "$output"
		if [ $status = 0 ] || [[ $output != *"Event rejected"* ]]; then break; fi
		echo "the server of qperf did not listen yet, attempt $attempt"
	done
	on "$client" qperf "$(ip4 "$server")" quit
	served || return
	return $status
}
# median FILE: prints the median of the numbers in a file, the least and the greatest.
median() {
	sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[1], v[NR] }'
}

# python_case FILE ARGUMENT…: does the same as `python3 FILE …`, by a request to cases.py if that runs.
python_case() {
	[ -p /run/cases ] || { python3 "$@"; return; }
	local folder status requester=$BASHPID
	folder=$(mktemp -d)
	mkfifo "$folder/status"
	# In a subshell, because the program inherits the standard output of this one, which must not be redirected.
	(printf '%s\n' "$requester $folder ${*@Q}" >/run/cases)
	read -r status <"$folder/status"
	rm -r "$folder"
	return "$status"
}

# reap: kills the processes that a test left running at both nodes.
reap() {
	local n
	if [ "$TOPOLOGY" = netns ]; then
		# kill fails for processes that have ended meanwhile.
		for n in a b; do ip netns pids $n 2>/dev/null | xargs -r kill -9 2>/dev/null || true; done
	else
		python3 /share/guest/agent.py reap 2>/dev/null
	fi
	return 0
}

# capture NODE [FILE]: starts tcpdump of the node's RoCE traffic, until `captured NODE`. The capture is results/FILE; without FILE it is
# the capture of the test, in which the host checks each packet, and the test fails if one is malformed.
capture() {
	local n
	# Packets are checked as they are on the wire: without GSO and GRO, and with checksums.
	for n in a b; do on $n ethtool -K "$(netdev $n)" tx off tx-udp-segmentation off gro off >/dev/null 2>/dev/null || true; done
	CAPTURE_FILE=/share/results/${2:-$RXE_TEST.wire}
	on "$1" tcpdump -Z root --immediate-mode -q -i "$(netdev "$1")" -B 16384 ${CAPTURE_LIMITS:-} -U -w "$CAPTURE_FILE" udp port 4791 >/tmp/tcpdump.log 2>&1 &
	CAPTURE=$!
	local _
	for _ in $(seq 100); do grep -q listening /tmp/tcpdump.log && return; sleep 0.1; done
	fail "tcpdump did not start: $(cat /tmp/tcpdump.log)"
}
captured() {
	local n line
	# A signal ends tcpdump although packets wait, on a busy host for seconds. By another signal it shows how many it has written and how many
	# have passed its filter. One that has ended by itself, because its limit is reached, has written all that it was to write.
	for n in $(seq 100); do
		on "${1:-a}" pkill -USR1 -x tcpdump || break
		sleep 0.1
		line=$(grep 'captured, .* received by filter' /tmp/tcpdump.log | tail -n 1 | tr -dc '0-9 ')
		# shellcheck disable=SC2086
		! written_all $line || break
		[ "$n" != 100 ] || echo "tcpdump has not written all packets: $line"
	done
	on "${1:-a}" pkill -INT -x tcpdump || true
	wait "$CAPTURE" 2>/dev/null || true
	for n in a b; do on $n ethtool -K "$(netdev $n)" tx on tx-udp-segmentation on gro on >/dev/null 2>/dev/null || true; done
}
# written_all WRITTEN PASSED DROPPED
written_all() { [ $# = 3 ] && [ $(($1 + $3)) -ge "$2" ]; }

# --- verdicts --------------------------------------------------------------------------------------------------------------------

fail() { echo "FAIL: $*"; exit 1; }
# skip REASON…: ends a test that cannot run here, with the status of kselftest.
skip() { echo "SKIP: $*"; exit 4; }
# has_module NAME: whether the kernel has a module of that name. Debian's cloud kernels lack some: rdma_rxe, ib_iser, 9p.
has_module() { modinfo -n "$1" >/dev/null 2>&1; }
is() { [ "$1" = "$2" ] || fail "${3:-value}: got '$1', expected '$2'"; }
# refused COMMAND…: fails the test unless the command fails.
refused() { if "$@"; then fail "was accepted: $*"; fi; }
# soon COMMAND…: repeats the command until it succeeds, and fails the test after ten seconds.
soon() { local _; for _ in $(seq 50); do "$@" && return; sleep 0.2; done; fail "did not happen: $*"; }
# no_regions_left: fails the test if a process has a memory region; regions of kernel users are ignored.
no_regions_left() { [ -z "$(rdma resource show mr | grep -v kernel)" ] || fail "regions are left: $(rdma resource show mr)"; }
# seed: sets SEED to RXE_SEED, or to a random number, and prints it, so that the run can be repeated.
seed() { SEED=${RXE_SEED:-$RANDOM}; echo "RXE_SEED=$SEED"; }
