// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: the egress guard.
 *
 * Nothing in an RoCEv2 packet is secret to other users of the same host: who sends a UDP datagram to
 * the RoCE port from an address of the host can forge requests, responses and management datagrams of
 * other users' connections. With an adapter in hardware only the adapter makes such packets. So in a
 * namespace with a link the port is out of reach of ordinary sockets: sending to it takes CAP_NET_RAW,
 * which is what forging takes anyway.
 *
 * The hook is in netfilter's LOCAL_OUT behind all others: it sees every datagram that a socket sends,
 * whole, before routes over loopback and the wire part, and with the port that address translation
 * gave it. What is forwarded does not pass there, nor do frames of packet sockets, which take
 * CAP_NET_RAW as well. What this driver sends comes without a socket in the hook's state.
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
 * Whether a socket may send to the port. Both who opened it and who sends must have the capability,
 * in the user namespace that owns the network namespace: neither is a socket that a privileged
 * process left behind a way out, nor a privileged process to which one is handed. Where something
 * other than the sender's own call sends, only the first is known.
 */
static bool rxe_rs_guard_may(const struct net *net, struct sock *sk)
{
	bool may = false;

	/*
	 * A socket of the kernel's: tunnels, whose ports take an administrator. But any user may have
	 * RxRPC send to any port.
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

static void rxe_rs_guard_log(struct rxe_rs_guard *guard, const struct sock *sk)
{
	uid_t uid = from_kuid_munged(&init_user_ns, sk_uid(sk));
	char comm[TASK_COMM_LEN] = "-";

	if (!__ratelimit(&guard->log))
		return;
	if (in_task())
		get_task_comm(comm, current);
	pr_warn("rxe_rs: uid %u, process %d (%*pE): datagram to UDP port %u refused, it takes CAP_NET_RAW\n",
		uid, in_task() ? task_tgid_nr(current) : 0, (int)strlen(comm), comm, ntohs(guard->port));
}

/* A datagram whose UDP header is at an offset. */
static unsigned int rxe_rs_guard_judge(struct rxe_rs_guard *guard, struct sk_buff *skb, int offset,
				    const struct nf_hook_state *state)
{
	const struct udphdr *uh;
	struct udphdr buf;

	uh = skb_header_pointer(skb, offset, sizeof(buf), &buf);
	if (!uh || uh->dest != guard->port)
		return NF_ACCEPT;
	if (sk_fullsock(state->sk) && rxe_rs_guard_may(guard->net, state->sk))
		return NF_ACCEPT;
	atomic64_inc(&guard->refused);
	rxe_rs_guard_log(guard, state->sk);
	return NF_DROP;
}

static unsigned int rxe_rs_guard4(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	const struct iphdr *iph = ip_hdr(skb);

	if (!state->sk || iph->protocol != IPPROTO_UDP || iph->frag_off & htons(IP_OFFSET))
		return NF_ACCEPT;
	return rxe_rs_guard_judge(priv, skb, skb_network_offset(skb) + iph->ihl * 4, state);
}

static unsigned int rxe_rs_guard6(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	unsigned int offset = 0;

	/* Finds no header in fragments other than the first. */
	if (!state->sk || ipv6_find_hdr(skb, &offset, IPPROTO_UDP, NULL, NULL) < 0)
		return NF_ACCEPT;
	return rxe_rs_guard_judge(priv, skb, offset, state);
}

static void rxe_rs_guard_hook(struct rxe_rs_guard *guard, struct nf_hook_ops *ops, nf_hookfn *hook, u8 family)
{
	ops->hook = hook;
	ops->priv = guard;
	ops->pf = family;
	ops->hooknum = NF_INET_LOCAL_OUT;
	ops->priority = NF_IP_PRI_LAST;
}

/* Keeps a port of a namespace. */
struct rxe_rs_guard *rxe_rs_guard_start(struct net *net, u16 port)
{
	struct rxe_rs_guard *guard;
	int err;

	guard = kzalloc_obj(*guard);
	if (!guard)
		return ERR_PTR(-ENOMEM);
	guard->net = net;
	guard->port = htons(port);
	/* Whoever is refused again and again fills no log. */
	ratelimit_state_init(&guard->log, 60 * HZ, 5);
	rxe_rs_guard_hook(guard, &guard->hooks[0], rxe_rs_guard4, NFPROTO_IPV4);
	rxe_rs_guard_hook(guard, &guard->hooks[1], rxe_rs_guard6, NFPROTO_IPV6);
	err = nf_register_net_hooks(net, guard->hooks, ARRAY_SIZE(guard->hooks));
	if (err) {
		kfree(guard);
		return ERR_PTR(err);
	}
	return guard;
}

/* Afterwards a grace period must pass before rxe_rs_guard_free(). */
void rxe_rs_guard_stop(struct rxe_rs_guard *guard)
{
	nf_unregister_net_hooks(guard->net, guard->hooks, ARRAY_SIZE(guard->hooks));
	guard->net = NULL;
}

void rxe_rs_guard_free(struct rxe_rs_guard *guard)
{
	kfree(guard);
}

u64 rxe_rs_guard_refused(const struct rxe_rs_guard *guard)
{
	return atomic64_read(&guard->refused);
}
