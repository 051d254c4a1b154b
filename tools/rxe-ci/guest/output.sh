# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The output of a command on its way from two pipes to two ports; for init, and for a test of it (../tests/output.rs).

# Processes that the command leaves behind may hold the pipes open, and have this time, in tenths of a second, to write what they still
# have, such as a tee through which all output of a script goes. The time in which the host does not read is not counted.
OUTPUT_GRACE=20
copiers=()

# copy_output FOLDER OUT ERR: makes the pipes FOLDER/out and FOLDER/err, and begins to copy them to these descriptors. They are pipes, as in
# CI, because a port can be opened only once, so programs could not open /dev/stdout.
copy_output() {
	pipes=("$1/out" "$1/err")
	mkfifo "${pipes[@]}"
	cat <"${pipes[0]}" >&"$2" &
	copiers+=($!)
	cat <"${pipes[1]}" >&"$3" &
	copiers+=($!)
}
copied() { ! kill -0 "${copiers[@]}" 2>/dev/null; }
# call_of PID: sets `call` to the system call that a process waits in, with its arguments: 0 is read(2), 1 is write(2).
call_of() { { read -r call <"/proc/$1/syscall"; } 2>/dev/null || call=; }
# host_is_slow: whether a copier has waited in the same call of write(2) since this was asked last.
host_is_slow() {
	local pid call switches slow=1
	for pid in "${copiers[@]}"; do
		call_of "$pid"
		[[ $call == '1 '* ]] || continue
		switches=$(grep -s ctxt_switches "/proc/$pid/status")
		[ "${waited[pid]:-}" != "$call $switches" ] || slow=0
		waited[pid]="$call $switches"
	done
	return $slow
}
# kill_holders: kills the processes other than the copiers that have one of the pipes open.
kill_holders() {
	local file pid
	for file in /proc/[0-9]*/fd/*; do
		[[ $file -ef ${pipes[0]} || $file -ef ${pipes[1]} ]] || continue
		pid=${file#/proc/}
		pid=${pid%%/*}
		[[ " ${copiers[*]} " == *" $pid "* ]] || kill -KILL "$pid" 2>/dev/null
	done
}
# finish_output: waits until all that the command has written is copied, however long the host takes to read it.
finish_output() {
	local left=$OUTPUT_GRACE pid call waited=()
	until copied || [ "$left" -le 0 ]; do
		sleep 0.1
		host_is_slow || left=$((left - 1))
	done
	until copied; do
		kill_holders
		# A process that the kernel does not let end still holds a pipe. A copier that waits to read has copied everything.
		for pid in "${copiers[@]}"; do
			call_of "$pid"
			[[ $call != '0 '* ]] || kill "$pid" 2>/dev/null
		done
		sleep 0.1
	done
}
