#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# test.sh [MODE]: runs tests; the last line is `N passed, N failed`. Exit status 0 if none failed, else 1. The logs of all steps are in
# out/test/.
#
# Without MODE  all tests, on the kernel of the series KERNEL; a few of them also on the kernel of the other series, on the flavour for virtual
#               machines, and with PREEMPT_RT
# check         those that need no machine
# suites        the suites of other projects (ktests/suites): those named in SUITES, all by default
# apps          those of programs, and the kernel's own RDMA users
# security      those that SECURITY.md names
# debug         the machine tests on the debug kernels
# kernels       some of the machine tests on each other kernel that Debian has, and between an amd64 and an arm64 machine
# transitions   all transitions of queue pairs
# install       the Debian packages in machines with an installed Debian 13 (install/run), and by DKMS in a tree of it (install/dkms)
# docs          the commands of the pages of docs/, between two machines
# fuzz          the fuzzers: FUZZ_SECONDS (default 300) for each of them; FUZZ_SEED is the seed; with FUZZ_KERNEL=uml on the User Mode Linux
#               kernel without KASAN
#
# DRIVER=rdma_rxe tests the kernel's own driver in place of the module.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
# Tests must write to the clone and the cache folder only.
[ -n "${RXE_CONFINED:-}" ] || exec "$here/confined.sh" "$here/test.sh" "$@"
cd "$clone"
mode=${1:-all}
logs=out/test
mkdir -p $logs
# A run removes the logs of the one before.
exec 7>$logs/.lock
flock -n 7 || die "tests of this clone run already; wait until they have ended, or use another clone"
rm -rf $logs/*.log $logs/tally $logs/taken-*
touch $logs/tally
start=$(date +%s)

# step NAME COMMAND…: runs a command, shows and stores its output, and adds to the tally: the tests that the command reports (cargo,
# unittest, KTAP), or else one. In a worker of `together` the name of the step precedes each line.
worker=
step() {
	name=$1
	shift
	log=$logs/$name.log
	say "[$(( $(date +%s) - start )) s] $name"
	status=0
	{ "$@" 2>&1; echo "exit status $?"; } | tee "$log" | sed -u "/^exit status [0-9]*\$/d${worker:+; s/^/$name: /}"
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
	[ "$mode" != apps ] || "$here/apps_table.py" add "$log"
}

# The machine's own cargo, in addition to cargo 1.85 of the toolchain root. Its registry and its build results are in the cache folder, so
# that they are not built again for each clone.
host_cargo() { CARGO_HOME=$cache/cargo CARGO_TARGET_DIR=$targets/host cargo "$@"; }
"$here/in-root.sh" "$here/fetch-crates.sh"
own_targets

# together JOB…: runs jobs in this order by two workers, because an emulated machine uses little more than one processor. A job is a
# function with its arguments. The worker that creates the folder of a job runs it.
workers=
run_jobs() {
	for job in "$@"; do
		if mkdir "$logs/taken-$job" 2>/dev/null; then
			$job
		fi
	done
}
together() {
	for number in 1 2; do
		( worker=$number; run_jobs "$@" ) &
		workers="$workers $!"
	done
	for pid in $workers; do
		wait "$pid" || echo "worker 0 1" >>$logs/tally
	done
	workers=
}
# Background processes of a shell ignore SIGINT, so the workers are killed if this script is interrupted.
kill_tree() {
	for child in $(ps -o pid= --ppid "$1"); do
		kill_tree "$child"
	done
	kill "$1" 2>/dev/null || true
}
trap 'for pid in $workers; do kill_tree "$pid"; done; exit 130' INT TERM

driver=${DRIVER:-rxe_rs}
series_of() { "$here/in-root.sh" "$here/kernel.py" show $1 | sed -n 's/^SERIES=//p'; }
main=$(series_of "${KERNEL:-}")
if [ "$driver" = rxe_rs ] && [ "$mode" != debug ] && [ "$mode" != transitions ] && [ "$mode" != fuzz ]; then
	step module "$here/build-module.sh" -k "$main"
fi

# `make KDIR=` with the prepared tree of the stock kernel; the vermagic of the module must have its release.
kdir() {
	tree=$("$here/in-root.sh" "$here/kernel.py" show "$main" | sed -n 's/^TREE=//p')
	release=$(cat "$tree/include/config/kernel.release")
	rm -rf out/kdir
	"$here/in-root.sh" make KDIR="$tree" && "$here/in-root.sh" modinfo -F vermagic out/kdir/rxe_rs.ko | grep -F "$release "
}

# What needs no machine. It has a lower priority, because machine tests have time limits.
without_machine() (
	[ -z "$worker" ] || renice -n 10 "$(sh -c 'echo $PPID')" >/dev/null
	step harness "$here/in-root.sh" env KERNEL="$main" python3 -m unittest discover -s qemu -p 'selftest*.py'
	step cargo-1.85 "$here/in-root.sh" env CARGO_TARGET_DIR="$targets/1.85" cargo test --workspace --locked --offline
	if command -v cargo >/dev/null; then
		step cargo-host host_cargo test --workspace --locked --offline
	fi
	step fmt "$here/lint.sh" fmt-check
	step doc env KERNEL="$main" CARGO_FLAGS=--offline "$here/lint.sh" doc
	if [ "$driver" = rxe_rs ]; then
		step kdir kdir
		step audit env KERNEL="$main" "$here/lint.sh" audit
		step doc-module env KERNEL="$main" "$here/lint.sh" doc-module
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
	# In User Mode Linux, where a system call takes microseconds; in emulation the tests try a sample.
	step module-uml "$here/build-module.sh" -u -k "$main"
	step transitions "$here/run" --uml --kernel "$main" --ko "$clone/out/uml-$main/rxe_rs.ko" --test 'transitions.*'
fi

# The tests for one machine run in two machines at the same time; the names of their files decide where.
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
		'perf.*by_cm' 'perf.u[cd]_*' perf.fetch_add perf.compare_swap 'perf.many_large_reads' 'wire.*' 'interop.*' 'loss.*_1_percent' 'mcast.*'
}

# Copies what the suite of that name needs of the folder that BLKTESTS names into the clone, which is all that the toolchain root has.
copy_blktests() {
	[ -f "${BLKTESTS:-}/tests/srp/rc" ] || die "BLKTESTS must name a folder with blktests: make test-suites SUITES=blktests BLKTESTS=FOLDER"
	rm -rf out/blktests
	mkdir -p out/blktests
	for part in check common src tests; do
		cp -r "$BLKTESTS/$part" out/blktests
	done
}

# The tests of crates also run as their projects would run them, by rxe-ci.
suite() {
	machines "suite-$1" "$main" netns --suite "$1"
	[ "$1" != crates ] || ci_machine ci-crates Crates
	# Between two machines UCX needs no settings.
	[ "$1" != ucx ] || machines vm-ucx "$main" two --test 'ucx_default.*'
}

# NVMe, NFS, iSER, SRP, RDS and 9P. With rdma_rxe NVMe may hang after a loss of all packets, and so does what follows in the same machines.
kernel_programs() (
	set --
	if [ "$driver" != rxe_rs ]; then
		set -- --without ulp.nvme_reconnects ulp.nvme_cli
		for lossy in reconnects cli; do
			machines "vm-ulp-$lossy" "$main" two --test "ulp.nvme_$lossy"
		done
	fi
	machines vm-ulp "$main" two --test 'ulp.*' "$@"
)
kernel_users() {
	machines vm-ulp "$main" two --test 'docs.*' 'ulp.*' 'mcast.*' 'ipsec.send' 'ipsec.rekeying_between_machines'
}

# Another network adapter than in the other machines.
other_adapter() {
	machines vm-e1000e "$main" two --nic e1000e --test perf.write_bw perf.read_bw verbs.ud_pingpong_ipv4 cm.rping_ipv6
}

# An adapter that is to segment UDP, but fragments it as QEMU emulates it: nothing of a GSO buffer arrives. Each is at a NUMA node of its
# own, because two of them have no room on one bus, and has a queue for each of two processors.
fragmenting_adapter() {
	machines vm-igb "$main" two --nic igb --numa 2 --cpus 2 \
		--test perf.write_bw perf.read_bw verbs.ud_pingpong_ipv4 cm.rping_ipv6 adapter.receive_queues
}

# Each network device at a NUMA node of its own.
numa_nodes() {
	machines vm-numa "$main" two --numa 2 --test 'parent.*'
}

# The tests that SECURITY.md names, and the others of the crates that have some of them.
named() { "$here/security.py" "$1"; }
security_one() {
	machines vm-security "$main" netns --test $(named netns)
}
security_two() {
	machines vm-security-two "$main" two --test $(named two)
}
security_host() {
	step cargo-security "$here/in-root.sh" env CARGO_TARGET_DIR="$targets/1.85" cargo test --locked --offline $(named crates)
	for script in $(named scripts); do
		step "${script%.py}" "$here/in-root.sh" env KERNEL="$main" python3 -m unittest discover -s qemu -p "$script"
	done
}
# What takes time, or has to keep up with a link, is judged in User Mode Linux, at native speed: in an emulated machine these tests make
# fewer objects and accept longer queues. Nothing else runs meanwhile.
security_uml() {
	step module-uml "$here/build-module.sh" -u -k "$main"
	step vm-security-uml "$here/run" --uml --kernel "$main" --ko "$clone/out/uml-$main/rxe_rs.ko" --test $(named uml)
}

demo() {
	[ "$driver" != rxe_rs ] || step demo env KERNEL="$main" "$here/demo.sh"
}

# on_kernel NAME TEST…: runs tests on another kernel than the main one. In a subshell, because `machines` sets variables that its callers
# have, too.
on_kernel() (
	other=$1
	shift
	[ "$other" != "$main" ] || return 0
	if [ "$driver" = rxe_rs ]; then
		step "module-$other" "$here/build-module.sh" -k "$other"
	fi
	machines "vm-netns-$other" "$other" netns --test "$@"
)

other_kernels() {
	for series in 7.3 7.2; do
		on_kernel $series 'link.*' 'cm.rping*' 'verbs.*' 'perf.*_bw'
	done
}

# flavour NAME TEST…: runs tests on another flavour of the kernel.
flavour() (
	[ "$driver" = rxe_rs ] || return 0
	other=${main%%-*}-$1
	shift
	on_kernel "$other" "$@"
)
loads_and_works='link.add_del verbs.rc_pingpong_ipv4 verbs.rc_pingpong_ipv6 verbs.ud_pingpong_ipv4 cm.rping_ipv4 perf.write_bw'

# The flavour for virtual machines, which has no rdma_rxe: whether the module loads, links can be added and deleted, and data arrives, also
# as `make demo` shows it.
cloud_kernel() {
	flavour cloud $loads_and_works
	case $driver-$main in rxe_rs-*-*) ;; rxe_rs-*) step demo-cloud env KERNEL="$main-cloud" "$here/demo.sh" ;; esac
}

# PREEMPT_RT: the same, and what real-time tasks could starve.
rt_kernel() { flavour rt $loads_and_works 'realtime.*' 'deregister.*'; }

# 64-bit ARM: whether the module can be built, loads, and understands a machine with amd64, in both directions.
arm64_kernel() (
	[ "$driver" = rxe_rs ] || return 0
	case $main in *-*) return 0 ;; esac
	step "module-$main-arm64" "$here/build-module.sh" -k "$main-arm64"
	step vm-arm64 "$here/run" --topology two --kernel "$main" --ko "$clone/out/$main/rxe_rs.ko" --kernel-b "$main-arm64" \
		--ko-b "$clone/out/$main-arm64/rxe_rs.ko" --test "$@"
)
arm64_briefly() { arm64_kernel verbs.rc_pingpong_ipv4 verbs.ud_pingpong_ipv6 cm.rping_ipv4 perf.write_bw interop.read_served interop.rping_served; }
arm64_both_ways() {
	arm64_kernel 'cm.*' 'verbs.*pingpong*' perf.write_bw perf.read_bw perf.send_bw perf.fetch_add perf.compare_swap \
		'interop.*' 'wire.*'
}

# `make test-kernels`: for each other kernel what is to work on all of them; on those of arm64 also what depends on the architecture's memory,
# its instructions for CRCs and ATOMICs, and the programs; on the kernel for virtual machines the programs and the packages, on that with
# PREEMPT_RT the packages, which the tests build for that kernel. (dpkg of a machine with arm64 knows no package, so that it would skip
# these.)
each_kernel() (
	set -f
	for series in 7.3 7.2; do
		for flavour in '' rt cloud arm64 cloud-arm64 arm64-16k; do
			case $flavour in
			*arm64*) more='memory_kinds.* odp.* rkeys.* keys.* segments.* icrc.* kverbs.reg_atomics* tools.*' ;;
			cloud) more='install.* tools.*' ;;
			rt) more='install.*' ;;
			*) more= ;;
			esac
			on_kernel "$series${flavour:+-$flavour}" 'verbs.*' 'cm.*' 'perf.*' 'link.*' $more
		done
	done
)

# The kernel's RDMA users that the flavour for virtual machines has, which has no rdma_rxe, iSER, SRP and 9P.
cloud_users() (
	[ "$driver" = rxe_rs ] || return 0
	case $main in *-*) return 0 ;; esac
	step "module-$main-cloud" "$here/build-module.sh" -k "$main-cloud"
	machines vm-ulp-cloud "$main-cloud" two --test ulp.nvme ulp.nvme_cli ulp.nfs ulp.rds
)

# A processor of 64-bit ARM whose ATOMICs are loops, as it has no instructions for them.
arm64_without_lse() (
	[ "$driver" = rxe_rs ] || return 0
	step "module-$main-arm64" "$here/build-module.sh" -k "$main-arm64"
	step vm-arm64-without-lse "$here/run" --cpu cortex-a72 --kernel "$main-arm64" --ko "$clone/out/$main-arm64/rxe_rs.ko" \
		--test 'icrc.*' 'keys.*' 'kverbs.reg_atomics*' perf.fetch_add perf.compare_swap verbs.rc_pingpong_ipv4
)

# Whether the module builds for the kernels that will be in Debian. Between an upload of rustc and one of the kernel it cannot.
suite_module() {
	status=0
	"$here/suite-module.sh" "$1" || status=$?
	[ $status != 3 ] || { echo "# 0 passed, 0 failed, 1 skipped" && status=0; }
	return $status
}
other_suites() (
	[ "$driver" = rxe_rs ] || return 0
	for suite in testing sid experimental; do
		step "module-$suite" suite_module $suite
	done
)

# The packages, on a machine with a disk, and on one with the kernel for virtual machines: one after the other, because both use the tree with
# lintian. And what DKMS builds, which is loaded on the kernels that are prepared here.
installed_on_disk() {
	step vm-install "$here/install/run" --kernel "$main" ${foreign:+--foreign "$foreign"}
	[ -z "$cloud" ] || step vm-install-cloud "$here/install/run" --kernel "$main-cloud" --packages "$cloud" --out "$clone/out/install-cloud" \
		--boots first second third
}
installed_by_dkms() {
	step dkms "$here/install/dkms"
	step vm-dkms-upgrade "$here/install/run" --kernel "$main" --upgrade "$clone/out/dkms" --out "$clone/out/install-dkms"
	rm -rf "$clone/out/dkms/before" "$clone/out/dkms/after" "$clone/out/dkms/without"
	for series in 7.2 7.3 7.3-cloud 7.3-rt; do
		ko=$clone/out/dkms/$("$here/in-root.sh" "$here/kernel.py" ensure $series)/rxe_rs.ko
		if [ -f "$ko" ]; then
			# shellcheck disable=SC2086
			step "vm-dkms-$series" "$here/run" --kernel $series --ko "$ko" --test $loads_and_works
		else
			say "DKMS built for another release of $series than the one that is prepared: make distclean"
		fi
	done
}

# With ARM64=1 also what DKMS builds on arm64, whose programs this machine must be able to run.
installed_by_dkms_on_arm64() {
	[ -n "${ARM64:-}" ] || { say "without builds by DKMS on arm64, which ARM64=1 adds"; return 0; }
	step dkms-arm64 "$here/install/dkms" arm64 "${foreign:-$clone/out/deb}"
	step vm-dkms-arm64 "$here/install/run" --kernel 7.2-arm64 --upgrade "$clone/out/dkms-arm64" --out "$clone/out/install-dkms-arm64"
	rm -rf "$clone/out/dkms-arm64/before"
}

# ci_machine NAME CLASS [OPTION]: tests of rxe-ci, a class of ci_test.py, with the machine that ci-machine.py makes with that option. The
# flavour for virtual machines has no 9P, by which rxe-ci shares folders.
ci_machine() (
	[ "$driver" = rxe_rs ] || return 0
	case $main in *-cloud) return 0 ;; esac
	step "machine-$1" "$here/ci-machine.py" --kernel "$main" ${3:+"$3"}
	step "vm-$1" "$here/in-root.sh" env KERNEL="$main" python3 -m unittest discover -v -s qemu -p ci_test.py -k "$2."
)
by_ci() { ci_machine ci Ci; }
# The User Mode Linux kernel, which also has what no kernel of Debian has.
by_ci_uml() {
	step module-uml "$here/build-module.sh" -u -k "$main"
	[ "$driver" != rxe_rs ] || step vm-uml "$here/run" --uml --kernel "$main" --ko "$clone/out/uml-$main/rxe_rs.ko" --test 'smc.*'
	ci_machine ci-uml Uml --uml
}

# The debug kernels. A message of a gigabyte takes too long with them, and the tests of slow network devices assume a device that is slower
# than the host.
too_much='status.huge_message slow.*'
memory_checked() (
	step module-debug "$here/build-module.sh" -d -k "$main"
	set -f
	step vm-debug "$here/run" --uml --debug --kernel "$main" --ko "$clone/out/debug-$main/rxe_rs.ko" --test '*' --without $too_much
)
locks_checked() (
	step module-lockdep "$here/build-module.sh" -l -k "$main"
	set -f
	step vm-lockdep "$here/run" --debug --kernel "$main" --ko "$clone/out/lockdep-$main/rxe_rs.ko" --test '*' --without $too_much
	# RDS takes rds_trans_sem and the CM's locks in both orders, on any device. lockdep reports that, and checks no lock afterwards. It may
	# report the same of the NVMe target (gate.py), whose tests have a boot of their own for that reason.
	step vm-lockdep-ulp "$here/run" --debug --kernel "$main" --ko "$clone/out/lockdep-$main/rxe_rs.ko" --topology two --test 'ulp.*' \
		--without ulp.rds 'ulp.nvme*'
	step vm-lockdep-nvme "$here/run" --debug --kernel "$main" --ko "$clone/out/lockdep-$main/rxe_rs.ko" --topology two --test 'ulp.nvme*'
	# Each row of the table of contexts must have been entered there.
	step contexts "$here/contexts.py" $logs/vm-lockdep.log $logs/vm-lockdep-ulp.log $logs/vm-lockdep-nvme.log
)

# The fuzzers: of the user interface with coverage feedback, of packets and rings in a machine, of the engine on the host.
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
	step fuzz-engine "$here/in-root.sh" env CARGO_TARGET_DIR="$targets/1.85" RXE_FUZZ_SECS="$fuzz_seconds" RXE_FUZZ_SEED="$fuzz_seed" \
		cargo test -p rxe_proto --locked --offline --test fuzz
	# Random cases of the simulator: about as many as it runs in that time.
	step fuzz-simulator "$here/in-root.sh" env CARGO_TARGET_DIR="$targets/1.85" PROPTEST_CASES=$((fuzz_seconds * 10 + 256)) \
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
suites | apps)
	step tools "$here/build-tools.sh"
	set --
	[ "$mode" != apps ] || SUITES="ucx mpi mpich programs crates mooncake ceph"
	for suite in ${SUITES:-$(cd ktests/suites && ls ./*.suite)}; do
		suite=$(basename "$suite" .suite)
		# No registry has blktests: it is one of all suites only if there is a folder with it.
		if [ "$suite" = blktests ]; then
			[ -n "${SUITES:-}${BLKTESTS:-}" ] || continue
			copy_blktests
		fi
		set -- "$@" "suite $suite"
	done
	[ -n "${SUITES:-}" ] || set -- "$@" by_ci_uml
	[ "$mode" != apps ] || set -- "$@" kernel_programs
	together "$@"
	;;
docs)
	step tools "$here/build-tools.sh"
	step pages "$here/in-root.sh" env KERNEL="$main" python3 -m unittest discover -s qemu -p selftest_pages.py
	machines vm-docs "$main" two --test 'docs.*'
	;;
install)
	step tools "$here/build-tools.sh"
	step packages env KERNEL="$main" "$here/build-deb.sh"
	# Those for arm64, which lintian checks as well, and for the kernel for virtual machines.
	case $main in
	*-*) foreign='' cloud='' ;;
	*)
		foreign=$clone/out/deb-arm64 cloud=$clone/out/deb-cloud
		step "module-$main-cloud" "$here/build-module.sh" -k "$main-cloud"
		step packages-cloud env KERNEL="$main-cloud" "$here/build-deb.sh" -o "$cloud"
		step "module-$main-arm64" "$here/build-module.sh" -k "$main-arm64"
		step tools-arm64 "$here/build-tools.sh" -a arm64
		step packages-arm64 env KERNEL="$main-arm64" "$here/build-deb.sh" -o "$foreign"
		;;
	esac
	together installed_by_dkms installed_on_disk installed_by_dkms_on_arm64
	;;
security)
	step tools "$here/build-tools.sh"
	[ "$driver" != rxe_rs ] || security_uml
	set -- security_one security_host security_two rt_kernel
	for suite in $(named suites); do
		set -- "$@" "suite $suite"
	done
	together "$@"
	;;
debug)
	# One after the other, because each build uses all processors.
	for kind in uml-debug lockdep; do
		step "kernel-$kind" "$here/in-root.sh" "$here/kernel_build.py" ensure $kind "$main"
	done
	step tools "$here/build-tools.sh"
	together memory_checked locks_checked
	;;
kernels)
	together each_kernel cloud_users arm64_both_ways arm64_without_lse other_suites
	;;
all)
	step tools "$here/build-tools.sh"
	together one_machine one_more_machine two_machines without_machine kernel_users demo other_kernels cloud_kernel rt_kernel \
		arm64_briefly other_adapter fragmenting_adapter numa_nodes by_ci
	;;
esac

# What passed with either driver, in the last runs of this mode.
if [ "$mode" = apps ]; then
	echo
	"$here/apps_table.py" show
fi

# The failures and their messages again, because they may be far above in the output of a long run.
for log in $logs/*.log; do
	[ "$(basename "$log")" != failed.log ] || continue
	sed -n -e '/^not ok /{p;b more' -e '}' -e '/^\(FAIL\|ERROR\): /p' -e '/^test .* FAILED$/p' -e 'b' \
		-e ':more' -e 'n' -e '/^ *#/{p;b more' -e '}' "$log" | head -n 200 | sed "s/^/$(basename "$log" .log): /"
done >$logs/failed.log
[ ! -s $logs/failed.log ] || { echo; echo "what failed:"; cat $logs/failed.log; }

echo
awk '{ printf "%-24s %5d passed %5d failed\n", $1, $2, $3 }' $logs/tally
# The end of the output may be all that somebody sees of it: the names of failed tests, and the last lines that the first of them printed.
sed -n 's/^\([^:]*\): \(not ok [0-9]* [^ ]*\|\(FAIL\|ERROR\): .*\|test .* FAILED\).*/failed in \1: \2/p' $logs/failed.log | head -n 20
awk -f "$here/last_words.awk" $logs/failed.log
# Machines that did not boot at first fail no test, but should be seen.
for log in $logs/*.log; do
	sed -n "s/^# \(the machine is started again.*\):$/$(basename "$log" .log): \1/p" "$log"
done
awk -v t=$(( $(date +%s) - start )) '{ p += $2; f += $3 } END { printf "took %d s\n%d passed, %d failed\n", t, p, f; exit f > 0 }' $logs/tally
