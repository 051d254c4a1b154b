# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The demonstration: from insmod to RDMA between two machines, with the tools' own output. Runs in machine a; `on b` runs commands in b.
declare -a table
SERVED_LINES=3
failed=0

heading() { printf '\n=== %s\n' "$*"; }

# step NODE COMMAND…: shows the command as typed, then what it prints. Ends the demonstration if it fails.
step() {
	local node=$1
	shift
	printf '%s# %s\n' "$node" "$*"
	on "$node" "$@" || { printf 'FAILED: %s\n' "$*"; exit 1; }
}

# try NAME BYTES PORT|cm SERVER-COMMAND -- CLIENT-COMMAND: runs a server in b and its client in a; adds a line to the final table.
try() {
	local name=$1 bytes=$2 port=$3 verdict=ok
	shift 3
	local server=()
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	heading "$name"
	(
		set -e
		serve b "${server[@]}"
		listening b "$port"
		printf 'a# %s\n' "$*"
		timeout 90 "$@"
		# rping's server reports the disconnect as an error; the client, which verified the data, determines the result.
		[ "${server[0]}" = rping ] && { served || true; } || served
	) || verdict=FAILED
	[ $verdict = ok ] || { failed=$((failed + 1)); reap; dmesg | tail -5; }
	table+=("$(printf '%-28s %14s   %s' "$name" "$bytes" "$verdict")")
}

a4=$(ip4 a) b4=$(ip4 b) b6=$(ip6 b)
heading "Two machines with the stock kernel $(uname -r): a $a4 and b $b4"
step a uname -sr
for n in a b; do
	d=$(driver $n)
	if [ -e "/share/$d.ko" ]; then
		for m in $(modinfo -F depends "/share/$d.ko" | tr , ' '); do call $n modprobe "$m"; done
		(cd /share && step $n insmod "/share/$d.ko")
	else
		step $n modprobe "$d"
	fi
	step $n rdma link add rxe0 type "$(link_type $n)" netdev eth0
done
step a rdma link show
step a ibv_devinfo -d rxe0
ga=$(gid a 4) gb=$(gid b 4) ga6=$(gid a 6) gb6=$(gid b 6)

try "ibv_rc_pingpong (IPv4)" $((500 * 4096 * 2)) 18515 \
	ibv_rc_pingpong -d rxe0 -g "$gb" -n 500 -c -- ibv_rc_pingpong -d rxe0 -g "$ga" -n 500 -c "$b4"
try "ibv_rc_pingpong (IPv6)" $((500 * 4096 * 2)) 18515 \
	ibv_rc_pingpong -d rxe0 -g "$gb6" -n 500 -c -- ibv_rc_pingpong -d rxe0 -g "$ga6" -n 500 -c "$b4"
try "ibv_ud_pingpong" $((500 * 1024 * 2)) 18515 \
	ibv_ud_pingpong -d rxe0 -g "$gb" -n 500 -s 1024 -- ibv_ud_pingpong -d rxe0 -g "$ga" -n 500 -s 1024 "$b4"
try "rping (IPv4, data verified)" $((10 * 120 * 2)) cm \
	rping -s -a "$b4" -V -S 120 -C 10 -- rping -c -a "$b4" -V -v -S 120 -C 10
try "rping (IPv6, data verified)" $((10 * 120 * 2)) cm \
	rping -s -a "$b6" -V -S 120 -C 10 -- rping -c -a "$b6" -V -v -S 120 -C 10
try "ib_write_bw" $((200 * 65536)) 18515 \
	ib_write_bw -d rxe0 -x "$gb" -F -n 200 -s 65536 -- ib_write_bw -d rxe0 -x "$ga" -F -n 200 -s 65536 "$b4"
try "ib_read_bw" $((200 * 65536)) 18515 \
	ib_read_bw -d rxe0 -x "$gb" -F -n 200 -s 65536 -- ib_read_bw -d rxe0 -x "$ga" -F -n 200 -s 65536 "$b4"
try "ib_send_bw" $((200 * 65536)) 18515 \
	ib_send_bw -d rxe0 -x "$gb" -F -n 200 -s 65536 -- ib_send_bw -d rxe0 -x "$ga" -F -n 200 -s 65536 "$b4"

heading "What the driver counted in a"
echo "a# rdma statistic show link rxe0/1     (what is not zero)"
rdma statistic show link rxe0/1 | grep -v ' 0 *$'
step a rdma link del rxe0
step a rmmod "$(driver a)"

heading "Result ($(driver a), Linux $(uname -r))"
printf '%-28s %14s   %s\n' client bytes result
printf '%s\n' "${table[@]}"
[ $failed = 0 ]
exit
