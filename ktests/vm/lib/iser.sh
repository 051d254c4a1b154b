# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# iSCSI over RDMA (iSER): target and initiator of the stock kernel. Sourced by ulp.test, on either node.

. /share/tests/lib/ulp.sh
. /share/tests/lib/lio.sh
IQN=iqn.2026-01.test:rxe
TPG=$LIO/iscsi/$IQN/tpgt_1

# iser_target_up ADDRESS: sets up a target with one RAM disk of 64 MiB.
iser_target_up() {
	modprobe iscsi_target_mod && modprobe ib_isert && disk_up || return
	mkdir -p $TPG/lun/lun_0 "$TPG/np/$1:3260" || return
	ln -s $LIO_DISK $TPG/lun/lun_0/disk
	echo 1 >"$TPG/np/$1:3260/iser" || return
	echo 0 >$TPG/attrib/authentication
	echo 1 >$TPG/attrib/generate_node_acls
	echo 0 >$TPG/attrib/demo_mode_write_protect
	echo 1 >$TPG/enable
}

iser_target_down() {
	echo 0 >$TPG/enable
	rm -f $TPG/lun/lun_0/disk
	rmdir $TPG/np/* $TPG/lun/lun_0 $TPG $LIO/iscsi/$IQN $LIO/iscsi
	disk_down
	modprobe -r ib_isert iscsi_target_mod
}

# iser_connect ADDRESS: logs in to the target and prints the block device.
iser_connect() {
	modprobe sd_mod && modprobe ib_iser || return
	pgrep -x iscsid >/dev/null || { echo "InitiatorName=iqn.2026-01.test:initiator" >/etc/iscsi/initiatorname.iscsi && iscsid; } >&2 || return
	iscsiadm -m node -o new -T $IQN -p "$1:3260,1" -I iser >&2 || return
	timeout 60 iscsiadm -m node -T $IQN -p "$1:3260" -I iser -l >&2 || return
	block_device '/sys/block/sd*'
}

iser_disconnect() {
	timeout 60 iscsiadm -m node -T $IQN -p "$1:3260" -I iser -u && iscsiadm -m node -o delete -T $IQN -p "$1:3260"
}

iser_off() {
	pkill -x iscsid
	modprobe -r ib_iser
}
