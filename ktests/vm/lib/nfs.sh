# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# NFS over RDMA: server and client of the stock kernel. Sourced by ulp.test, on either node.

FOLDER=/srv/export
SERVER=/proc/fs/nfsd

# nfs_up: exports a tmpfs over RDMA (port 20049), by NFS version 4 only, which needs no port mapper.
nfs_up() {
	modprobe nfsd && modprobe rpcrdma || return
	mountpoint -q $SERVER || mount -t nfsd nfsd $SERVER || return
	mkdir -p $FOLDER /var/lib/nfs/v4recovery
	mountpoint -q $FOLDER || mount -t tmpfs none $FOLDER || return
	exportfs -i -o rw,no_root_squash,fsid=0,insecure,no_subtree_check '*:'$FOLDER || return
	# For version 4, mountd only answers the kernel's upcalls about exports.
	rpc.mountd -N 3 || return
	echo 10 >$SERVER/nfsv4leasetime
	echo 10 >$SERVER/nfsv4gracetime
	rpc.nfsd -N 3 --rdma=20049 4 || return
	# No client has state to reclaim, so end the grace period.
	echo Y >$SERVER/v4_end_grace
	grep -w 20049 $SERVER/portlist
}

nfs_down() {
	rpc.nfsd 0
	pkill -x rpc.mountd
	exportfs -ua
	umount $FOLDER $SERVER
	modprobe -r nfsd rpcrdma
}

nfs_mount() {
	mkdir -p /mnt/nfs
	modprobe rpcrdma && timeout 60 mount -t nfs4 -o "proto=rdma,port=20049,vers=4.2,$2" "$1:/" /mnt/nfs && grep " /mnt/nfs " /proc/mounts
}

nfs_umount() { umount /mnt/nfs; }

# nfs_exercise MEBIBYTES: writes and reads files of several sizes, with buffered and direct I/O, in requests up to the server's limit.
nfs_exercise() {
	local size block
	mkdir -p /mnt/nfs/dir || return
	dd if=/dev/urandom of=/tmp/pattern bs=1M count="$1" status=none || return
	for block in 1M 300000 4K; do
		dd if=/tmp/pattern of=/mnt/nfs/dir/file bs=$block conv=fsync status=none || return
		echo 3 >/proc/sys/vm/drop_caches
		cmp /tmp/pattern /mnt/nfs/dir/file || return
		echo "$block: $1 MiB are correct"
	done
	dd if=/tmp/pattern of=/mnt/nfs/dir/direct bs=1M oflag=direct status=none || return
	dd if=/mnt/nfs/dir/direct of=/tmp/back bs=1M iflag=direct status=none || return
	cmp /tmp/pattern /tmp/back || return
	for size in 0 1 4095 4097 70000; do
		head -c $size /tmp/pattern >/mnt/nfs/dir/$size || return
	done
	# A directory listing that does not fit into one message.
	(cd /mnt/nfs/dir && seq -f 'a-rather-long-name-of-a-file-number-%06.0f' 300 | xargs touch) || return
	echo 3 >/proc/sys/vm/drop_caches
	for size in 0 1 4095 4097 70000; do
		head -c $size /tmp/pattern | cmp - /mnt/nfs/dir/$size || return
	done
	[ "$(find /mnt/nfs/dir -name 'a-rather*' | wc -l)" = 300 ] || return
	rm -r /mnt/nfs/dir
}
