# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# A disk of the stock kernel's SCSI target (LIO), in RAM. Sourced by iser.sh and srp.sh.

LIO=/sys/kernel/config/target
LIO_DISK=$LIO/core/rd_mcp_0/disk

# disk_up: adds a disk of 64 MiB.
disk_up() {
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	modprobe target_core_mod && mkdir -p $LIO_DISK || return
	echo rd_pages=16384 >$LIO_DISK/control
	echo 1 >$LIO_DISK/enable
}

disk_down() { rmdir $LIO_DISK $LIO/core/rd_mcp_0; }
