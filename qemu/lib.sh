# SPDX-License-Identifier: GPL-2.0
# Sourced by the shell scripts of qemu/, which set $here to the path of qemu/ before. Sets clone, cache and root: the paths of the clone,
# the cache folder and the toolchain root.

clone=$(cd "$here/.." && pwd -P)
cache=${RXE_RS_CACHE:-${HOME:-/root}/.cache/rxe_rs}

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

case $cache in
/*) ;;
*) cache=$PWD/$cache ;;
esac
# Kernel makefiles do not support such names.
case $clone$cache in
*[[:space:]:]*) die "the paths of the clone ($clone) and the cache ($cache) must not contain spaces or colons; move the clone, or set RXE_RS_CACHE" ;;
esac
export RXE_RS_CACHE="$cache"

# The name of the toolchain root has a hash of its packages and its recipe. suite-module.sh uses the tree of another suite as one.
root_key=$(grep -v '^#' "$here/root-packages.txt" | sort -u | cat - "$here/root-recipe" | sha256sum | cut -c1-12)
root=${RXE_TOOLCHAIN_ROOT:-$cache/root-$root_key}

# visible PATH…: ends the script if the toolchain root does not have these places: what is written there would be in the root, where nobody
# finds it.
visible() {
	for place in "$@"; do
		case $(realpath -ms "$place")/ in
		"$clone"/* | "$cache"/* | /tmp/*) ;;
		*) die "the toolchain root does not have $place; name a place in the clone, in the cache folder or in /tmp" ;;
		esac
	done
}

# own_targets: takes the folder of cargo's target folders for this clone until the script and what it started end, and sets `targets` to it.
# Clones share it, so that crates are built once, and one that builds while another does has a folder of its own. Cargo tells by times
# whether a result is up to date, so what another clone has built since this one was made would pass for this one's: the packages of this
# workspace are built anew in a folder that another clone used last.
own_targets() {
	for number in '' .2 .3 .4; do
		targets=$cache/target$number
		mkdir -p "$targets"
		exec 8>"$targets/users.lock"
		if flock -n -x 8; then
			[ "$(cat "$targets/clone" 2>/dev/null)" = "$clone" ] || disown_results "$targets"
			echo "$clone" >"$targets/clone"
		fi
		# Another script of this clone may be about to change from the exclusive to the shared lock.
		flock -s -w 10 8 && [ "$(cat "$targets/clone")" = "$clone" ] && return 0
	done
	die "four other clones build at the same time; wait until one of them has ended"
}
disown_results() {
	find "$clone" -name Cargo.toml -not -path "$clone/out/*" -exec sed -n '/^\[package\]/,/^\[[^p]/s/^name = "\(.*\)"/\1/p' {} + |
		while read -r package; do
			rm -rf "$1"/*/*/.fingerprint/"$package"-* "$1"/*/*/*/.fingerprint/"$package"-*
		done
}
