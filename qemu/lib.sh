# SPDX-License-Identifier: GPL-2.0
# Shared by the shell scripts of qemu/. Sourced, never run: expects $here to be the folder of qemu/.

clone=$(cd "$here/.." && pwd -P)
cache=${RXE_RS_CACHE:-${HOME:-/root}/.cache/rxe_rs}

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

case $cache in
/*) ;;
*) cache=$PWD/$cache ;;
esac
# Kernel makefiles cannot cope with such names.
case $clone$cache in
*[[:space:]:]*) die "the paths of the clone ($clone) and the cache ($cache) must not hold spaces or colons; use RXE_RS_CACHE" ;;
esac
export RXE_RS_CACHE="$cache"

# The toolchain root is keyed by what is in it.
root_key=$(grep -v '^#' "$here/root-packages.txt" | sort -u | cat - "$here/root-recipe" | sha256sum | cut -c1-12)
root=$cache/root-$root_key
