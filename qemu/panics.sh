#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# panics.sh FOLDER: prints which panics the module's objects in the build folder FOLDER can reach. Exit status 0 if there are none that
# matter. Which ones remain depends on what the compiler removes, so each compiler's objects have to be examined.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/lib.sh"
folder=$1/rxe_rs
# Functions of the core library that do not return, by their mangled names.
panics='panic|bounds|slice_(start|end)_index|_fail(ed)?$'
# The engine's generic code is instantiated in the driver's object. It and the abstractions may have overflow checks of additions,
# subtractions and shifts, some of them from the core library, whose operands are in range as comments say; but no index or unwrap that can
# panic.
overflows='panic_const_(add|sub|shl)_overflow$'
for object in proto/rxe_proto.o rxe_rs.o kapi/rxe_kapi.o; do
	[ -f "$folder/$object" ] || die "there is no $folder/$object; build the module first"
	except=$overflows
	[ $object != proto/rxe_proto.o ] || except='^$'
	# The symbols that are referred to; an object can also name others.
	if objdump -r "$folder/$object" | sed -n 's/^[0-9a-f]* *R_[^ ]* *//; T; s/[-+]0x[0-9a-f]*$//; p' | sort -u | grep -E "$panics" |
		grep -vE "$except"; then
		die "$(basename $object) can reach the panics above"
	fi
	say "no panic is reachable in $(basename $object)$([ "$except" = '^$' ] || echo ' but those of overflows')"
done
