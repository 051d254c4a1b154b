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

# The name of the toolchain root has a hash of its packages and its recipe.
root_key=$(grep -v '^#' "$here/root-packages.txt" | sort -u | cat - "$here/root-recipe" | sha256sum | cut -c1-12)
root=$cache/root-$root_key

# own_target FOLDER: makes cargo build this workspace's packages anew in a target folder that another clone used last. Cargo tells by times
# whether a result is up to date, so what another clone has built since this one was made would pass for this one's.
own_target() {
	mkdir -p "$1"
	if [ "$(cat "$1/clone" 2>/dev/null)" != "$clone" ]; then
		find "$clone" -name Cargo.toml -not -path "$clone/out/*" -exec sed -n '/^\[package\]/,/^\[[^p]/s/^name = "\(.*\)"/\1/p' {} + |
			while read -r package; do
				rm -rf "$1"/*/.fingerprint/"$package"-*
			done
		echo "$clone" >"$1/clone"
	fi
}
