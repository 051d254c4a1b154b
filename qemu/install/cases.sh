#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# cases.sh PHASE: runs the tests of a boot in the installed machine, then ends the boot. cases.sh --case NAME runs one of them. qemu/install/run
# starts the first form as a service behind multi-user.target; its output is the report that the host reads:
#
# plan NAME…           the tests of this boot
# ok NAME SECONDS      or `not ok`, followed by the output of the test, `# ` before each line
# end                  the machine restarts, or is switched off after the last boot
#
# Beside this script are `env` (settings of the host), `packages` (those under test), `newer` (the same with a newer version), `other` (the
# module for kernels that the machine does not have), `enrolled` and `foreign` (the module signed with a key that the firmware has, or not),
# `mok` (the module signed with the key of `mok.der`), `mokutil` (the command of docs/install.md that enrols that key), `networkd`,
# `networkmanager` and `ifupdown` (what docs/install.md has for each of these), `enable` (its command for a link at boot), `fstab` (the line
# of docs/storage.md).
# The folder keeps what a test leaves for later ones, and is no part of the system disk.
# Tests run in the given order, and may need what earlier ones have left.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin
# shellcheck source=/dev/null
. "$here/env"
release=$(uname -r)
device=/sys/class/infiniband/rxe0
unit=rxe@$NIC.service

# first: the packages and bad input. second: after the restart that a user does. third: after upgrades that failed. fourth: after an upgrade, in
# place of rdma_rxe, and the removal. fifth: after an installation that failed because the disk was full. secure: with Secure Boot and a
# key in the firmware. mok: by shim, with Secure Boot. enrolled: the same after a key has been enrolled as a MOK. managers: with
# NetworkManager, which configures all devices; the next three: with the device of the link configured as docs/install.md says. before and
# after: with the module of DKMS, before and after an upgrade of the kernel. without: after one for which DKMS could build no module. signed: as
# before, with Secure Boot and the key of DKMS in the firmware.
first="starts_as_installed refuses_another_release refuses_another_flavour says_that_another_kernel_runs
	recovers_from_half_an_installation recovers_from_a_killed_dpkg says_that_there_is_no_module installs link_of_the_unit"
second="boots_with_failing_links link_after_the_boot settings_after_the_boot rping_to_own_address ecn_is_off failing_link_says_why
	failed_upgrades"
third="link_after_the_failed_upgrades recovers_from_the_failed_upgrades upgrade_keeps_links upgrade_takes_effect"
fourth="newer_module_after_the_boot in_place_of_rdma_rxe requires_a_signature purge_leaves_no_file full_disk"
fifth="boots_after_the_full_disk installs_after_the_full_disk ecn_is_on purge_again_leaves_no_file"
secure="secure_boot_is_on unsigned_module_is_refused foreign_key_is_refused signed_module_loads"
mok="shim_boots_the_stock_kernel key_that_is_not_enrolled_is_refused imports_a_mok"
enrolled="kernel_knows_the_mok foreign_key_is_refused_beside_a_mok module_signed_with_the_mok_loads"
managers="link_by_default sets_up_networkd"
networkd="link_by_networkd sets_up_networkmanager"
networkmanager="link_by_networkmanager sets_up_ifupdown"
ifupdown="link_by_ifupdown unmounts_before_the_link_is_deleted"
before="runs_the_old_kernel link_of_dkms"
after="runs_the_new_kernel link_of_dkms_again"
without="boots_without_a_module says_why_there_is_no_module"
signed="link_of_dkms_with_secure_boot"

fail() { echo "FAILED: $*"; exit 1; }

# is FOUND WANTED WHAT
is() { [ "$1" = "$2" ] || fail "$3: $1, and not $2"; }

# All units must have been started; those that have not are shown.
system_runs() {
	local state
	state=$(systemctl is-system-running --wait || true)
	[ "$state" = running ] || systemctl list-units --failed --no-legend --plain
	is "$state" running "the system"
}

# has TEXT WORDS: the text must have these words.
has() { case $1 in *"$2"*) ;; *) fail "\"$2\" is missing in: $1" ;; esac; }

# refused COMMAND…: the command must fail; what it says is in `said`.
refused() {
	if said=$("$@" 2>&1); then
		fail "succeeded, and should not have: $*: $said"
	fi
	echo "$said"
}

# soon COMMAND…: waits until the command succeeds, 60 seconds at most.
soon() {
	local end=$((SECONDS + 60))
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || fail "not within 60 s: $*"
		sleep 0.3
	done
}

# apt ARGUMENT…: as a user runs it; waits for the jobs of Debian that use apt after a boot.
apt() { apt-get -y -o DPkg::Lock::Timeout=300 "$@"; }

state_of() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || echo absent; }
address() { ip -4 -o addr show dev "$NIC" scope global | sed -n 's|.* inet \([^/]*\)/.*|\1|p'; }
has_address() { [ -n "$(address)" ]; }
link_is() { rdma link show "$1/1" | grep -F "state ACTIVE" | grep -F "netdev $2 "; }
none_installed() {
	is "$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'rxe-rs-*' 'librxe-rs*' 2>/dev/null | grep -v '^not-installed ' || true)" "" "packages"
}
ours() { echo "$here/$1/rxe-rs-modules-${release}_"*.deb "$here/$1"/rxe-rs-tools_*.deb "$here/$1"/librxe-rs1_*.deb; }

# The files of the system disk with their types, modes and owners, and the contents of those that belong to configuration or to depmod; without
# logs, and without the state of programs of Debian, which changes by itself.
all_files() {
	find / -xdev \( -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache/apt -o -path /var/lib/systemd -o -path /tmp \
		-o -path /var/tmp -o -path /var/cache/debconf -o -path /var/lib/dhcpcd -o -path /var/cache/ldconfig \
		-o -path /var/lib/logrotate -o -path /var/backups -o -path /var/spool/cron -o -path /run -o -path /lost+found \) -prune -o -printf '%y %M %u:%g %p %l\n' | sort
	find /etc "/usr/lib/modules/$release" -xdev -type f \( -path '/etc/*' -o -name 'modules.*' \) \
		-not -name ld.so.cache -not -name resolv.conf -not -name '*.bin' -exec sha256sum {} + | sort -k 2
}
same_files() {
	all_files >"$here/after"
	diff "$here/before" "$here/after" || fail "the files above remain (>), or are missing or different (<)"
}

case_starts_as_installed() {
	system_runs
	none_installed
	soon has_address
	[ ! -e /sys/class/infiniband ] || is "$(ls /sys/class/infiniband)" "" "RDMA devices"
	all_files >"$here/before"
	echo "$(wc -l <"$here/before") files; $(systemd-analyze time | head -n 1)"
}

case_refuses_another_release() {
	refused apt install "$here/other/rxe-rs-modules-$OTHER_RELEASE"_*.deb
	has "$said" "linux-image-$OTHER_RELEASE"
	none_installed
	same_files
}

case_refuses_another_flavour() {
	refused apt install "$here/other/rxe-rs-modules-$OTHER_FLAVOUR"_*.deb "$here"/packages/rxe-rs-tools_*.deb
	has "$said" "linux-image-$OTHER_FLAVOUR"
	none_installed
	same_files
}

# With a mirror apt installs the other kernel, and does not refuse the package: an empty package is in place of that kernel here, as the machine
# has no mirror. The package of a kernel removes the folder of its modules.
case_says_that_another_kernel_runs() {
	local kernel=linux-image-$OTHER_FLAVOUR
	mkdir -p "$here/kernel/DEBIAN"
	printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: stand-in\n' "$kernel" >"$here/kernel/DEBIAN/control"
	dpkg-deb --build "$here/kernel" "$here/kernel.deb"
	apt install "$here/kernel.deb" "$here/other/rxe-rs-modules-$OTHER_FLAVOUR"_*.deb >"$here/said" 2>&1 || fail "apt failed: $(cat "$here/said")"
	# apt runs dpkg in a terminal.
	is "$(tr -d '\r' <"$here/said" | grep "^rxe-rs-modules-")" "rxe-rs-modules-$OTHER_FLAVOUR: this module is for Linux $OTHER_FLAVOUR, and Linux $release runs; \
boot the former, or install rxe-rs-modules-$release" "what the package says"
	refused modinfo -n rxe_rs
	apt purge "$kernel" "rxe-rs-modules-$OTHER_FLAVOUR"
	rm -r "/usr/lib/modules/$OTHER_FLAVOUR"
	none_installed
	same_files
}

# dpkg unpacks a package whose dependencies are missing, and does not configure it.
case_recovers_from_half_an_installation() {
	refused dpkg -i "$here/other/rxe-rs-modules-$OTHER_RELEASE"_*.deb "$here"/packages/rxe-rs-tools_*.deb
	is "$(state_of "rxe-rs-modules-$OTHER_RELEASE")" unpacked "the package for another release"
	apt -f install
	is "$(state_of "rxe-rs-modules-$OTHER_RELEASE")" config-files "the package for another release"
	is "$(state_of rxe-rs-tools)" installed "rxe-rs-tools"
	is "$(dpkg --audit)" "" "dpkg --audit"
	is "$(find /usr/lib/modules -name 'rxe_rs*')" "" "modules"
	apt purge rxe-rs-tools "rxe-rs-modules-$OTHER_RELEASE"
	none_installed
	same_files
}

# killed_dpkg FOLDER PACKAGE MOMENT: dpkg, which installs the packages of a folder, is killed when one of them gets to that state.
killed_dpkg() {
	local pid status=0
	[ -e "$here/status" ] || mkfifo "$here/status"
	# shellcheck disable=SC2046
	dpkg --status-fd 9 -i $(ours "$1") 9>"$here/status" &
	pid=$!
	sed "/^status: $2.*: $3/q" "$here/status" >/dev/null
	kill -9 $pid 2>/dev/null || true
	wait $pid || status=$?
	is $status 137 "the status of dpkg, which is killed at $3"
}

# As after a power failure: dpkg is killed when it unpacks, and when it configures.
case_recovers_from_a_killed_dpkg() {
	local moment
	for moment in half-installed half-configured; do
		killed_dpkg packages rxe-rs-tools $moment
		# docs/install.md: a package that is not unpacked completely needs its file again, which apt does not have.
		case $moment in
		# shellcheck disable=SC2046
		half-installed) dpkg -i $(ours packages) ;;
		*) dpkg --configure -a ;;
		esac
		apt -f install
		is "$(dpkg --audit)" "" "dpkg --audit after the recovery from $moment"
		# shellcheck disable=SC2046
		apt install $(ours packages)
		is "$(state_of rxe-rs-tools) $(state_of "rxe-rs-modules-$release")" "installed installed" "the packages after the recovery from $moment"
		modinfo -n rxe_rs
		apt purge rxe-rs-tools "rxe-rs-modules-$release" librxe-rs1
		same_files
	done
}

case_says_that_there_is_no_module() {
	apt install "$here"/packages/rxe-rs-tools_*.deb
	refused systemctl start "$unit"
	said=$(systemctl status --no-pager "$unit" || true)
	has "$said" "rxe_rs is not installed for Linux $release; install the package rxe-rs-modules-$release"
	systemctl reset-failed "$unit"
}

case_installs() {
	# shellcheck disable=SC2046
	apt install $(ours packages) 2>&1 | tee "$here/said"
	if grep -iE 'warning|error|failed' "$here/said"; then fail "the installation complains"; fi
	is "$(modinfo -n rxe_rs)" "/lib/modules/$release/updates/rxe_rs.ko" "the module that modprobe finds"
	is "$(modinfo -F version rxe_rs)" "$VERSION" "the version of the module"
	rxectl --version
	systemd-analyze verify --man=no "$unit"
	is "$(systemctl is-system-running)" running "the system"
}

# What a user configures: docs/install.md. Two other links cannot be made: one has a bad configuration, one has no network device.
case_link_of_the_unit() {
	printf 'name rxe0\npkey 0 0xffff\npkey 1 0x8001\npkey 5 0x0002\n' >"/etc/rxe_rs/$NIC.conf"
	printf 'pkey 1 8001\n' >"/etc/rxe_rs/$OTHER_NIC.conf"
	echo 'options rxe_rs ecn=0 link_type_rxe=1' >/etc/modprobe.d/rxe_rs.conf
	bash -ex "$here/enable"
	link_is rxe0 "$NIC"
	systemctl enable "rxe@$OTHER_NIC.service" rxe@missing0.service
}

case_boots_with_failing_links() {
	is "$(systemctl is-system-running --wait || true)" degraded "the system"
	is "$(systemctl is-active multi-user.target)" active "multi-user.target"
	is "$(systemctl list-units --failed --no-legend --plain | cut -d' ' -f1)" "rxe@$OTHER_NIC.service" "the units that failed"
	is "$(systemctl is-active rxe@missing0.service || true)" inactive "the unit of the missing network device"
	is "$(systemctl list-jobs --no-legend)" "" "jobs that still wait"
	systemd-analyze time | head -n 1
}

case_link_after_the_boot() {
	link_is rxe0 "$NIC"
	is "$(systemctl is-active "$unit")" active "the unit"
	soon has_address
	ibv_devinfo -d rxe0 | tee "$here/said"
	grep PORT_ACTIVE "$here/said"
}

case_settings_after_the_boot() {
	# The kernel does not show the parameters of modules in Rust; this one changes the type of links. case_ecn_is_off is about the other one.
	refused rdma link add probe0 type rxe_rs netdev "$OTHER_NIC"
	rdma link add probe0 type rxe netdev "$OTHER_NIC"
	rdma link del probe0
	is "$(cat $device/pkey_table)" "0 0xffff
1 0x8001
5 0x0002" "the P_Key table"
}

listening() { rdma resource show cm_id | grep -F "state LISTEN"; }

# rping_both COUNT: a server and a client on this machine exchange COUNT messages.
rping_both() {
	local server
	soon has_address
	rping -s -a "$(address)" -C "$1" >"$here/server" 2>&1 &
	server=$!
	soon listening
	timeout 120 rping -c -v -a "$(address)" -C "$1" >"$here/client" 2>&1 || fail "the client failed: $(tail -n 3 "$here/client" "$here/server")"
	wait $server || fail "the server failed: $(cat "$here/server")"
	is "$(grep -c '^ping data: ' "$here/client")" "$1" "lines of the client"
}

case_rping_to_own_address() { rping_both 20; }

packets_of() { nft list counter inet roce "$1" | sed -n 's/.*packets \([0-9]*\) .*/\1/p'; }

# count_marked: counts the RoCE packets of a connection in `sent`, and those of them that are ECN-capable in `marked`.
count_marked() {
	nft -f - <<-END
		table inet roce {
			counter sent {
			}
			counter marked {
			}
			chain input {
				type filter hook input priority filter;
				udp dport 4791 counter name sent
				udp dport 4791 ip ecn ect0 counter name marked
			}
		}
	END
	rping_both 20
	sent=$(packets_of sent) marked=$(packets_of marked)
	nft delete table inet roce
	echo "$marked of $sent packets are ECN-capable"
	[ "$sent" -gt 40 ] || fail "the packets were not counted"
}

# The parameter `ecn` in /etc/modprobe.d, and its default.
case_ecn_is_off() {
	count_marked
	is "$marked" 0 "ECN-capable packets"
}
case_ecn_is_on() {
	count_marked
	[ "$marked" -gt 40 ] || fail "packets are not ECN-capable"
}

case_failing_link_says_why() {
	said=$(systemctl status --no-pager "rxe@$OTHER_NIC.service" || true)
	has "$said" "/etc/rxe_rs/$OTHER_NIC.conf:1: "
	echo 'pkey 1 0x8001' >"/etc/rxe_rs/$OTHER_NIC.conf"
	systemctl start "rxe@$OTHER_NIC.service"
	link_is "rxe_$OTHER_NIC" "$OTHER_NIC"
	is "$(cat "/sys/class/infiniband/rxe_$OTHER_NIC/pkey_table")" "1 0x8001" "its P_Key table"
	is "$(systemctl is-system-running)" running "the system"
}

# fill MEBIBYTES: leaves that much space on the disk.
fill() {
	rm -f /filler
	sync
	# Root may use the reserved blocks, too. The file system needs some blocks for itself, so the last ones are used up by writing.
	fallocate -l $((($(stat -f -c '%f * %S' /)) - (64 << 20))) /filler
	dd if=/dev/zero of=/filler bs=64K oflag=append conv=notrunc 2>/dev/null || true # It ends when the file system is full.
	truncate -s -"$1"M /filler
	sync
	df -h /
}

# make_space: the disk is no longer full, and dpkg completes what it can.
make_space() {
	rm /filler
	dpkg --configure -a || true
}

# Upgrades fail because the disk is full, at several points, and the last one because dpkg is killed when it unpacks the module, as by a power
# failure. Links and lists of depmod stay, and the disk is full when the machine restarts. Where an installation has no space for the lists of
# depmod, an upgrade succeeds.
case_failed_upgrades() {
	local space
	for space in ${FULL_DISK% *}; do
		if [ -e /filler ]; then
			make_space
			# shellcheck disable=SC2046
			dpkg -i $(ours packages)
		fi
		fill "$space"
		# shellcheck disable=SC2046
		refused apt install $(ours newer)
		has "$said" "No space left on device"
		link_is rxe0 "$NIC"
		grep -qF "/rxe_rs.ko" "/usr/lib/modules/$release/modules.dep" || fail "the lists of depmod are damaged"
		modinfo -n rxe_rs
		echo "with $space MiB: $(state_of "rxe-rs-modules-$release"), $(state_of rxe-rs-tools)"
	done
	make_space
	killed_dpkg newer rxe-rs-modules- half-installed
	case $(state_of "rxe-rs-modules-$release") in half-installed | unpacked) ;; *) fail "dpkg was killed too early or too late" ;; esac
	fill 0
}

case_link_after_the_failed_upgrades() {
	is "$(systemctl is-active multi-user.target)" active "multi-user.target"
	systemctl is-system-running --wait || true
	df -h /
	[ -e /filler ] || fail "the disk is no longer full"
	link_is rxe0 "$NIC"
	echo "version $(cat /sys/module/rxe_rs/version)"
}

# docs/install.md: a package of which only a part was unpacked needs its file again.
case_recovers_from_the_failed_upgrades() {
	rm /filler
	# shellcheck disable=SC2046
	dpkg -i $(ours packages)
	apt -f install
	is "$(dpkg --audit)" "" "dpkg --audit"
	systemctl restart "$unit" "rxe@$OTHER_NIC.service"
	link_is rxe0 "$NIC"
	is "$(modinfo -F version rxe_rs)" "$VERSION" "the version of the module"
	is "$(wc -l <"/etc/rxe_rs/$NIC.conf")" 4 "lines of the configuration"
	rping_both 5
}

# The links stay, with the module that is loaded, and connections over them.
case_upgrade_keeps_links() {
	local server client before
	rping -s -a "$(address)" >"$here/server" 2>&1 &
	server=$!
	soon listening
	rping -c -v -a "$(address)" >"$here/client" 2>&1 &
	client=$!
	soon grep -q '^ping data: ' "$here/client"
	# shellcheck disable=SC2046
	apt install $(ours newer)
	is "$(dpkg-query -W -f '${Version}' "rxe-rs-modules-$release") $(dpkg-query -W -f '${Version}' rxe-rs-tools)" "$NEWER $NEWER" "the versions"
	before=$(wc -l <"$here/client")
	soon eval "[ \$(wc -l <$here/client) -gt $before ]"
	kill -0 $client || fail "the connection ended: $(tail -n 3 "$here/client")"
	kill $client $server
	wait $client $server || true
	link_is rxe0 "$NIC"
	is "$(cat /sys/module/rxe_rs/version)" "$VERSION" "the version of the module that is loaded"
	is "$(modinfo -F version rxe_rs)" "$NEWER" "the version of the module that will be loaded"
	is "$(cat "/etc/rxe_rs/$NIC.conf" | wc -l)" 4 "lines of the configuration"
}

# Without a restart of the machine: the units again, with the module loaded anew.
case_upgrade_takes_effect() {
	systemctl stop "$unit" "rxe@$OTHER_NIC.service"
	modprobe -r rxe_rs
	systemctl start "$unit"
	link_is rxe0 "$NIC"
	is "$(cat /sys/module/rxe_rs/version)" "$NEWER" "the version of the module that is loaded"
	rping_both 5
	# For the next boot. The file of the symbolic link has the parameter for the type of links.
	echo 'options rxe_rs ecn=0' >/etc/modprobe.d/rxe_rs.conf
	ln -s /usr/share/rxe_rs/replace-rdma_rxe.conf /etc/modprobe.d/
}

case_newer_module_after_the_boot() {
	system_runs
	is "$(cat /sys/module/rxe_rs/version)" "$NEWER" "the version of the module that is loaded"
	link_is rxe0 "$NIC"
	link_is "rxe_$OTHER_NIC" "$OTHER_NIC"
	is "$(cat $device/pkey_table | wc -l)" 3 "P_Keys"
}

# docs/install.md, In place of rdma_rxe: the symbolic link has been there since before the boot.
case_in_place_of_rdma_rxe() {
	systemctl stop "$unit" "rxe@$OTHER_NIC.service"
	modprobe -r rxe_rs
	modprobe rdma_rxe
	[ -e /sys/module/rxe_rs ] || fail "rxe_rs is not loaded"
	[ ! -e /sys/module/rdma_rxe ] || fail "rdma_rxe is loaded"
	modprobe -r rdma_rxe
	[ ! -e /sys/module/rxe_rs ] || fail "rxe_rs is still loaded"
	# The kernel asks for the driver of that link type.
	rdma link add old0 type rxe netdev "$NIC"
	link_is old0 "$NIC"
	[ -e /sys/class/infiniband/old0/pkey_table ] || fail "the link is not one of rxe_rs"
	rping_both 5
	rdma link del old0
	systemctl start "$unit"
	link_is rxe0 "$NIC"
}

# What docs/install.md says about a module without a signature of a key that the kernel has: the messages, and what doctor finds.
refused_without_a_signature() {
	refused systemctl start "$unit"
	said=$(systemctl status --no-pager "$unit" || true)
	has "$said" "this kernel loads signed modules only, and has no key for rxe_rs"
	refused modprobe rxe_rs
	has "$said" "Key was rejected by service"
	said=$(rxectl doctor || true)
	has "$said" "the kernel loads signed modules only"
}

# As with Secure Boot. The kernel demands signatures until it is booted again.
case_requires_a_signature() {
	systemctl stop "$unit"
	modprobe -r rxe_rs
	echo 1 >/sys/module/module/parameters/sig_enforce
	refused_without_a_signature
}

case_purge_leaves_no_file() {
	apt purge rxe-rs-tools "rxe-rs-modules-$release" librxe-rs1
	# This file is not one of the packages.
	rm /etc/modprobe.d/rxe_rs.conf
	none_installed
	same_files
	refused modinfo -n rxe_rs
}

# purge_known: as above, if dpkg has come to know of the packages.
purge_known() {
	local known
	known=$(dpkg-query -W -f '${Package} ' 'rxe-rs-*' 'librxe-rs*' 2>/dev/null || true)
	# shellcheck disable=SC2086
	[ -z "$known" ] || apt purge $known
}

# modules_of_the_kernel_load: the lists of depmod have a module, with its dependencies, that every flavour of the kernel has.
modules_of_the_kernel_load() {
	grep -F "/rdma_ucm.ko" "/usr/lib/modules/$release/modules.dep" || fail "the lists of depmod are damaged"
	modprobe -r rdma_ucm
	modprobe rdma_ucm
	modprobe -r rdma_ucm
}

# The disk is full at several points of the installation; the last one remains until after the next boot.
case_full_disk() {
	local space
	for space in $FULL_DISK; do
		if [ -e /filler ]; then
			make_space
			apt -f install
			purge_known
			same_files
		fi
		fill "$space"
		# shellcheck disable=SC2046
		refused apt install $(ours packages)
		has "$said" "No space left on device"
		modules_of_the_kernel_load
		echo "with $space MiB: $(state_of "rxe-rs-modules-$release"), $(state_of rxe-rs-tools)"
	done
}

case_boots_after_the_full_disk() {
	is "$(systemctl is-active multi-user.target)" active "multi-user.target"
	df -h /
	[ -e /filler ] || fail "the disk is no longer full"
	systemctl list-units --failed --no-legend --plain
	modules_of_the_kernel_load
}

case_installs_after_the_full_disk() {
	make_space
	apt -f install
	is "$(dpkg --audit)" "" "dpkg --audit"
	# shellcheck disable=SC2046
	apt install $(ours packages)
	systemctl start "$unit"
	link_is "rxe_$NIC" "$NIC"
	rping_both 5
}

case_purge_again_leaves_no_file() {
	apt purge rxe-rs-tools "rxe-rs-modules-$release" librxe-rs1
	none_installed
	same_files
}

case_secure_boot_is_on() {
	system_runs
	is "$(od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/SecureBoot-* | tr -d ' ')" 1 "the variable SecureBoot"
	has "$(cat /sys/kernel/security/lockdown)" "[integrity]"
}

# module_of FOLDER: replaces the package of the module.
module_of() {
	apt install --allow-downgrades "$here/$1/rxe-rs-modules-${release}_"*.deb
}

case_unsigned_module_is_refused() {
	# shellcheck disable=SC2046
	apt install $(ours packages)
	refused_without_a_signature
}

case_foreign_key_is_refused() {
	module_of foreign
	is "$(modinfo -F signer rxe_rs)" foreign "the signer of the module"
	refused modprobe rxe_rs
	has "$said" "Key was rejected by service"
}

# Bit 13: a module without a valid signature was loaded.
no_mark_of_unsigned_modules() { is $(($(cat /proc/sys/kernel/tainted) >> 13 & 1)) 0 "the kernel's mark of unsigned modules"; }

# signed_module_loads FOLDER SIGNER
signed_module_loads() {
	module_of "$1"
	is "$(modinfo -F signer rxe_rs)" "$2" "the signer of the module"
	systemctl start "$unit"
	link_is "rxe_$NIC" "$NIC"
	rping_both 5
	no_mark_of_unsigned_modules
}
case_signed_module_loads() { signed_module_loads enrolled enrolled; }

# The firmware has the keys of Microsoft, and the kernel is that of the package, which Debian has signed.
case_shim_boots_the_stock_kernel() {
	case_secure_boot_is_on
	has "$(cat /proc/cmdline)" "BOOT_IMAGE=/boot/vmlinuz-$release"
	has "$(mokutil --sb-state)" "SecureBoot enabled"
	has "$(mokutil --db)" "Microsoft Corporation UEFI CA 2011"
	has "$(mokutil --list-enrolled)" "Debian Secure Boot CA"
}

case_key_that_is_not_enrolled_is_refused() {
	apt install "$here/mok/rxe-rs-modules-${release}_"*.deb "$here"/packages/rxe-rs-tools_*.deb "$here"/packages/librxe-rs1_*.deb
	is "$(modinfo -F signer rxe_rs)" rxe_rs "the signer of the module"
	refused_without_a_signature
}

# The machine then restarts, and the host answers MokManager.
case_imports_a_mok() {
	cd "$here"
	has "$(mokutil --test-key mok.der || true)" "is not enrolled"
	printf '%s\n' "$PASSWORD" "$PASSWORD" | sh -ex "$here/mokutil"
	has "$(mokutil --list-new)" "CN=rxe_rs"
}

case_kernel_knows_the_mok() {
	case_secure_boot_is_on
	keyctl list %:.machine
	keyctl list %:.platform
	has "$(mokutil --test-key "$here/mok.der" || true)" "is already enrolled"
	has "$(keyctl list %:.machine)" "asymmetric: rxe_rs: "
}

case_foreign_key_is_refused_beside_a_mok() { case_foreign_key_is_refused; }
case_module_signed_with_the_mok_loads() { signed_module_loads mok rxe_rs; }

# Debian's NetworkManager configures each device by DHCP. From now on a service of the user needs the link and the address of docs/install.md,
# and is ordered as that page says; and so does a file system of an NFS server, which is on this machine.
case_link_by_default() {
	# shellcheck disable=SC2046
	apt install $(ours packages)
	bash -ex "$here/enable"
	link_is "rxe_$NIC" "$NIC"
	rping_both 5
	cat >/etc/systemd/system/answer.service <<-END
		[Unit]
		Requires=$unit
		Wants=network-online.target
		After=$unit network-online.target

		[Service]
		Type=exec
		ExecStart=/usr/bin/rping -s -P -a 10.77.0.1

		[Install]
		WantedBy=multi-user.target
	END
	systemctl enable answer.service
	sed 's|/mnt/nfs|/mnt|; s|10\.77\.0\.2|10.77.0.1|' "$here/fstab" >>/etc/fstab
	echo '/srv *(rw,no_root_squash,fsid=0)' >/etc/exports
	# The client of the boot before does not come back.
	printf '[nfsd]\nrdma=y\nrdma-port=20049\ngrace-time=10\nlease-time=10\n' >/etc/nfs.conf.d/rdma.conf
	systemctl enable nfs-server.service
}

case_sets_up_networkd() {
	systemctl disable NetworkManager.service
	systemctl enable systemd-networkd.service
	cp "$here/networkd" "/etc/systemd/network/$NIC.network"
}

# Nobody takes the address away under the file system: the kernel's client would keep the link from being deleted for minutes, with rdma_rxe, too.
case_sets_up_networkmanager() {
	systemctl stop mnt.mount
	rm "/etc/systemd/network/$NIC.network"
	systemctl disable --now systemd-networkd.service systemd-networkd.socket
	ip addr flush dev "$NIC"
	systemctl enable --now NetworkManager.service
	bash -ex "$here/networkmanager"
	soon has_address
	systemctl start mnt.mount
}

case_sets_up_ifupdown() {
	rm /etc/NetworkManager/system-connections/rdma.nmconnection
	systemctl disable NetworkManager.service
	cp "$here/ifupdown" "/etc/network/interfaces.d/$NIC"
}

# configured_by STATES: at the boot, the unit of that state has configured the device, and the service of the user has the link and the address.
configured_by() {
	system_runs
	is "$(systemctl is-active systemd-networkd.service NetworkManager.service networking.service | tr '\n' ' ')" "$1 " "the network managers"
	is "$(address) $(cat "/sys/class/net/$NIC/mtu")" "10.77.0.1 4200" "the address and the MTU of $NIC"
	link_is "rxe_$NIC" "$NIC"
	ibv_devinfo -v -d "rxe_$NIC" >"$here/said"
	has "$(cat "$here/said")" "::ffff:10.77.0.1"
	grep -P 'active_mtu:\s+4096 ' "$here/said"
	is "$(systemctl is-active answer.service)" active "the service that needs the link and the address"
	timeout 120 rping -c -v -a 10.77.0.1 -C 5
	has "$(findmnt -n -o SOURCE,OPTIONS /mnt)" "proto=rdma"
	has "$(findmnt -n -o SOURCE,OPTIONS /mnt)" "10.77.0.1:/"
	before=$(cat "/sys/class/infiniband/rxe_$NIC/ports/1/hw_counters/sent_pkts")
	dd if=/dev/urandom of=/mnt/file bs=64K count=8 conv=fsync
	cmp /mnt/file /srv/file
	[ "$(cat "/sys/class/infiniband/rxe_$NIC/ports/1/hw_counters/sent_pkts")" -gt $((before + 8)) ] || fail "the file was not written over the link"
}

# ifupdown is always there: its unit is active with the loopback device alone, too.
case_link_by_networkd() { configured_by "active inactive active"; }
case_link_by_networkmanager() { configured_by "inactive active active"; }
case_link_by_ifupdown() { configured_by "inactive inactive active"; }

# At the ends of the boots before this one, in which the file system was mounted; docs/storage.md says so of the line of fstab.
case_unmounts_before_the_link_is_deleted() {
	local boot steps
	for boot in -1 -2; do
		steps=$(journalctl -b $boot -o cat --no-pager -u mnt.mount -u "$unit" |
			grep -oE '^((Mounted|Unmounted) mnt.mount|(Finished|Stopped) rxe@)' | tr '\n' ' ')
		case $steps in
		"Finished rxe@ Mounted mnt.mount "*"Unmounted mnt.mount Stopped rxe@ ") ;;
		*) fail "what systemd did: $steps" ;;
		esac
	done
}

case_runs_the_old_kernel() { is "$release" "$BEFORE" "the kernel"; }
case_runs_the_new_kernel() {
	is "$release" "$AFTER" "the kernel"
	[ "$BEFORE" != "$AFTER" ] || fail "it is the old one"
}

# common_name CERTIFICATE
common_name() { openssl x509 -inform DER -in "$1" -noout -subject -nameopt multiline | sed -n 's/^ *commonName *= //p'; }

# The unit and its file are from before the first boot: nobody has done anything but upgrade the kernel.
case_link_of_dkms() {
	system_runs
	has "$(modinfo -n rxe_rs)" "/lib/modules/$release/updates/dkms/rxe_rs.ko"
	link_is rxe0 "$NIC"
	is "$(cat $device/pkey_table)" "0 0xffff
1 0x8001" "the P_Key table"
	rping_both 20
}
case_link_of_dkms_again() { case_link_of_dkms; }

case_link_of_dkms_with_secure_boot() {
	case_secure_boot_is_on
	is "$(modinfo -F signer rxe_rs)" "$(common_name /var/lib/dkms/mok.pub)" "the signer of the module"
	case_link_of_dkms
	no_mark_of_unsigned_modules
}

# The unit of the link is all that fails.
case_boots_without_a_module() {
	is "$release" "$WITHOUT" "the kernel"
	is "$(systemctl is-system-running --wait || true)" degraded "the system"
	is "$(systemctl is-active multi-user.target)" active "multi-user.target"
	is "$(systemctl list-units --failed --no-legend --plain | cut -d' ' -f1)" "$unit" "the units that failed"
	soon has_address
	refused modinfo -n rxe_rs
}

case_says_why_there_is_no_module() {
	local reason="linux-source-${release%%.*}" part=${release#*.}
	reason="$reason.${part%%.*} is not installed"
	has "$(dkms status 2>&1)" "$reason"
	has "$(rxectl doctor || true)" "$reason"
	has "$(systemctl status --no-pager "$unit" || true)" "rxe_rs is not installed for Linux $release; $reason"
}

if [ "$1" = --case ]; then
	set -x
	"case_$2"
	exit
fi

tests=${!1}
# shellcheck disable=SC2086
echo plan $tests
for test in $tests; do
	start=$(date +%s)
	status=0
	bash "$0" --case "$test" </dev/null >"$here/log" 2>&1 || status=$?
	verdict=ok
	[ $status = 0 ] || verdict='not ok'
	echo "$verdict $test $(($(date +%s) - start))"
	{ echo "==== $test"; cat "$here/log"; } >>"$here/log-$1"
	[ $status = 0 ] || tail -n 60 "$here/log" | sed 's/^/# /'
done
journalctl -b --no-pager >"$here/journal-$1" 2>&1 || true
echo end
sync
if [ "$1" = secure ]; then systemctl poweroff; else systemctl reboot; fi
