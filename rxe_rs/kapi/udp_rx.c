// SPDX-License-Identifier: GPL-2.0
/*
 * Reception: the UDP port, and parsing of received buffers.
 *
 * A network namespace has one endpoint: an IPv4 and an IPv6 socket, which own the port, and the
 * last netfilter hook of LOCAL_IN, which receives datagrams to the port before the UDP layer.
 * Buffers of several datagrams (GSO, GRO) are segmented before a socket with an encapsulation
 * handler receives them; the hook receives them whole, and without a socket look-up. Firewall rules
 * and connection tracking see all datagrams.
 */
#include "bindings_helper.h"
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <net/netfilter/nf_conntrack.h>
#include <net/xfrm.h>

/* The UDP port of a network namespace. */
struct rxe_rs_endpoint {
	struct list_head list;
	struct net *net;		/* NULL after the namespace has ended */
	unsigned int users;		/* number of rxe_rs_endpoint_open() without close */
	rxe_rs_receive_t receive;
	rxe_rs_receive_t refuse;
	__be16 port;
	struct socket *sock4;
	struct socket *sock6;
	struct nf_hook_ops hooks[2];
	bool hooked;
	struct rxe_rs_guard *guard;	/* NULL if the guard is disabled */
};

/* Protects the list, the endpoints in it and the two flags. */
static DEFINE_MUTEX(rxe_rs_endpoints_lock);
static LIST_HEAD(rxe_rs_endpoints);
static bool rxe_rs_net_ready;
static bool rxe_rs_net_guarded;

/*
 * Returns true for the first packet of a connection that connection tracking has not confirmed.
 * That happens after the last hook, so such a packet is left to the UDP layer.
 */
static bool rxe_rs_ct_unconfirmed(const struct sk_buff *skb)
{
#if IS_ENABLED(CONFIG_NF_CONNTRACK)
	enum ip_conntrack_info ctinfo;
	struct nf_conn *ct = nf_ct_get(skb, &ctinfo);

	return ct && !nf_ct_is_confirmed(ct);
#else
	return false;
#endif
}

/* Confirms the connection of such a packet, and returns the verdict on the packet. */
static unsigned int rxe_rs_ct_confirm(struct sk_buff *skb)
{
#if IS_ENABLED(CONFIG_NF_CONNTRACK)
	const struct nf_ct_hook *hook = rcu_dereference(nf_ct_hook);

	if (hook)
		return hook->confirm(skb);
#endif
	return NF_ACCEPT;
}

/* Receives a datagram in the hook; skb->data is at the IP header, which has @hlen bytes. */
static unsigned int rxe_rs_hook_rcv(struct rxe_rs_endpoint *ep, struct sk_buff *skb,
				    unsigned int hlen, unsigned short family)
{
	rxe_rs_receive_t receive = ep->receive;
	const struct udphdr *uh;
	struct udphdr buf;

	uh = skb_header_pointer(skb, hlen, sizeof(buf), &buf);
	if (!uh || uh->dest != ep->port)
		return NF_ACCEPT;
	/*
	 * With IPVLAN in mode l3s, packets for the namespaces above pass the hooks of the one below
	 * before they are given their device. The UDP layer finds the port of their namespace.
	 */
	if (dev_net_rcu(skb_dst_dev_rcu(skb)) != dev_net_rcu(skb->dev))
		return NF_ACCEPT;
	/*
	 * The UDP layer drops packets that the IPsec policies of the namespace do not admit, and
	 * does not report them. A packet that is left to it here is checked there again.
	 */
	if (!xfrm_policy_check(NULL, XFRM_POLICY_IN, skb, family)) {
		receive = ep->refuse;
	} else if (rxe_rs_ct_unconfirmed(skb)) {
		unsigned int verdict;

		/*
		 * The UDP layer would segment a packet that must stay whole, and drop it. For those
		 * of a VRF it finds no socket, unless net.ipv4.udp_l3mdev_accept is set.
		 */
		if (!skb_is_gso_sctp(skb) && !netif_is_l3_master(skb->dev))
			return NF_ACCEPT;
		verdict = rxe_rs_ct_confirm(skb);
		if (verdict != NF_ACCEPT)
			return verdict;
	}
	if (!pskb_may_pull(skb, hlen + sizeof(*uh)))
		return NF_DROP;
	nf_reset_ct(skb);
	__skb_pull(skb, hlen);
	skb_reset_transport_header(skb);
	/* A program gives back what is in its queue (NFQUEUE) in process context. */
	if (unlikely(!softirq_count())) {
		local_bh_disable();
		receive(skb);
		local_bh_enable();
	} else {
		receive(skb);
	}
	return NF_STOLEN;
}

/* Netfilter hook for IPv4. */
static unsigned int rxe_rs_hook4(void *priv, struct sk_buff *skb,
				 const struct nf_hook_state *state)
{
	const struct iphdr *iph = ip_hdr(skb);

	if (iph->protocol != IPPROTO_UDP || iph->ihl != 5 || ip_is_fragment(iph))
		return NF_ACCEPT;
	return rxe_rs_hook_rcv(priv, skb, sizeof(*iph), AF_INET);
}

/* Netfilter hook for IPv6. */
static unsigned int rxe_rs_hook6(void *priv, struct sk_buff *skb,
				 const struct nf_hook_state *state)
{
	const struct ipv6hdr *iph = ipv6_hdr(skb);

	if (iph->nexthdr != IPPROTO_UDP)
		return NF_ACCEPT;
	return rxe_rs_hook_rcv(priv, skb, sizeof(*iph), AF_INET6);
}

/* Encapsulation handler of the sockets: receives what the hook has left to the UDP layer. */
static int rxe_rs_encap_rcv(struct sock *sk, struct sk_buff *skb)
{
	struct rxe_rs_endpoint *ep = rcu_dereference_sk_user_data(sk);

	if (ep)
		ep->receive(skb);
	else
		kfree_skb(skb);
	return 0;
}

static int rxe_rs_socket_open(struct rxe_rs_endpoint *ep, bool v6, struct socket **sock)
{
	struct udp_tunnel_sock_cfg tunnel = {
		.sk_user_data = ep,
		.encap_type = 1,
		.encap_rcv = rxe_rs_encap_rcv,
	};
	struct udp_port_cfg cfg = {
		.family = v6 ? AF_INET6 : AF_INET,
		.local_udp_port = ep->port,
		.ipv6_v6only = 1,
	};
	int err;

	err = udp_sock_create(ep->net, &cfg, sock);
	if (err)
		return err;
	setup_udp_tunnel_sock(ep->net, (*sock)->sk, &tunnel);
	if (v6)
		rxe_rs_tx_set_udp6((*sock)->sk);
	/* Allows GRO for datagrams with a checksum. */
	udp_set_bit(GRO_ENABLED, (*sock)->sk);
	return 0;
}

static void rxe_rs_hook_init(struct rxe_rs_endpoint *ep, struct nf_hook_ops *ops,
			     nf_hookfn *hook, u8 family)
{
	ops->hook = hook;
	ops->priv = ep;
	ops->pf = family;
	ops->hooknum = NF_INET_LOCAL_IN;
	ops->priority = NF_IP_PRI_LAST;
}

/* Closes the port and waits for running receive functions. */
static void rxe_rs_endpoint_stop(struct rxe_rs_endpoint *ep)
{
	if (ep->hooked)
		nf_unregister_net_hooks(ep->net, ep->hooks, ARRAY_SIZE(ep->hooks));
	if (ep->guard && ep->net)
		rxe_rs_guard_stop(ep->guard);
	if (ep->sock6)
		udp_tunnel_sock_release(ep->sock6->sk);
	if (ep->sock4)
		udp_tunnel_sock_release(ep->sock4->sk);
	synchronize_net();
	ep->hooked = false;
	ep->sock6 = NULL;
	ep->sock4 = NULL;
	ep->net = NULL;
}

static struct rxe_rs_endpoint *rxe_rs_endpoint_create(struct net *net, __be16 port,
						      rxe_rs_receive_t receive,
						      rxe_rs_receive_t refuse)
{
	struct rxe_rs_endpoint *ep;
	int err;

	ep = kzalloc_obj(*ep);
	if (!ep)
		return ERR_PTR(-ENOMEM);
	ep->net = net;
	ep->users = 1;
	ep->receive = receive;
	ep->refuse = refuse;
	ep->port = port;
	err = rxe_rs_socket_open(ep, false, &ep->sock4);
	if (err)
		goto fail;
	/* IPv6 may be disabled. */
	err = rxe_rs_socket_open(ep, true, &ep->sock6);
	if (err && err != -EAFNOSUPPORT && err != -EPFNOSUPPORT)
		goto fail;
	rxe_rs_hook_init(ep, &ep->hooks[0], rxe_rs_hook4, NFPROTO_IPV4);
	rxe_rs_hook_init(ep, &ep->hooks[1], rxe_rs_hook6, NFPROTO_IPV6);
	err = nf_register_net_hooks(net, ep->hooks, ARRAY_SIZE(ep->hooks));
	if (err)
		goto fail;
	ep->hooked = true;
	if (rxe_rs_net_guarded) {
		struct rxe_rs_guard *guard = rxe_rs_guard_start(net, ntohs(port));

		if (IS_ERR(guard)) {
			err = PTR_ERR(guard);
			goto fail;
		}
		ep->guard = guard;
	}
	return ep;
fail:
	rxe_rs_endpoint_stop(ep);
	kfree(ep);
	return ERR_PTR(err);
}

/**
 * rxe_rs_endpoint_open() - open a UDP port
 * @dev: network device in whose namespace the port is opened
 * @port: UDP port
 * @receive: takes over a received buffer
 * @refuse: takes over a buffer that the IPsec policies of the namespace do not admit
 *
 * Both functions are called with bottom halves disabled, mostly in softirq, in an RCU read-side
 * critical section, and on several CPUs at the same time. If the port is open already, its
 * functions remain those of the first call.
 *
 * Context: Process context. May sleep.
 * Return: The endpoint, or an ERR_PTR: -ENODEV before rxe_rs_net_init() or if the namespace has
 * ended, -EADDRINUSE if another socket has the port, -ENOMEM, or another error of the network
 * stack.
 */
struct rxe_rs_endpoint *rxe_rs_endpoint_open(const struct net_device *dev, u16 port,
					     rxe_rs_receive_t receive, rxe_rs_receive_t refuse)
{
	/* The reference keeps the namespace from ending before the endpoint is in the list. */
	struct net *net = rxe_rs_netdev_net_get(dev);
	struct rxe_rs_endpoint *ep;

	if (!net)
		return ERR_PTR(-ENODEV);
	mutex_lock(&rxe_rs_endpoints_lock);
	if (!rxe_rs_net_ready) {
		ep = ERR_PTR(-ENODEV);
		goto out;
	}
	list_for_each_entry(ep, &rxe_rs_endpoints, list) {
		if (ep->net == net && ep->port == htons(port)) {
			ep->users++;
			goto out;
		}
	}
	ep = rxe_rs_endpoint_create(net, htons(port), receive, refuse);
	if (!IS_ERR(ep))
		list_add(&ep->list, &rxe_rs_endpoints);
out:
	mutex_unlock(&rxe_rs_endpoints_lock);
	put_net(net);
	return ep;
}

/**
 * rxe_rs_endpoint_close() - undo rxe_rs_endpoint_open()
 * @ep: endpoint
 *
 * The last call closes the port and waits for running receive functions.
 *
 * Context: Process context. Sleeps.
 */
void rxe_rs_endpoint_close(struct rxe_rs_endpoint *ep)
{
	mutex_lock(&rxe_rs_endpoints_lock);
	if (!--ep->users) {
		list_del(&ep->list);
		rxe_rs_endpoint_stop(ep);
		rxe_rs_guard_free(ep->guard);
		kfree(ep);
	}
	mutex_unlock(&rxe_rs_endpoints_lock);
}

/*
 * Closes the port of a namespace that ends. A device that has been moved to another namespace may
 * still have the endpoint open.
 */
static void rxe_rs_pernet_exit(struct net *net)
{
	struct rxe_rs_endpoint *ep;

	mutex_lock(&rxe_rs_endpoints_lock);
	list_for_each_entry(ep, &rxe_rs_endpoints, list) {
		if (ep->net == net)
			rxe_rs_endpoint_stop(ep);
	}
	mutex_unlock(&rxe_rs_endpoints_lock);
}

static struct pernet_operations rxe_rs_net_ops = {
	.exit = rxe_rs_pernet_exit,
};

/**
 * rxe_rs_net_init() - initialize the network part
 * @guarded: whether endpoints have an egress guard (guard.c)
 *
 * Context: Process context. May sleep.
 * Return: 0 or a negative error.
 */
int rxe_rs_net_init(bool guarded)
{
	int err;

	rxe_rs_host_tag_init();
	err = register_pernet_subsys(&rxe_rs_net_ops);
	if (err)
		return err;
	mutex_lock(&rxe_rs_endpoints_lock);
	rxe_rs_net_ready = true;
	rxe_rs_net_guarded = guarded;
	mutex_unlock(&rxe_rs_endpoints_lock);
	return 0;
}

/**
 * rxe_rs_net_exit() - undo rxe_rs_net_init()
 *
 * To be called when no buffer is sent or received any more.
 *
 * Context: Process context. Sleeps.
 */
void rxe_rs_net_exit(void)
{
	mutex_lock(&rxe_rs_endpoints_lock);
	rxe_rs_net_ready = false;
	mutex_unlock(&rxe_rs_endpoints_lock);
	unregister_pernet_subsys(&rxe_rs_net_ops);
	rxe_rs_tx_release_pages();
	/*
	 * sock_wfree() calls rxe_rs_tx_write_space() outside of RCU read-side critical sections. A
	 * task that was preempted at the start or the end of that function may still be there.
	 */
	synchronize_rcu_tasks();
}

/**
 * rxe_rs_endpoint_refused() - return the number of datagrams that the egress guard has refused
 * @ep: endpoint
 *
 * Context: Any context.
 * Return: The number since the port was opened.
 */
u64 rxe_rs_endpoint_refused(const struct rxe_rs_endpoint *ep)
{
	return ep->guard ? rxe_rs_guard_refused(ep->guard) : 0;
}

/**
 * rxe_rs_endpoint_has_ipv6() - check whether the port receives IPv6
 * @ep: endpoint
 *
 * Context: Any context.
 * Return: false if IPv6 is disabled in the namespace, or the namespace has ended.
 */
bool rxe_rs_endpoint_has_ipv6(const struct rxe_rs_endpoint *ep)
{
	return ep->sock6;
}

/* State of a walk over the contiguous fragments of a buffer. */
struct rxe_rs_walk {
	struct rxe_rs_rx_frag *out;	/* RXE_RS_RX_MAX_FRAGS entries, or NULL to count only */
	u32 offset;			/* bytes to skip */
	u32 len;			/* bytes that remain */
	u32 count;			/* fragments found */
};

static void rxe_rs_walk_frag(struct rxe_rs_walk *walk, const u8 *start, u32 len)
{
	if (walk->offset >= len) {
		walk->offset -= len;
		return;
	}
	start += walk->offset;
	len = min(len - walk->offset, walk->len);
	walk->offset = 0;
	walk->len -= len;
	if (!len)
		return;
	if (walk->out && walk->count < RXE_RS_RX_MAX_FRAGS) {
		walk->out[walk->count].start = start;
		walk->out[walk->count].len = len;
	}
	walk->count++;
}

static void rxe_rs_walk_skb(struct rxe_rs_walk *walk, const struct sk_buff *skb)
{
	const struct skb_shared_info *info = skb_shinfo(skb);
	unsigned int i;

	rxe_rs_walk_frag(walk, skb->data, skb_headlen(skb));
	for (i = 0; i < info->nr_frags && walk->len; i++)
		rxe_rs_walk_frag(walk, skb_frag_address(&info->frags[i]),
				 skb_frag_size(&info->frags[i]));
}

static u32 rxe_rs_walk(struct rxe_rs_walk *walk, const struct sk_buff *skb)
{
	const struct sk_buff *part;

	rxe_rs_walk_skb(walk, skb);
	if (walk->len) {
		skb_walk_frags(skb, part) {
			rxe_rs_walk_skb(walk, part);
			if (!walk->len)
				break;
		}
	}
	return walk->count;
}

/**
 * rxe_rs_rx_frags() - return the fragments of a datagram
 * @skb: buffer that rxe_rs_rx_parse() has accepted
 * @offset: first byte, after the UDP header of the buffer
 * @len: length of the datagram
 * @out: receives the fragments; holds RXE_RS_RX_MAX_FRAGS entries
 *
 * Context: Any context.
 * Return: The number of fragments.
 */
u32 rxe_rs_rx_frags(const struct sk_buff *skb, u32 offset, u32 len, struct rxe_rs_rx_frag *out)
{
	struct rxe_rs_walk walk = {
		.out = out,
		.offset = offset + sizeof(struct udphdr),
		.len = len,
	};

	return min(rxe_rs_walk(&walk, skb), RXE_RS_RX_MAX_FRAGS);
}

/* Minimum length of the datagrams in a GSO buffer: BTH and ICRC. */
#define RXE_RS_RX_MIN 16

/* Linearizes a buffer if a datagram in it has more than RXE_RS_RX_MAX_FRAGS fragments. */
static int rxe_rs_rx_limit_frags(struct sk_buff *skb, u32 len, u32 step)
{
	const struct sk_buff *part;
	bool bad = false;
	u32 at;

	skb_walk_frags(skb, part)
		bad |= skb_has_frag_list(part);
	if (!bad && !skb_has_frag_list(skb) &&
	    skb_shinfo(skb)->nr_frags < RXE_RS_RX_MAX_FRAGS)
		return 0;
	for (at = 0; !bad && at < len; at += step) {
		struct rxe_rs_walk walk = {
			.offset = at + sizeof(struct udphdr),
			.len = min(step, len - at),
		};

		bad = rxe_rs_walk(&walk, skb) > RXE_RS_RX_MAX_FRAGS;
	}
	return bad ? skb_linearize(skb) : 0;
}

/*
 * Copies payload that others can still write to, so that the data that is validated is the data
 * that is used. A sender on this host may have passed its own pages by MSG_ZEROCOPY or the ring of
 * a packet socket, which skb_orphan_frags_rx() copies, or by splice() and similar calls, pages of
 * files included (SKBFL_SHARED_FRAG). Taps and clones only read.
 */
static int rxe_rs_rx_copy_shared(struct sk_buff *skb)
{
	struct sk_buff *part;
	bool shared;

	if (skb_orphan_frags_rx(skb, GFP_ATOMIC))
		return -ENOMEM;
	shared = skb_has_shared_frag(skb);
	skb_walk_frags(skb, part)
		shared |= skb_has_shared_frag(part) || skb_zcopy(part);
	return shared ? __skb_linearize(skb) : 0;
}

/*
 * Returns the network device that received a buffer. In a VRF the buffer has the device of the VRF,
 * which is above those of all links there.
 */
static const struct net_device *rxe_rs_rx_dev(const struct sk_buff *skb, bool v4)
{
	int slave = v4 ? inet_sdif(skb) : inet6_sdif(skb);
	const struct net_device *dev = NULL;

	if (slave)
		dev = dev_get_by_index_rcu(dev_net_rcu(skb->dev), slave);
	return dev ?: skb->dev;
}

/**
 * rxe_rs_rx_parse() - validate a received buffer
 * @skb: buffer, with skb->data at the UDP header
 * @rx: receives the result, which is valid as long as the buffer is not changed
 *
 * On success no other code writes to the bytes of the buffer, the IP header and the UDP header are
 * contiguous, and each datagram has at most RXE_RS_RX_MAX_FRAGS fragments.
 *
 * Context: Any context that may take softirq locks, in an RCU read-side critical section.
 * Return: 0, or a negative error for a malformed buffer (IP options, a UDP length that is larger
 * than the buffer, unreadable fragments, joined datagrams that must stay whole) or if no memory is
 * available.
 */
int rxe_rs_rx_parse(struct sk_buff *skb, struct rxe_rs_rx *rx)
{
	const struct udphdr *uh;
	u32 step, hlen;
	int err;

	if (!skb->dev || !skb_frags_readable(skb))
		return -EINVAL;
	if (rxe_rs_rx_copy_shared(skb))
		return -ENOMEM;
	if (!pskb_may_pull(skb, sizeof(*uh)))
		return -EINVAL;
	rx->v4 = ip_hdr(skb)->version == 4;
	hlen = rx->v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	/* No IP options or extension headers: the ICRC covers headers of fixed length. */
	if (-skb_network_offset(skb) != hlen ||
	    (rx->v4 && ip_hdr(skb)->ihl != 5))
		return -EINVAL;
	uh = (const struct udphdr *)skb->data;
	rx->len = skb->len - sizeof(*uh);
	rx->gso_size = 0;
	rx->whole_size = skb_is_gso_sctp(skb) ? skb_shinfo(skb)->gso_size : 0;
	/*
	 * Datagrams that stay whole (rxe_rs_tx_max_whole()) and have been joined. GRO joins no GSO
	 * buffers but those of TCP; if it did, it would add the type of UDP.
	 */
	if (skb_is_gso_sctp(skb) && skb_shinfo(skb)->gso_type != SKB_GSO_SCTP)
		return -EINVAL;
	if (skb_is_gso(skb) && skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4) {
		rx->gso_size = skb_shinfo(skb)->gso_size;
		if (rx->gso_size < RXE_RS_RX_MIN)
			return -EINVAL;
	} else {
		if (ntohs(uh->len) < sizeof(*uh) || ntohs(uh->len) > skb->len)
			return -EINVAL;
		if (ntohs(uh->len) < skb->len) {
			err = pskb_trim_rcsum(skb, ntohs(uh->len));
			if (err)
				return err;
			rx->len = skb->len - sizeof(*uh);
		}
	}
	step = rx->gso_size ?: max(rx->len, 1U);
	err = rxe_rs_rx_limit_frags(skb, rx->len, step);
	if (err)
		return err;
	rx->iph = skb_network_header(skb);
	rx->dev = rxe_rs_rx_dev(skb, rx->v4);
	rx->vrf = rx->dev == skb->dev ? NULL : skb->dev;
	rx->vrf_ifindex = rx->vrf ? READ_ONCE(rx->vrf->ifindex) : 0;
	rx->ifindex = READ_ONCE(rx->dev->ifindex);
	rx->loopback = rx->dev->flags & IFF_LOOPBACK;
	rx->tag = rxe_rs_host_tag_get(skb, rx->v4);
	return 0;
}

/* Called for the first network device below another one. */
static int rxe_rs_lower_vlan(struct net_device *lower, struct netdev_nested_priv *priv)
{
	u16 *vlan = priv->data;

	if (is_vlan_dev(lower))
		*vlan = vlan_dev_vlan_id(lower);
	return 1;
}

/**
 * rxe_rs_rx_vlan() - return the VLAN of a datagram for its completion
 * @dev: network device that received the datagram
 * @ifindex: index of the network device that has the destination address
 *
 * The RDMA core looks for the GID with the destination address and this VLAN. The VLAN of a GID is
 * that of its network device, or of the first one below (rdma_read_gid_l2_fields()). @dev does not
 * always show it: datagrams of this host arrive by the loopback device, those of a VRF by the
 * device of the VRF.
 *
 * Context: Any context, in an RCU read-side critical section.
 * Return: The VLAN ID, or RXE_RS_NO_VLAN.
 */
u16 rxe_rs_rx_vlan(const struct net_device *dev, u32 ifindex)
{
	struct net_device *owner = dev_get_by_index_rcu(dev_net_rcu(dev), ifindex);
	u16 vlan = RXE_RS_NO_VLAN;
	struct netdev_nested_priv priv = {
		.data = &vlan,
	};

	if (!owner)
		return RXE_RS_NO_VLAN;
	if (is_vlan_dev(owner))
		return vlan_dev_vlan_id(owner);
	netdev_walk_all_lower_dev_rcu(owner, rxe_rs_lower_vlan, &priv);
	return vlan;
}

/**
 * rxe_rs_dev_same_net() - check whether two network devices are in the same namespace
 * @dev: network device
 * @other: network device
 *
 * Context: Any context.
 * Return: true if they are.
 */
bool rxe_rs_dev_same_net(const struct net_device *dev, const struct net_device *other)
{
	return net_eq(dev_net(dev), dev_net(other));
}

/**
 * rxe_rs_dev_is_above() - check whether a network device is an upper device of another
 * @dev: network device
 * @base: network device
 *
 * Context: Any context, in an RCU read-side critical section.
 * Return: true if @dev is above @base, directly or indirectly, and in the same namespace.
 */
bool rxe_rs_dev_is_above(const struct net_device *dev, struct net_device *base)
{
	return rxe_rs_dev_same_net(dev, base) &&
	       netdev_has_upper_dev_all_rcu(base, (struct net_device *)dev);
}

/* Returns 1 if a network device has a MAC address. */
static int rxe_rs_has_mac(struct net_device *dev, struct netdev_nested_priv *priv)
{
	return ether_addr_equal(dev->dev_addr, priv->data);
}

/**
 * rxe_rs_skb_is_copy() - check whether the network device below has received the same frame
 * @skb: received buffer
 * @dev: network device that received it, above @base
 * @base: network device
 *
 * MACVLAN and IPVLAN devices get copies of the multicast frames that the device below them
 * receives, which keeps them. What one of these devices sends reaches the others directly, and the
 * device below does not get it.
 *
 * Context: Any context, in an RCU read-side critical section.
 * Return: true if @base has received the frame.
 */
bool rxe_rs_skb_is_copy(const struct sk_buff *skb, const struct net_device *dev,
			struct net_device *base)
{
	const struct rtnl_link_ops *ops = dev->rtnl_link_ops;
	struct netdev_nested_priv priv;

	if (skb->pkt_type != PACKET_MULTICAST || dev->type != ARPHRD_ETHER ||
	    !skb_mac_header_was_set(skb) || skb_mac_header_len(skb) < ETH_HLEN ||
	    dev_get_iflink(dev) != READ_ONCE(base->ifindex))
		return false;
	if (!netif_is_macvlan(dev) && !(ops && !strcmp(ops->kind, "ipvlan")))
		return false;
	priv.data = eth_hdr(skb)->h_source;
	return !netdev_walk_all_upper_dev_rcu(base, rxe_rs_has_mac, &priv);
}

/**
 * rxe_rs_skb_hold() - take a reference to a received buffer, which is kept for a while
 * @skb: buffer, which nobody else has a reference to that was not taken here
 *
 * Only its bytes may be used afterwards. What the buffer refers to would otherwise have to wait for
 * it: route and network device, the states of IPsec, a socket that was found for it.
 *
 * Context: Any context that may take softirq locks.
 * Return: The memory of the buffer in bytes.
 */
u32 rxe_rs_skb_hold(struct sk_buff *skb)
{
	skb_orphan(skb);
	skb_dst_drop(skb);
	skb_ext_reset(skb);
	nf_reset_ct(skb);
	skb->dev = NULL;
	return skb_get(skb)->truesize;
}

/**
 * rxe_rs_skb_consume() - free a buffer that has been processed
 * @skb: buffer
 *
 * Context: Any context that may take softirq locks.
 */
void rxe_rs_skb_consume(struct sk_buff *skb)
{
	consume_skb(skb);
}

/**
 * rxe_rs_rx_discard() - free a buffer that rxe_rs_rx_parse() has refused
 * @skb: buffer
 * @err: what that has returned
 *
 * Which link it was for is not known. It is counted as UDP counts such datagrams, by UdpInErrors or
 * Udp6InErrors, and also by UdpMemErrors or Udp6MemErrors if there was no memory.
 *
 * Context: As rxe_rs_rx_parse().
 */
void rxe_rs_rx_discard(struct sk_buff *skb, int err)
{
	if (skb->dev) {
		struct net *net = dev_net_rcu(skb->dev);
		bool v4 = ip_hdr(skb)->version == 4;

		if (v4)
			UDP_INC_STATS(net, UDP_MIB_INERRORS);
		else
			UDP6_INC_STATS(net, UDP_MIB_INERRORS);
		if (err == -ENOMEM && v4)
			UDP_INC_STATS(net, UDP_MIB_MEMERRORS);
		else if (err == -ENOMEM)
			UDP6_INC_STATS(net, UDP_MIB_MEMERRORS);
	}
	kfree_skb(skb);
}
