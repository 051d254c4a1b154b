# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# SCSI RDMA protocol (SRP): target and initiator of the stock kernel, which connect by rdma_cm on RoCE. Sourced by ulp.test, on either node.

. /share/tests/lib/ulp.sh
. /share/tests/lib/lio.sh
SRP_PORT=5555

# srp_group DEVICE: the folder of a device's target. Its name is that of the target: the GUID of a link-local GID, or all of the GID.
srp_group() {
	local gid name
	gid=$(cat "/sys/class/infiniband/$1/ports/1/gids/0")
	case $gid in fe80:0000:0000:0000:*) name=${gid#fe80:0000:0000:0000:} ;; *) name=0x${gid//:/} ;; esac
	echo "$LIO/srpt/$name/$name"
}

# srp_target_up DEVICE ADDRESS: sets up a target with one disk; prints its identifier. ADDRESS is its own: the target takes that for the name
# of an initiator that connects by rdma_cm.
srp_target_up() {
	local group
	modprobe ib_srpt && disk_up && mkdir -p $LIO/srpt && echo $SRP_PORT >$LIO/srpt/discovery_auth/rdma_cm_port || return
	group=$(srp_group "$1")
	mkdir -p "$group/lun/lun_0" && ln -s $LIO_DISK "$group/lun/lun_0/disk" || return
	mkdir -p "$group/acls/$2/lun_0" && ln -s "$group/lun/lun_0" "$group/acls/$2/lun_0/disk" || return
	echo 1 >"$group/enable" || return
	cat /sys/module/ib_srpt/parameters/srpt_service_guid
}

# srp_target_down DEVICE ADDRESS
srp_target_down() {
	local group
	group=$(srp_group "$1")
	echo 0 >"$group/enable"
	rm -f "$group/acls/$2/lun_0/disk" "$group/lun/lun_0/disk"
	rmdir "$group/acls/$2/lun_0" "$group/acls/$2" "$group/lun/lun_0" "$group" "${group%/*}"
	echo 0 >$LIO/srpt/discovery_auth/rdma_cm_port
	rmdir $LIO/srpt
	disk_down
	modprobe -r ib_srpt
}

# srp_connect DEVICE ADDRESS IDENTIFIER: logs in to the target and prints the block device.
srp_connect() {
	modprobe sd_mod && modprobe ib_srp || return
	echo "id_ext=$3,ioc_guid=$3,initiator_ext=1,dest=$2:$SRP_PORT" >"/sys/class/infiniband_srp/srp-$1-1/add_target" || return
	block_device '/sys/block/sd*'
}

# srp_waits DEVICE: requests wait for as long as it takes to connect again, which is tried when one has had no answer for 15 s.
srp_waits() {
	local port
	echo 15 >"/sys/block/${1##*/}/device/timeout"
	for port in /sys/class/srp_remote_ports/port-*; do
		echo off >"$port/fast_io_fail_tmo" && echo off >"$port/dev_loss_tmo" && echo 1 >"$port/reconnect_delay" || return
	done
}

# srp_blocks: requests wait for as long as the target refuses connections, up to ten minutes. A connection is tried each second.
srp_blocks() {
	local port
	for port in /sys/class/srp_remote_ports/port-*; do
		echo off >"$port/fast_io_fail_tmo" && echo 600 >"$port/dev_loss_tmo" && echo 1 >"$port/reconnect_delay" || return
	done
}

# srp_enable DEVICE 1|0: lets initiators log in to the target of a device, or ends all their connections and refuses new ones.
srp_enable() { echo "$2" >"$(srp_group "$1")/enable"; }

# srp_refused, srp_running: succeed if there is a session and its last attempt to connect again has failed, or has not.
srp_refused() { cat /sys/class/srp_remote_ports/port-*/failed_reconnects 2>/dev/null | grep -qvx 0; }
srp_running() { cat /sys/class/srp_remote_ports/port-*/failed_reconnects 2>/dev/null | grep -qx 0; }

# srp_log_out: ends the sessions of the initiator. They and their disks are removed a little later.
srp_log_out() {
	local port
	for port in /sys/class/srp_remote_ports/port-*; do
		[ ! -e "$port/delete" ] || echo 1 >"$port/delete"
	done
}
srp_disconnect() {
	srp_log_out
	modprobe -r --wait 20000 ib_srp
}
