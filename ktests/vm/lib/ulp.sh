# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over RDMA with the stock kernel's modules: target on a RAM disk, and host. Sourced by ulp.test, on either node.

NQN=nqn.2026-01.test:rxe
TARGET=/sys/kernel/config/nvmet

# subsystem_up NQN DEVICE: exports a block device as the namespace of a subsystem.
subsystem_up() {
	mkdir -p "$TARGET/subsystems/$1/namespaces/1" || return
	echo 1 >"$TARGET/subsystems/$1/attr_allow_any_host"
	echo "$2" >"$TARGET/subsystems/$1/namespaces/1/device_path"
	echo 1 >"$TARGET/subsystems/$1/namespaces/1/enable"
	ln -s "$TARGET/subsystems/$1" "$TARGET/ports/1/subsystems/$1"
}

# target_up ADDRESS: sets up a target with one subsystem, whose namespace has 64 MiB.
target_up() {
	modprobe nvmet-rdma && modprobe brd rd_nr=2 rd_size=65536 || return
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mkdir -p $TARGET/ports/1
	echo rdma >$TARGET/ports/1/addr_trtype
	echo ipv4 >$TARGET/ports/1/addr_adrfam
	echo "$1" >$TARGET/ports/1/addr_traddr
	echo 4420 >$TARGET/ports/1/addr_trsvcid
	subsystem_up $NQN /dev/ram0
}

target_down() {
	rm -f $TARGET/ports/1/subsystems/*
	rmdir $TARGET/ports/1 $TARGET/subsystems/*/namespaces/1 $TARGET/subsystems/* 2>/dev/null
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

# discover ADDRESS: prints the NQNs of the subsystems that nvme-cli finds at an address, in their order.
discover() {
	modprobe nvme-rdma && nvme discover -t rdma -a "$1" -s 4420 >/tmp/discovered || return
	sed -n 's/^subnqn: *//p' /tmp/discovered | grep "^$NQN" | sort
}

# connect_all ADDRESS: connects to all subsystems that nvme-cli finds there. The host misses the target after two seconds at most, and tries
# to connect again each second.
connect_all() { nvme connect-all -t rdma -a "$1" -s 4420 --nr-io-queues=2 --keep-alive-tmo=2 --reconnect-delay=1; }

# disk_of NQN: waits until the host has the namespace of that subsystem, and prints its block device, which belongs to the controller where
# the kernel is without CONFIG_NVME_MULTIPATH.
disk_of() {
	local subsystem
	for subsystem in /sys/class/nvme-subsystem/*; do
		[ "$(cat "$subsystem/subsysnqn")" != "$1" ] || block_device "$subsystem/nvme*n1" "$subsystem/nvme*/nvme*n1" || return
	done
}

# controllers STATE: prints how many controllers of the host are in that state; `live` after their connections, `connecting` without them.
controllers() { cat /sys/class/nvme/nvme*/state 2>/dev/null | grep -cx "$1"; }

# write_random DEVICE MEBIBYTES, read_back DEVICE MEBIBYTES: write random data, or read what is there, and print its hash.
write_random() {
	head -c "$2M" /dev/urandom >/tmp/random || return
	dd if=/tmp/random of="$1" bs=1M oflag=direct status=none || return
	sha256sum </tmp/random
}
read_back() { dd if="$1" bs=1M count="$2" iflag=direct status=none | sha256sum; }

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

delete_controllers() {
	local n
	for n in /sys/class/nvme/nvme*; do
		[ -e "$n/delete_controller" ] && echo 1 >"$n/delete_controller"
	done
}
disconnect() {
	delete_controllers
	modprobe -r nvme-rdma
}

# write_until_error DEVICE: four processes write, until a request of each of them fails; prints how many requests succeeded.
write_until_error() {
	local count job jobs=''
	for job in 1 2 3 4; do
		(
			count=0
			while dd if=/dev/zero of="$1" bs=64K count=1 seek=$((job * 100 + count % 100)) oflag=direct conv=nocreat status=none 2>/tmp/error-$job; do
				count=$((count + 1))
			done
			echo $count
		) &
		jobs="$jobs $!"
	done
	# shellcheck disable=SC2086
	wait $jobs
	sort -u /tmp/error-[1-4] >&2
}

# polled DEVICE MEBIBYTES: writes and reads back by requests whose completions are polled for (RWF_HIPRI), as no interrupt announces them.
polled() {
	local queue=/sys/block/${1##*/}/queue
	[ "$(cat "$queue/io_poll")" = 1 ] || { echo "no polled requests: $queue/io_poll"; return 1; }
	python3 - "$1" "$2" <<-'END'
		import mmap, os, sys
		disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
		for size in 512, 4096, 65536:
		    data, back = mmap.mmap(-1, size), mmap.mmap(-1, size)
		    for place in range(0, int(sys.argv[2]) << 20, max(size, 16384)):
		        data[:] = os.urandom(size)
		        assert os.pwritev(disk, [data], place, os.RWF_HIPRI) == size
		        assert os.preadv(disk, [back], place, os.RWF_HIPRI) == size
		        assert data[:] == back[:], (size, place)
		    print(size, "bytes are correct")
	END
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
