# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Hosts for implementations of MPI, which start their daemons by ssh: the two network namespaces.

# hosts: two hosts by name, the agent /tmp/agent HOST COMMAND, which stands in for ssh, and /tmp/rank COMMAND, which starts a rank with the
# device of its host.
hosts() {
	links
	local n
	for n in a b; do
		grep -q " $n$" /etc/hosts || echo "$(ip4 $n) $n" >>/etc/hosts
	done
	printf '#!/bin/sh\nnode=$1; shift\nexec ip netns exec $node unshare --uts sh -c "hostname $node; $*"\n' >/tmp/agent
	printf '#!/bin/sh\nexport UCX_NET_DEVICES=rxe_$(hostname):1 FI_VERBS_DEVICE_NAME=rxe_$(hostname)\nexec "$@"\n' >/tmp/rank
	chmod +x /tmp/agent /tmp/rank
}

# launch COMMAND…: runs a program that starts ranks, mpirun or mpiexec, at host a.
launch() {
	client a unshare --uts sh -c 'hostname a; exec "$@"' sh "$@" | tr -d '\0'
	is "${PIPESTATUS[0]}" 0 "status of $1"
}
