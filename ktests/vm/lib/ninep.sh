# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# 9P over RDMA: the client of the stock kernel. Sourced by ulp.test, on either node.

MOUNT=/mnt/9p
IN=$MOUNT/dir
SOURCE=/tmp/9p-source

ninep_mount() {
	mkdir -p $MOUNT
	# Resolve the neighbour first: with Linux 7.2 the client has waited for address resolution until its limit of 30 s.
	ping -q -c 1 -W 10 "$1" >/dev/null || return
	modprobe 9pnet_rdma && timeout 60 mount -t 9p -o "trans=rdma,port=5640,version=9p2000.L,$2" "$1" $MOUNT && grep " $MOUNT " /proc/mounts
}

# Unmounting must work even if the server has died.
ninep_umount() { timeout -s KILL 20 umount $MOUNT; }

# refused COMMAND…: the command must fail before its time limit.
refused() {
	local status=0
	timeout -s KILL 20 "$@" || status=$?
	[ $status != 0 ] && [ $status != 137 ]
}

# ninep_write MEBIBYTES: writes files of several sizes, in requests of several sizes, four files in parallel. Prints their checksums.
ninep_write() {
	local n writers=()
	mkdir -p $SOURCE $IN && head -c "$1M" /dev/urandom >$SOURCE/1M && cp $SOURCE/1M $SOURCE/300000 || return
	head -c 100K $SOURCE/1M >$SOURCE/4K || return
	for n in 0 1 4095 4097 70000; do head -c $n $SOURCE/1M >$SOURCE/size-$n || return; done
	for n in 1 2 3 4; do tail -c +$n $SOURCE/1M | head -c 200000 >$SOURCE/parallel-$n || return; done
	for n in 1M 300000 4K; do put $n $n || return; done
	cp $SOURCE/size-* $IN || return
	for n in 1 2 3 4; do
		put parallel-$n 50000 &
		writers+=($!)
	done
	for n in "${writers[@]}"; do wait "$n" || return; done
	ninep_sums $SOURCE
}
put() { dd if="$SOURCE/$1" of="$IN/$1" bs="$2" conv=fsync status=none; }

# ninep_sums FOLDER: prints the checksums of all files in it.
ninep_sums() { (cd "$1" && find . -type f | LC_ALL=C sort | xargs sha256sum); }

# All operations on directories and names.
ninep_names() {
	local d=$MOUNT/names
	mkdir $d $d/sub || return
	refused mkdir $d || return
	refused cat $d/none || return
	# A directory listing that does not fit into one message.
	(cd $d/sub && seq -f 'a-rather-long-name-of-a-file-number-%06.0f' 80 | xargs touch) || return
	[ "$(find $d/sub -type f | wc -l)" = 80 ] || return
	refused rmdir $d/sub || return
	echo one >$d/one && ln -s one $d/link && ln $d/one $d/two && mv $d/one $d/sub/three || return
	[ "$(cat $d/two $d/sub/three)" = "one
one" ] && [ "$(readlink $d/link)" = one ] && refused cat $d/link || return
	echo more >>$d/two && [ "$(cat $d/sub/three)" = "one
more" ] || return
	truncate -s 5 $d/two && chmod 640 $d/two && touch -d @86400.5 $d/two || return
	[ "$(stat -c '%s %a %Y %h' $d/two)" = "5 640 86400 2" ] || return
	[ "$(stat -f -c %T $MOUNT)" = v9fs ] || return
	rm -r $d && [ ! -e $d ] && ls $MOUNT
}

ninep_off() { modprobe -r 9pnet_rdma; }
