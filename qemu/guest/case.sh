#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# case.sh FILE [FUNCTION]: runs one test function of a file, or a whole script, in a test machine. A test function ends at the first
# command that fails, with its status. RXE_ARGS: arguments of a whole script, quoted as words of a shell.
echo 0 >/proc/self/oom_score_adj
. /share/guest/lib.sh
file=$1
if [[ $file = *.py ]]; then
	links || exit
	python_case /share/tests/lib/run.py "$file" "$2"
elif [ -n "${2:-}" ]; then
	. "$file"
	set -e
	"$2"
else
	eval "set -- $RXE_ARGS"
	. "$file" "$@"
fi
