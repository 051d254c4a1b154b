// SPDX-License-Identifier: GPL-2.0
/*
 * Egress guard of the RoCE port.
 *
 * A RoCEv2 packet contains nothing that other users of the same host do not know. A process that
 * can send a UDP datagram to the RoCE port from an address of the host can forge requests,
 * responses and management datagrams of other users' connections. With a hardware adapter only the
 * adapter generates such packets. Hence, in a network namespace with a link, sending to the port
 * requires CAP_NET_RAW, which is also what forging packets with a raw socket requires.
 *
 * The guard is the last netfilter hook of LOCAL_OUT. It sees all datagrams that sockets send,
 * before they are fragmented or looped back, and with the destination port after network address
 * translation. Forwarded packets do not pass LOCAL_OUT, nor do frames of packet sockets, which
 * require CAP_NET_RAW themselves. Packets of this driver belong to sockets of the kernel (IPv4), or
 * have no socket in the state of the hook.
 */
#include "bindings_helper.h"
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <linux/ratelimit.h>
#include <net/sock.h>

struct rxe_rs_guard {
	struct net *net;
	__be16 port;
	struct nf_hook_ops hooks[2];
	atomic64_t refused;
	struct ratelimit_state log;
};

/*
 * Returns true if a socket may send to the port. Both the process that opened the socket and the
 * one that sends must have the capability in the user namespace that owns the network namespace: an
 * unprivileged process gains nothing from a socket that a privileged one opened, nor from a
 * privileged process that it passes a socket to. In softirq the sender is not known, and only the
 * opener is checked.
 */
static bool rxe_rs_guard_permits(const struct net *net, struct sock *sk)
{
	bool may = false;

	/*
	 * Kernel sockets belong to this driver or to tunnels, whose ports an administrator sets.
	 * RxRPC, however, sends to any port on behalf of any user.
	 */
	if (sk->sk_kern_sock)
		return sk->sk_protocol != IPPROTO_UDP ||
		       READ_ONCE(udp_sk(sk)->encap_type) != UDP_ENCAP_RXRPC;
	if (in_task() && !ns_capable_noaudit(net->user_ns, CAP_NET_RAW))
		return false;
	read_lock_bh(&sk->sk_callback_lock);
	if (sk->sk_socket && sk->sk_socket->file)
		may = file_ns_capable(sk->sk_socket->file, net->user_ns, CAP_NET_RAW);
	read_unlock_bh(&sk->sk_callback_lock);
	return may;
}

/* Logs a refused datagram, rate-limited. */
static void rxe_rs_guard_log(struct rxe_rs_guard *guard, const struct sock *sk)
{
	uid_t uid = from_kuid_munged(&init_user_ns, sk_uid(sk));
	char comm[TASK_COMM_LEN] = "-";

	if (!__ratelimit(&guard->log))
		return;
	if (in_task())
		get_task_comm(comm, current);
	pr_warn("rxe_rs: uid %u, process %d (%*pE): datagram to UDP port %u refused, it takes CAP_NET_RAW\n",
		uid, in_task() ? task_tgid_nr(current) : 0, (int)strlen(comm), comm,
		ntohs(guard->port));
}

/* Decides on a datagram whose UDP header is at @offset. */
static unsigned int rxe_rs_guard_check(struct rxe_rs_guard *guard, struct sk_buff *skb, int offset,
				       const struct nf_hook_state *state)
{
	const struct udphdr *uh;
	struct udphdr buf;

	uh = skb_header_pointer(skb, offset, sizeof(buf), &buf);
	if (!uh || uh->dest != guard->port)
		return NF_ACCEPT;
	if (sk_fullsock(state->sk) && rxe_rs_guard_permits(guard->net, state->sk))
		return NF_ACCEPT;
	atomic64_inc(&guard->refused);
	rxe_rs_guard_log(guard, state->sk);
	return NF_DROP;
}

/* Netfilter hook for IPv4. */
static unsigned int rxe_rs_guard4(void *priv, struct sk_buff *skb,
				  const struct nf_hook_state *state)
{
	const struct iphdr *iph = ip_hdr(skb);

	if (!state->sk || iph->protocol != IPPROTO_UDP || iph->frag_off & htons(IP_OFFSET))
		return NF_ACCEPT;
	return rxe_rs_guard_check(priv, skb, skb_network_offset(skb) + iph->ihl * 4, state);
}

/* Netfilter hook for IPv6. */
static unsigned int rxe_rs_guard6(void *priv, struct sk_buff *skb,
				  const struct nf_hook_state *state)
{
	unsigned int offset = 0;

	/* ipv6_find_hdr() finds the header in the first fragment only. */
	if (!state->sk || ipv6_find_hdr(skb, &offset, IPPROTO_UDP, NULL, NULL) < 0)
		return NF_ACCEPT;
	return rxe_rs_guard_check(priv, skb, offset, state);
}

static void rxe_rs_guard_init_hook(struct rxe_rs_guard *guard, struct nf_hook_ops *ops,
				   nf_hookfn *hook, u8 family)
{
	ops->hook = hook;
	ops->priv = guard;
	ops->pf = family;
	ops->hooknum = NF_INET_LOCAL_OUT;
	ops->priority = NF_IP_PRI_LAST;
}

/**
 * rxe_rs_guard_start() - refuse datagrams to a UDP port from senders without CAP_NET_RAW
 * @net: network namespace
 * @port: UDP port
 *
 * Context: Process context. May sleep.
 * Return: The guard, or an ERR_PTR.
 */
struct rxe_rs_guard *rxe_rs_guard_start(struct net *net, u16 port)
{
	struct rxe_rs_guard *guard;
	int err;

	guard = kzalloc_obj(*guard);
	if (!guard)
		return ERR_PTR(-ENOMEM);
	guard->net = net;
	guard->port = htons(port);
	/* A process that sends repeatedly must not fill the log. */
	ratelimit_state_init(&guard->log, 60 * HZ, 5);
	rxe_rs_guard_init_hook(guard, &guard->hooks[0], rxe_rs_guard4, NFPROTO_IPV4);
	rxe_rs_guard_init_hook(guard, &guard->hooks[1], rxe_rs_guard6, NFPROTO_IPV6);
	err = nf_register_net_hooks(net, guard->hooks, ARRAY_SIZE(guard->hooks));
	if (err) {
		kfree(guard);
		return ERR_PTR(err);
	}
	return guard;
}

/**
 * rxe_rs_guard_stop() - stop a guard
 * @guard: result of rxe_rs_guard_start()
 *
 * The caller must wait for an RCU grace period before it calls rxe_rs_guard_free().
 *
 * Context: Process context. May sleep.
 */
void rxe_rs_guard_stop(struct rxe_rs_guard *guard)
{
	/* The hooks may still be running, and use the namespace. */
	nf_unregister_net_hooks(guard->net, guard->hooks, ARRAY_SIZE(guard->hooks));
}

/**
 * rxe_rs_guard_free() - free a stopped guard
 * @guard: guard, or NULL
 *
 * Context: Any context.
 */
void rxe_rs_guard_free(struct rxe_rs_guard *guard)
{
	kfree(guard);
}

/**
 * rxe_rs_guard_refused() - return the number of refused datagrams
 * @guard: guard
 *
 * Context: Any context.
 * Return: Datagrams that the guard has refused since it was started.
 */
u64 rxe_rs_guard_refused(const struct rxe_rs_guard *guard)
{
	return atomic64_read(&guard->refused);
}
