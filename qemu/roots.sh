# SPDX-License-Identifier: GPL-2.0
# Sourced, after lib.sh, by the scripts that make trees of Debian in the cache folder.

# able GIGABYTES: ends the script if no tree can be made here. The cache folder needs that space, which enough_space GIGABYTES checks.
able() {
	[ "$(id -u)" = 0 ] || die "setting up needs root (chroot, mounts). Run the same command with sudo"
	command -v apt-get >/dev/null || die "setting up needs apt, which this machine does not have; use a Debian 12 or 13 host"
	mkdir -p "$cache" || die "cannot create the cache folder $cache; set RXE_RS_CACHE to a folder with $1 GB free"
}
enough_space() {
	free=$(df -Pk "$cache" | awk 'NR==2 { print int($4 / 1048576) }')
	[ "$free" -ge "$1" ] || die "$cache has $free GB free, $1 GB are needed; free some or set RXE_RS_CACHE to a folder on another disk"
}

# need_mmdebstrap: installs it on this machine, unless it is there.
need_mmdebstrap() {
	! command -v mmdebstrap >/dev/null || return 0
	say "installing the Debian package mmdebstrap on this machine (the only one needed)"
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends mmdebstrap; } >&2 ||
		die "apt-get could not install mmdebstrap; see its messages above, then run the same command again"
}

# The mirror that this machine uses, or nothing.
mirror() {
	apt-get indextargets --format '$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)' 2>/dev/null |
		awk -F'|' '$1 == "Packages" && $2 == "Debian" && $3 == "Debian" { print $4; exit }'
}

# The option of apt in a new tree by which it accepts lists as old as this machine does, whose mirror may be an archive.
expiry() {
	valid=true
	eval "$(apt-config shell valid Acquire::Check-Valid-Until/b)"
	echo "Acquire::Check-Valid-Until \"$valid\""
}

# forgotten TREE: removes a tree that is not complete when the script ends. mmdebstrap mounts /proc and other file systems inside the tree. In
# a mount and a PID namespace of its own (`alone`) they are unmounted however it ends, so that the removal never enters a mounted file system.
forget() { rm -rf --one-file-system "$@"; }
forgotten() {
	incomplete=$1
	trap 'forget "$incomplete"' EXIT
	trap 'exit 130' INT TERM HUP
}
# mmdebstrap gets no other files of its callers, such as locks and pipes: it gives the lowest descriptor that is free to /bin/sh, which knows
# none above 9.
alone() { unshare --mount --propagation private --pid --fork --kill-child --mount-proc -- "$@" 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; }

# debian_tree TREE SUITES OPTION…: makes a tree with these options of mmdebstrap, of the first of the SUITES (one word), with the others as
# sources of packages. They come from the mirror of this machine, or else from the default of mmdebstrap, which has only the first of them.
debian_tree() {
	target=$1 suites=$2 from=$(mirror)
	shift 2
	set -- --mode=root --variant=apt --aptopt='Acquire::Languages "none"' --aptopt="$(expiry)" "$@" "${suites%% *}" "$target"
	if [ -n "$from" ]; then
		for s in $suites; do
			printf 'deb %s %s main\n' "$from" "$s"
		done | alone mmdebstrap "$@" - >&2
	else
		alone mmdebstrap "$@" >&2
	fi || die "mmdebstrap failed; see its messages above, then run the same command again"
}

# inside COMMAND…: runs it inside the tree $root, as in-root.sh does in the toolchain root.
inside() { RXE_TOOLCHAIN_ROOT="$root" "$here/in-root.sh" "$@"; }
