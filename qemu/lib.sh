# SPDX-License-Identifier: GPL-2.0
# Shared by the shell scripts of qemu/. Sourced, never run: expects $here to be the folder of qemu/.

clone=$(cd "$here/.." && pwd -P)
cache=${RXE_RS_CACHE:-$HOME/.cache/rxe_rs}

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The toolchain root is keyed by what is in it.
root_key=$(grep -v '^#' "$here/root-packages.txt" | sort -u | cat - "$here/root-recipe" | sha256sum | cut -c1-12)
root=$cache/root-$root_key
