#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# selftest.sh [SUBJECT.NAME-PATTERN …]: runs tests of this folder on the running kernel in the way of tools/testing/selftests: as root,
# without a harness, with KTAP on stdout. The exit status is 0, 4 if all were skipped, 1 otherwise. A test also fails if a report of any
# part of the kernel, as gate.py knows them, is in the kernel log meanwhile. Without arguments: all tests that need one machine and nothing
# that has to be built. Creates two network namespaces a and b, joined by a veth pair, and deletes them afterwards, also if it is
# interrupted. The module is MODULE=rxe_rs.ko or that of modprobe. Tests delete all links of the host, so there must be none.
#
# Tests find their files in /share, which is in a mount namespace here, so that other processes do not see it.
set -u
here=$(cd "$(dirname "$0")" && pwd -P)
clone=$(cd "$here/../.." && pwd -P)

give_up() {
	echo "1..0 # SKIP $*"
	exit 4
}

if [ -z "${RXE_SELFTEST:-}" ]; then
	[ "$(id -u)" = 0 ] || give_up "root is needed"
	for tool in ip rdma python3; do command -v $tool >/dev/null || give_up "there is no $tool"; done
	python3 -c 'import pyverbs.device' 2>/dev/null || give_up "there is no pyverbs"
	for n in a b; do [ ! -e /run/netns/$n ] || give_up "there is a network namespace $n"; done
	[ ! -e /sys/module/rxe_rs ] || [ "$(cat /sys/module/rxe_rs/refcnt)" = 0 ] || give_up "the module is in use"
	# Devices of adapters have hardware, and cannot be deleted.
	for device in /sys/class/infiniband/*; do
		[ ! -e "$device" ] || { [ -e "$device/device" ] && [ ! -e "$device/pkey_table" ]; } ||
			give_up "the tests would delete the link ${device##*/}: rdma link del"
	done
	module=${MODULE:+$(realpath "$MODULE")}
	mkdir -p /share
	trap 'rmdir /share 2>/dev/null' EXIT
	trap 'exit 1' INT TERM HUP
	RXE_SELFTEST=1 MODULE=$module unshare --mount --propagation private "$0" "$@"
	exit
fi

mount -t tmpfs tmpfs /share
mkdir /share/results
ln -s "$here" /share/tests
ln -s "$clone/qemu/guest" /share/guest
[ -z "$MODULE" ] || ln -s "$MODULE" /share/rxe_rs.ko
# The tests of persistent memory overwrite it.
printf '%s\n' TOPOLOGY=netns DRIVER_a=rxe_rs DRIVER_b=rxe_rs RXE_SLOW=0 RXE_DEBUG=0 RXE_PERSISTENT_MEMORY=no 'export RXE_ARGS=' >/share/env
export PYTHONPYCACHEPREFIX=/share/pycache PYTHONDONTWRITEBYTECODE=

# shellcheck disable=SC1091
. /share/guest/lib.sh
clean_up() {
	reap
	no_links
	ip netns del a
	ip netns del b
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP
topology_up
modprobe -a ib_uverbs rdma_ucm 2>/dev/null

mapfile -t tests < <(PYTHONPATH=$clone/qemu python3 -m vm.discovery "$@")
[ ${#tests[@]} -gt 0 ] || { echo "no test has such a name: $*" >&2; exit 1; }

echo "KTAP version 1"
echo "1..${#tests[@]}"
number=0 passed=0 failed=0
last="begin of the tests"
mark "$last"
for line in "${tests[@]}"; do
	read -r name seconds file function <<<"$line"
	number=$((number + 1)) log=/share/results/$name.log kernel=/share/results/$name.dmesg
	mark "begin $name"
	RXE_TEST=$name timeout -k 5 "$seconds" bash /share/guest/case.sh "$file" "$function" >"$log" 2>&1 </dev/null
	status=$?
	reap
	# The kernel log of a test starts where that of the previous one ended, as in the harness.
	since "$last" >"$kernel"
	last="end $name"
	mark "$last"
	"$clone/qemu/gate.py" "$kernel" >>"$log" || status=1
	if [ $status = 0 ]; then
		passed=$((passed + 1))
		echo "ok $number $name"
	elif [ $status = 4 ] && grep -q '^SKIP: ' "$log"; then
		echo "ok $number $name # SKIP $(sed -n 's/^SKIP: //p' "$log" | head -n 1)"
	else
		failed=$((failed + 1))
		echo "not ok $number $name"
		sed 's/^/# /' "$log"
	fi
done

[ $failed = 0 ] || exit 1
[ $passed -gt 0 ] || exit 4
