#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# test.sh [check|suites|security|debug|transitions|fuzz]: all tests, those that need no machine, other projects' suites (ktests/suites),
# those that SECURITY.md names, those of the machines on the debug kernels, every change of a queue pair's state, or the fuzzers. Ends with
# `N passed, N failed`; status 0 if none failed.
# Logs of every step: out/test/. SUITES names some suites, KERNEL chooses the series of the full machine tests; the other one gets a short
# run. FUZZ_SECONDS says how long each fuzzer goes on (default 300), FUZZ_SEED what it begins with; FUZZ_KERNEL=uml takes the kernel
# without checks for bad accesses.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
# Nothing but the clone and the cache folder is to be written to.
[ -n "${RXE_CONFINED:-}" ] || exec "$here/confined.sh" "$here/test.sh" "$@"
cd "$clone"
mode=${1:-all}
logs=out/test
mkdir -p $logs
rm -rf $logs/*.log $logs/tally $logs/taken-*
touch $logs/tally
start=$(date +%s)

# step NAME COMMAND…: runs it with its output shown and kept, and counts. What reports its own tests is counted by them
# (cargo, unittest, KTAP), anything else as one. In a lane each line says whose it is.
in_lane=
step() {
	name=$1
	shift
	log=$logs/$name.log
	say "[$(( $(date +%s) - start )) s] $name"
	status=0
	{ "$@" 2>&1; echo "exit status $?"; } | tee "$log" | sed -u "/^exit status [0-9]*\$/d${in_lane:+; s/^/$name: /}"
	status=$(sed -n '$s/^exit status //p' "$log")
	awk -v name="$name" -v status="$status" '
		/^test result: / { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i } seen = 1 }
		/^# [0-9]+ passed, [0-9]+ failed/ { p += $2; f += $4; seen = 1 }
		/^Ran [0-9]+ tests? in / { ran = $2; seen = 1 }
		/^FAILED \(/ { n = $0; gsub(/[^0-9]+/, " ", n); m = split(n, a, " "); for (i = 1; i <= m; i++) bad += a[i] }
		END {
			p += ran - bad; f += bad
			if (!seen) p += (status == 0)
			if (status != 0 && f == 0) f = 1
			printf "%-24s %d %d\n", name, p, f
		}' "$log" >>$logs/tally
}

# Build results of the crates we depend on outlive the clone. The machine's own cargo, beside the 1.85 of the toolchain root; its registry copy stays in the cache folder too.
host_cargo() { CARGO_HOME=$cache/cargo CARGO_TARGET_DIR=$cache/target/host cargo "$@"; }
"$here/in-root.sh" "$here/fetch-crates.sh"

# together JOB…: two at a time, in this order; each job is a function, with an argument perhaps. An emulated machine keeps little more
# than one processor busy. Whoever gets to make the folder of a job does it.
lanes=
lane() {
	for job in "$@"; do
		if mkdir "$logs/taken-$job" 2>/dev/null; then
			$job
		fi
	done
}
together() {
	for number in 1 2; do
		( in_lane=$number; lane "$@" ) &
		lanes="$lanes $!"
	done
	for pid in $lanes; do
		wait "$pid" || echo "lane 0 1" >>$logs/tally
	done
	lanes=
}
# A background process of a shell ignores SIGINT, so whoever stops this script stops its lanes, too.
kill_tree() {
	for child in $(ps -o pid= --ppid "$1"); do
		kill_tree "$child"
	done
	kill "$1" 2>/dev/null || true
}
trap 'for pid in $lanes; do kill_tree "$pid"; done; exit 130' INT TERM

driver=${DRIVER:-rxe_rs}
series_of() { "$here/in-root.sh" "$here/kernel.py" show $1 | sed -n 's/^SERIES=//p'; }
main=$(series_of "${KERNEL:-}")
if [ "$driver" = rxe_rs ] && [ "$mode" != debug ] && [ "$mode" != transitions ] && [ "$mode" != fuzz ]; then
	step module "$here/build-module.sh" -k "$main"
fi

# `make KDIR=`, with the prepared tree as anybody's; the module must say that it is for that kernel.
kdir() {
	tree=$("$here/in-root.sh" "$here/kernel.py" show "$main" | sed -n 's/^TREE=//p')
	release=$(cat "$tree/include/config/kernel.release")
	rm -rf out/kdir
	"$here/in-root.sh" make KDIR="$tree" && "$here/in-root.sh" modinfo -F vermagic out/kdir/rxe_rs.ko | grep -F "$release "
}

# What needs no machine; the tests in one have the clock against them and go first.
without_machine() (
	[ -z "$in_lane" ] || renice -n 10 "$(sh -c 'echo $PPID')" >/dev/null
	step harness "$here/in-root.sh" env KERNEL="$main" python3 -m unittest discover -s qemu -p 'selftest*.py'
	step cargo-1.85 "$here/in-root.sh" env CARGO_TARGET_DIR="$cache/target/1.85" cargo test --workspace --locked --offline
	if command -v cargo >/dev/null; then
		step cargo-host host_cargo test --workspace --locked --offline
	fi
	step fmt "$here/lint.sh" fmt-check
	step doc env KERNEL="$main" CARGO_FLAGS=--offline "$here/lint.sh" doc
	if [ "$driver" = rxe_rs ]; then
		step kdir kdir
		step audit env KERNEL="$main" "$here/lint.sh" audit
		step clippy env KERNEL="$main" CARGO_FLAGS=--offline "$here/lint.sh" clippy
		step checkpatch env KERNEL="$main" "$here/lint.sh" checkpatch
	fi
)

machines() {
	name=$1 series=$2 topology=$3
	shift 3
	if [ "$driver" = rxe_rs ]; then
		step "$name" "$here/run" --kernel "$series" --topology "$topology" --driver "$driver" --ko "$clone/out/$series/rxe_rs.ko" "$@"
	else
		step "$name" "$here/run" --kernel "$series" --topology "$topology" --driver "$driver" "$@"
	fi
}

if [ "$mode" = transitions ]; then
	# System calls take microseconds there; where machines are emulated the same tests sample.
	step module-uml "$here/build-module.sh" -u -k "$main"
	step transitions "$here/run" --uml --kernel "$main" --ko "$clone/out/uml-$main/rxe_rs.ko" --test 'transitions.*'
fi

# The tests of one machine are shared out to two by the names of their files: the queue pairs' own, and the rest.
second_half='perf.* s*.* t*.* verbs.* w*.* netdev.*'
one_machine() (
	set -f
	machines vm-netns-1 "$main" netns --test '*' --without $second_half
)
one_more_machine() (
	set -f
	machines vm-netns-2 "$main" netns --test $second_half
)

two_machines() {
	machines vm-interop "$main" two --driver-b rdma_rxe --test 'cm.*' 'verbs.*pingpong*' 'perf.write_bw' 'perf.read_bw' 'perf.send_bw' \
		'perf.*by_cm' 'perf.u[cd]_*' 'perf.many_large_reads' 'wire.*' 'interop.*' 'loss.*_1_percent' 'mcast.*'
}

suite() { machines "suite-$1" "$main" netns --suite "$1"; }

kernel_users() {
	machines vm-ulp "$main" two --test 'ulp.*' 'mcast.*' 'ipsec.send' 'ipsec.rekeying_between_machines'
}

# The tests that SECURITY.md names, and all of the protocol crate's.
security_crate() {
	step cargo-security "$here/in-root.sh" env CARGO_TARGET_DIR="$cache/target/1.85" cargo test -p rxe_proto --locked --offline
}
security_one() {
	machines vm-security "$main" netns --test $("$here/security.py" netns)
}
security_two() {
	machines vm-security-two "$main" two --test $("$here/security.py" two)
}

# What a user sees first.
demo() {
	[ "$driver" != rxe_rs ] || step demo env KERNEL="$main" "$here/demo.sh"
}

other_kernels() {
	for other in 7.3 7.2; do
		[ "$other" != "$main" ] || continue
		if [ "$driver" = rxe_rs ]; then
			step "module-$other" "$here/build-module.sh" -k "$other"
		fi
		machines "vm-netns-$other" "$other" netns --test 'link.*' 'cm.rping*' 'verbs.*' 'perf.*_bw'
	done
}

# The debug kernels. A gigabyte takes too long there; no device is slower than those kernels. With shadow memory each page of a User Mode
# Linux process is a mapping of the host's, which allows 65530 of them: a gigabyte that lies scattered has more.
too_much='status.huge_message slow.*'
memory_checked() (
	step module-debug "$here/build-module.sh" -d -k "$main"
	set -f
	step vm-debug "$here/run" --uml --debug --kernel "$main" --ko "$clone/out/debug-$main/rxe_rs.ko" --test '*' \
		--without $too_much segments.halved
)
locks_checked() (
	step module-lockdep "$here/build-module.sh" -l -k "$main"
	set -f
	step vm-lockdep "$here/run" --debug --kernel "$main" --ko "$clone/out/lockdep-$main/rxe_rs.ko" --test '*' --without $too_much
	# RDS takes rds_trans_sem and the CM's locks in both orders, on any device: one report of its own, and no lock is checked from then on.
	step vm-lockdep-ulp "$here/run" --debug --kernel "$main" --ko "$clone/out/lockdep-$main/rxe_rs.ko" --topology two --test 'ulp.*' \
		--without ulp.rds
)

# The fuzzers, each for as long: of the user interface with feedback, of packets and rings in a machine, of the engine on the host.
fuzz_seconds=${FUZZ_SECONDS:-300}
fuzz_seed=${FUZZ_SEED:-$$}
fuzz_interface() (
	if [ "${FUZZ_KERNEL:-}" = uml ]; then
		set -- -u uml ''
	else
		set -- -d debug --debug
	fi
	step module-fuzz "$here/build-module.sh" "$1" -k "$main" -o "$clone/out/fuzz-$2-$main" "$clone" RXE_COVERAGE=1 modules
	set -f
	# shellcheck disable=SC2086
	step vm-fuzz "$here/run" --uml $3 --kernel "$main" --ko "$clone/out/fuzz-$2-$main/rxe_rs.ko" \
		--ko "$clone/out/fuzz-$2-$main/ktests/fuzz/cover/rxe_cover.ko" --set RXE_SEED="$fuzz_seed" --set RXE_SECONDS="$fuzz_seconds" \
		--set RXE_PACKETS=$((fuzz_seconds * 1000)) --limit $((fuzz_seconds * 4 + 300)) --test 'fuzz.*' hostile.packets hostile.rings
)
fuzz_engine() (
	step fuzz-engine "$here/in-root.sh" env CARGO_TARGET_DIR="$cache/target/1.85" RXE_FUZZ_SECS="$fuzz_seconds" RXE_FUZZ_SEED="$fuzz_seed" \
		cargo test -p rxe_proto --locked --offline --test fuzz
	# Cases of the simulator that chance chooses: about as many per second as are run there.
	step fuzz-simulator "$here/in-root.sh" env CARGO_TARGET_DIR="$cache/target/1.85" PROPTEST_CASES=$((fuzz_seconds * 10 + 256)) \
		cargo test -p rxe_proto --locked --offline
)

case $mode in
fuzz)
	say "RXE_SEED=$fuzz_seed"
	[ "${FUZZ_KERNEL:-}" = uml ] || step kernel-uml-debug "$here/in-root.sh" "$here/kernel_build.py" ensure uml-debug "$main"
	step tools "$here/build-tools.sh"
	together fuzz_interface fuzz_engine
	;;
check)
	without_machine
	;;
suites)
	set --
	for suite in ${SUITES:-$(cd ktests/suites && ls ./*.suite)}; do
		set -- "$@" "suite $(basename "$suite" .suite)"
	done
	together "$@"
	;;
security)
	step tools "$here/build-tools.sh"
	together security_one security_crate security_two
	;;
debug)
	# Both are built with all processors, one after the other.
	for kind in uml-debug lockdep; do
		step "kernel-$kind" "$here/in-root.sh" "$here/kernel_build.py" ensure $kind "$main"
	done
	step tools "$here/build-tools.sh"
	together memory_checked locks_checked
	;;
all)
	step tools "$here/build-tools.sh"
	together one_machine one_more_machine two_machines without_machine kernel_users demo other_kernels
	;;
esac

# What failed, once more, with what was said of it: of a long run the end is all that is read.
for log in $logs/*.log; do
	[ "$(basename "$log")" != failed.log ] || continue
	sed -n -e '/^not ok /{p;b more' -e '}' -e '/^\(FAIL\|ERROR\): /p' -e '/^test .* FAILED$/p' -e 'b' \
		-e ':more' -e 'n' -e '/^ *#/{p;b more' -e '}' "$log" | head -n 40 | sed "s/^/$(basename "$log" .log): /"
done >$logs/failed.log
[ ! -s $logs/failed.log ] || { echo; echo "what failed:"; cat $logs/failed.log; }

echo
awk '{ printf "%-24s %5d passed %5d failed\n", $1, $2, $3 }' $logs/tally
# The names again below the table: a reader of the last lines alone learns which tests failed.
sed -n 's/^\([^:]*\): \(not ok [0-9]* [^ ]*\|\(FAIL\|ERROR\): .*\|test .* FAILED\).*/failed in \1: \2/p' $logs/failed.log | head -n 20
awk -v t=$(( $(date +%s) - start )) '{ p += $2; f += $3 } END { printf "took %d s\n%d passed, %d failed\n", t, p, f; exit f > 0 }' $logs/tally
