# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over RDMA with the stock kernel's modules: target on a RAM disk, and host. Sourced by ulp.test, on either node.

NQN=nqn.2026-01.test:rxe
TARGET=/sys/kernel/config/nvmet

# target_up ADDRESS: sets up a target with one namespace of 64 MiB.
target_up() {
	modprobe nvmet-rdma && modprobe brd rd_nr=1 rd_size=65536 || return
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mkdir -p $TARGET/subsystems/$NQN/namespaces/1 $TARGET/ports/1
	echo 1 >$TARGET/subsystems/$NQN/attr_allow_any_host
	echo /dev/ram0 >$TARGET/subsystems/$NQN/namespaces/1/device_path
	echo 1 >$TARGET/subsystems/$NQN/namespaces/1/enable
	echo rdma >$TARGET/ports/1/addr_trtype
	echo ipv4 >$TARGET/ports/1/addr_adrfam
	echo "$1" >$TARGET/ports/1/addr_traddr
	echo 4420 >$TARGET/ports/1/addr_trsvcid
	ln -s $TARGET/subsystems/$NQN $TARGET/ports/1/subsystems/$NQN
}

target_down() {
	rm -f $TARGET/ports/1/subsystems/$NQN
	rmdir $TARGET/ports/1 $TARGET/subsystems/$NQN/namespaces/1 $TARGET/subsystems/$NQN 2>/dev/null
	modprobe -r nvmet-rdma
}

# block_device PATTERN…: waits until one of these exists in sysfs and prints its block device.
block_device() {
	local n pattern
	for _ in $(seq 100); do
		for pattern in "$@"; do
			for n in $pattern; do
				[ -b "/dev/${n##*/}" ] && echo "/dev/${n##*/}" && return
			done
		done
		sleep 0.1
	done
	echo "no block device" >&2
	return 1
}

# connect ADDRESS [,OPTION…]: connects to the target and prints the block device.
connect() {
	modprobe nvme-rdma || return
	echo "transport=rdma,traddr=$1,trsvcid=4420,nqn=$NQN,nr_io_queues=2${2:-}" >/dev/nvme-fabrics || return
	block_device '/sys/class/nvme-subsystem/*/nvme*n1' '/sys/block/nvme*n1'
}

# reset_controllers COUNT: resets the controllers of the host, one time per second.
reset_controllers() {
	local n
	for _ in $(seq "$1"); do
		sleep 1
		for n in /sys/class/nvme/nvme*; do
			echo 1 >"$n/reset_controller" || return
		done
	done
}

disconnect() {
	local n
	for n in /sys/class/nvme/nvme*; do
		[ -e "$n/delete_controller" ] && echo 1 >"$n/delete_controller"
	done
	modprobe -r nvme-rdma
}

# exercise DEVICE MEBIBYTES: writes, reads back and compares, in requests of several sizes.
exercise() {
	local device=$1 size=$2 block
	dd if=/dev/urandom of=/tmp/pattern bs=1M count="$size" status=none || return
	for block in 1M 512 20K 128K; do
		local count=$((size * 8))
		case $block in 1M) count=$size ;; 20K) count=$((size * 20)) ;; 512) count=200 ;; esac
		dd if=/dev/zero of="$device" bs=1M count="$size" oflag=direct status=none || return
		dd if=/tmp/pattern of="$device" bs=$block count=$count iflag=fullblock oflag=direct status=none || return
		dd if="$device" of=/tmp/back bs=$block count=$count iflag=direct,fullblock status=none || return
		cmp -n "$(stat -c %s /tmp/back)" /tmp/pattern /tmp/back || return
		[ -s /tmp/back ] || return
		echo "$block: $(stat -c %s /tmp/back) bytes are correct"
	done
}
