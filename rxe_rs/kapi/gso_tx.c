// SPDX-License-Identifier: GPL-2.0
/*
 * Routes, and construction and transmission of GSO buffers.
 */
#include "bindings_helper.h"
#include <linux/local_lock.h>
#include <linux/netfilter.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>
#include <net/l3mdev.h>
#include <net/sch_generic.h>
#include <net/udp.h>

/* One direction of a path, with a cached route. */
struct rxe_rs_flow {
	struct net_device *dev;		/* referenced by the owner of the flow */
	struct in6_addr saddr6;
	struct in6_addr daddr6;
	__be32 saddr;
	__be32 daddr;
	u32 flow_label;
	u32 ifindex;
	__be16 sport;
	__be16 dport;
	u8 tclass;
	bool v4;
	spinlock_t lock;		/* protects dst and cookie */
	struct dst_entry *dst;
	u32 cookie;
};

/**
 * rxe_rs_flow_new() - create a flow
 * @dev: network device; must not be released before the flow is freed
 * @spec: addresses and header fields
 *
 * The route is looked up when it is needed for the first time.
 *
 * Context: Any context that may take softirq locks.
 * Return: The flow, or NULL if no memory is available.
 */
struct rxe_rs_flow *rxe_rs_flow_new(struct net_device *dev, const struct rxe_rs_flow_spec *spec)
{
	struct rxe_rs_flow *flow = kzalloc_obj(*flow, GFP_ATOMIC | __GFP_ACCOUNT);

	if (!flow)
		return NULL;
	flow->dev = dev;
	memcpy(&flow->saddr6, spec->saddr, sizeof(flow->saddr6));
	memcpy(&flow->daddr6, spec->daddr, sizeof(flow->daddr6));
	flow->saddr = flow->saddr6.s6_addr32[3];
	flow->daddr = flow->daddr6.s6_addr32[3];
	flow->flow_label = spec->flow_label;
	flow->ifindex = spec->ifindex;
	flow->sport = htons(spec->sport);
	flow->dport = htons(spec->dport);
	flow->tclass = spec->tclass;
	flow->v4 = spec->v4;
	spin_lock_init(&flow->lock);
	return flow;
}

/**
 * rxe_rs_flow_free() - free a flow that is no longer used
 * @flow: flow
 *
 * Context: Any context that may take softirq locks.
 */
void rxe_rs_flow_free(struct rxe_rs_flow *flow)
{
	dst_release(flow->dst);
	kfree(flow);
}

/*
 * Returns the network device that packets of a flow leave by, or NULL if it has gone: the flow's
 * own device, or the device above it that has the source address. The VRF that it is in, not that
 * of the flow's own device, selects the table of routes, and which addresses are those of this
 * host.
 */
static const struct net_device *rxe_rs_flow_out(const struct rxe_rs_flow *flow, struct net *net)
{
	return flow->ifindex ? dev_get_by_index_rcu(net, flow->ifindex) : flow->dev;
}

/*
 * The routes below demand the device @out, unless the destination is an address of this host, which
 * is reached over loopback; in a VRF over the device of the VRF, which selects the table.
 */
static struct dst_entry *rxe_rs_route4(struct rxe_rs_flow *flow, struct net *net,
				       const struct net_device *out)
{
	struct flowi4 fl4 = {
		.flowi4_oif = READ_ONCE(out->ifindex),
		.flowi4_dscp = inet_dsfield_to_dscp(flow->tclass),
		.flowi4_proto = IPPROTO_UDP,
		.flowi4_uid = sock_net_uid(net, NULL),
		.saddr = flow->saddr,
		.daddr = flow->daddr,
		.fl4_sport = flow->sport,
		.fl4_dport = flow->dport,
	};
	struct rtable *rt;

	if (inet_addr_type_dev_table(net, out, flow->daddr) == RTN_LOCAL)
		fl4.flowi4_oif = l3mdev_master_ifindex_rcu(out);
	rt = ip_route_output_flow(net, &fl4, NULL);
	return IS_ERR(rt) ? ERR_CAST(rt) : &rt->dst;
}

static struct dst_entry *rxe_rs_route6(struct rxe_rs_flow *flow, struct net *net,
				       const struct net_device *out)
{
	struct flowi6 fl6 = {
		.flowi6_oif = READ_ONCE(out->ifindex),
		.flowi6_proto = IPPROTO_UDP,
		.flowi6_uid = sock_net_uid(net, NULL),
		.flowlabel = ip6_make_flowinfo(flow->tclass,
					       htonl(flow->flow_label)),
		.saddr = flow->saddr6,
		.daddr = flow->daddr6,
		.fl6_sport = flow->sport,
		.fl6_dport = flow->dport,
	};
	struct dst_entry *dst;
	int err;

	if (!ipv6_mod_enabled())
		return ERR_PTR(-EAFNOSUPPORT);
	if (!(ipv6_addr_type(&flow->daddr6) & IPV6_ADDR_LINKLOCAL) &&
	    ipv6_chk_addr_and_flags(net, &flow->daddr6, out, true, 0, IFA_F_TENTATIVE))
		fl6.flowi6_oif = l3mdev_master_ifindex_rcu(out);
	dst = ip6_route_output(net, NULL, &fl6);
	/*
	 * With a source address the interface is only preferred, unlike with IPv4. To demand it at
	 * once would skip routes that refuse packets, which have no interface. The interface of a
	 * VRF has been taken out of the flow.
	 */
	if (!dst->error && fl6.flowi6_oif && dst_dev(dst)->ifindex != fl6.flowi6_oif &&
	    !(dst_rt6_info(dst)->rt6i_flags & RTF_LOCAL)) {
		dst_release(dst);
		dst = ip6_route_output_flags(net, NULL, &fl6, RT6_LOOKUP_F_IFACE);
	}
	err = dst->error;
	if (err) {
		dst_release(dst);
		return ERR_PTR(err);
	}
	return xfrm_lookup_route(net, dst, flowi6_to_flowi(&fl6), NULL, 0);
}

/**
 * rxe_rs_flow_route() - return the route of a flow
 * @flow: flow
 *
 * Looks the route up again if the cached one is obsolete.
 *
 * Context: Any context that may take softirq locks.
 * Return: A reference to the route, or an ERR_PTR of the look-up.
 */
struct dst_entry *rxe_rs_flow_route(struct rxe_rs_flow *flow)
{
	const struct net_device *out;
	struct dst_entry *dst, *old;
	struct net *net;
	u32 cookie = 0;

	spin_lock_bh(&flow->lock);
	dst = flow->dst;
	if (dst && dst_check(dst, flow->cookie)) {
		dst_hold(dst);
		spin_unlock_bh(&flow->lock);
		return dst;
	}
	spin_unlock_bh(&flow->lock);

	rcu_read_lock();
	net = dev_net_rcu(flow->dev);
	out = rxe_rs_flow_out(flow, net);
	if (!out)
		dst = ERR_PTR(-ENODEV);
	else if (flow->v4)
		dst = rxe_rs_route4(flow, net, out);
	else
		dst = rxe_rs_route6(flow, net, out);
	rcu_read_unlock();
	if (IS_ERR(dst))
		return dst;
	if (!flow->v4)
		cookie = rt6_get_cookie(dst_rt6_info(dst));

	dst_hold(dst);
	spin_lock_bh(&flow->lock);
	old = flow->dst;
	flow->dst = dst;
	flow->cookie = cookie;
	spin_unlock_bh(&flow->lock);
	dst_release(old);
	return dst;
}

/**
 * rxe_rs_flow_dev() - return the network device of a flow
 * @flow: flow
 *
 * Context: Any context.
 * Return: The device that the flow was created with.
 */
const struct net_device *rxe_rs_flow_dev(const struct rxe_rs_flow *flow)
{
	return flow->dev;
}

/**
 * rxe_rs_tx_checksums() - check whether a network device computes the checksums of UDP
 * @dev: network device
 * @v4: over IPv4, not IPv6
 *
 * Context: Any context.
 * Return: true if it does.
 */
bool rxe_rs_tx_checksums(const struct net_device *dev, bool v4)
{
	return dev->features & (NETIF_F_HW_CSUM | (v4 ? NETIF_F_IP_CSUM : NETIF_F_IPV6_CSUM));
}

/* Returns the most bytes after the UDP header in a GSO buffer for a network device. */
static u32 rxe_rs_tx_max_len(const struct net_device *dev, bool v4)
{
	u32 size = v4 ? READ_ONCE(dev->gso_ipv4_max_size) : READ_ONCE(dev->gso_max_size);
	u32 headers = LL_RESERVED_SPACE(dev) + sizeof(struct ipv6hdr) + sizeof(struct udphdr);

	size = min_t(u32, size, U16_MAX);
	return size > headers ? size - headers : 0;
}

/*
 * Sets the limits of a GSO buffer: 0 bytes and 1 segment unless the device segments UDP and
 * computes the checksums. In software, both would read the payload again, which costs more than GSO
 * saves.
 */
static void rxe_rs_tx_limits(const struct dst_entry *dst, const struct net_device *dev, bool v4,
			     u32 *max_len, u32 *max_segs)
{
	*max_len = 0;
	*max_segs = 1;
	if (!(dev->features & NETIF_F_GSO_UDP_L4) ||
	    !(dev->features & NETIF_F_SG) || !rxe_rs_tx_checksums(dev, v4) ||
	    dst_xfrm(dst))
		return;
	*max_len = rxe_rs_tx_max_len(dev, v4);
	if (*max_len)
		*max_segs = min_t(u32, READ_ONCE(dev->gso_max_segs), UDP_MAX_SEGMENTS);
}

/**
 * rxe_rs_tx_account() - account bytes that are not in a buffer to it
 * @skb: finished buffer of a single datagram that has no owner yet
 * @bytes: number of bytes
 * @packets: number of packets that it counts as
 *
 * The owner's limit of bytes in the queues of the network stack includes them.
 *
 * Context: Any context.
 */
void rxe_rs_tx_account(struct sk_buff *skb, u32 bytes, u32 packets)
{
	skb->truesize += bytes;
	/* Without a gso_size the network stack does not use it. */
	skb_shinfo(skb)->gso_segs = min_t(u32, packets, U16_MAX);
}

/**
 * rxe_rs_tx_max_whole() - return the maximum of a datagram that is not segmented
 * @flow: flow
 *
 * Such a datagram is longer than the MTU, and must stay in the memory of this kernel. It has the
 * GSO type of another protocol, so that it is dropped where it would have to be segmented, and no
 * hardware accepts it. Software devices have the feature. A queueing discipline may have to segment
 * buffers, or is there to delay or to lose single packets.
 *
 * Context: Any context that may take softirq locks.
 * Return: The number of bytes after the UDP header, or 0 if the network device of the route does
 * not take such datagrams.
 */
u32 rxe_rs_tx_max_whole(struct rxe_rs_flow *flow)
{
	struct dst_entry *dst = rxe_rs_flow_route(flow);
	const struct net_device *dev;
	u32 max = 0;

	if (IS_ERR(dst))
		return 0;
	rcu_read_lock();
	dev = dst_dev_rcu(dst);
	if (dev->features & NETIF_F_GSO_SCTP && dev->features & NETIF_F_SG && !dst_xfrm(dst) &&
	    qdisc_txq_has_no_queue(netdev_get_tx_queue(dev, 0)) &&
	    rxe_rs_host_tag_allowed(dev, flow->v4))
		max = rxe_rs_tx_max_len(dev, flow->v4);
	rcu_read_unlock();
	dst_release(dst);
	return max;
}

/**
 * rxe_rs_tx_new() - allocate a buffer for datagrams of a flow
 * @flow: flow
 * @tclass: traffic class, from which the priority is derived
 * @linear: space for payload in the linear part of the buffer, in bytes
 * @max_len: receives the maximum of bytes in the buffer; 0 for a single datagram of any length
 * @max_segs: receives the maximum number of datagrams
 *
 * Context: Any context that may take softirq locks.
 * Return: The buffer, NULL if no memory is available, or an ERR_PTR if there is no route.
 */
struct sk_buff *rxe_rs_tx_new(struct rxe_rs_flow *flow, u8 tclass, u32 linear, u32 *max_len,
			      u32 *max_segs)
{
	struct dst_entry *dst = rxe_rs_flow_route(flow);
	struct net_device *dev;
	struct sk_buff *skb;
	u32 reserve;

	if (IS_ERR(dst))
		return ERR_CAST(dst);
	rcu_read_lock();
	dev = dst_dev_rcu(dst);
	reserve = LL_RESERVED_SPACE(dev) + sizeof(struct ipv6hdr) +
		  sizeof(struct udphdr);
	skb = alloc_skb(reserve + linear, GFP_ATOMIC | __GFP_NOWARN);
	if (skb) {
		skb_reserve(skb, reserve);
		skb->dev = dev;
		skb->protocol = flow->v4 ? htons(ETH_P_IP) : htons(ETH_P_IPV6);
		skb->priority = rt_tos2priority(tclass);
		skb_dst_set(skb, dst);
		rxe_rs_tx_limits(dst, dev, flow->v4, max_len, max_segs);
	} else {
		dst_release(dst);
	}
	rcu_read_unlock();
	return skb;
}

/*
 * Payload pages of a CPU. Consecutive datagrams get adjacent memory, so a GSO buffer needs few
 * fragments.
 */
struct rxe_rs_tx_pages {
	local_lock_t lock;
	struct page_frag frag;
};

static DEFINE_PER_CPU(struct rxe_rs_tx_pages, rxe_rs_tx_pages) = {
	.lock = INIT_LOCAL_LOCK(lock),
};

/* Appends contiguous bytes to the fragments of a buffer; NULL if that is not possible. */
static void *rxe_rs_tx_put_frag(struct sk_buff *skb, u32 len)
{
	const gfp_t gfp = GFP_ATOMIC | __GFP_NOWARN;
	struct skb_shared_info *info = skb_shinfo(skb);
	struct page_frag own = {}, *frag;
	int i = info->nr_frags;

	frag = this_cpu_ptr(&rxe_rs_tx_pages.frag);
	if (!skb_page_frag_refill(len, frag, gfp) ||
	    frag->offset + len > frag->size) {
		/* Only single pages are available, or the datagram is unusually long. */
		own.page = alloc_pages(gfp | __GFP_COMP, get_order(len));
		if (!own.page)
			return NULL;
		frag = &own;
	}
	if (skb_can_coalesce(skb, i, frag->page, frag->offset)) {
		skb_frag_size_add(&info->frags[i - 1], len);
	} else if (i < MAX_SKB_FRAGS) {
		if (!own.page)
			get_page(frag->page);
		skb_fill_page_desc(skb, i, frag->page, frag->offset, len);
	} else {
		if (own.page)
			__free_pages(own.page, get_order(len));
		return NULL;
	}
	frag->offset += len;
	skb->len += len;
	skb->data_len += len;
	skb->truesize += len;
	return page_address(frag->page) + frag->offset - len;
}

/**
 * rxe_rs_tx_put() - append contiguous bytes to a buffer
 * @skb: buffer of rxe_rs_tx_new()
 * @len: number of bytes
 *
 * Context: Bottom halves disabled.
 * Return: The address of the bytes, whose contents are undefined, or NULL if no memory is available
 * or the buffer has the maximum number of fragments.
 */
void *rxe_rs_tx_put(struct sk_buff *skb, u32 len)
{
	void *start;

	if (!skb->data_len && skb_tailroom(skb) >= len)
		return skb_put(skb, len);
	local_lock_nested_bh(&rxe_rs_tx_pages.lock);
	start = rxe_rs_tx_put_frag(skb, len);
	local_unlock_nested_bh(&rxe_rs_tx_pages.lock);
	return start;
}

/* Returns bytes to the payload pages, unless others have been allocated since. */
static void rxe_rs_tx_unput_frag(const skb_frag_t *last, u32 len)
{
	struct page_frag *frag;

	local_lock_nested_bh(&rxe_rs_tx_pages.lock);
	frag = this_cpu_ptr(&rxe_rs_tx_pages.frag);
	if (frag->page == skb_frag_page(last) &&
	    frag->offset == skb_frag_off(last) + skb_frag_size(last))
		frag->offset -= len;
	local_unlock_nested_bh(&rxe_rs_tx_pages.lock);
}

/**
 * rxe_rs_tx_undo() - undo the last rxe_rs_tx_put()
 * @skb: buffer
 * @len: number of bytes that were appended
 *
 * Context: Bottom halves disabled.
 */
void rxe_rs_tx_undo(struct sk_buff *skb, u32 len)
{
	struct skb_shared_info *info = skb_shinfo(skb);
	skb_frag_t *last;

	if (!skb->data_len) {
		skb_trim(skb, skb->len - len);
		return;
	}
	last = &info->frags[info->nr_frags - 1];
	rxe_rs_tx_unput_frag(last, len);
	skb_frag_size_sub(last, len);
	if (!skb_frag_size(last)) {
		put_page(skb_frag_page(last));
		info->nr_frags--;
	}
	skb->len -= len;
	skb->data_len -= len;
	skb->truesize -= len;
}

/**
 * rxe_rs_tx_finish() - complete a buffer
 * @skb: buffer with the payload of all datagrams
 * @hdr: IP header and UDP header of the first datagram
 * @hdr_len: length of both headers
 * @gso_size: payload of each datagram but the last
 * @gso_segs: number of datagrams
 * @tag: tag for a receiver in this kernel (host_tag.c), or 0
 * @whole: the buffer is one datagram, and not to be segmented (rxe_rs_tx_max_whole())
 *
 * Context: Any context that may take softirq locks.
 */
void rxe_rs_tx_finish(struct sk_buff *skb, const u8 *hdr, u32 hdr_len, u32 gso_size, u32 gso_segs,
		      u8 tag, bool whole)
{
	struct skb_shared_info *info = skb_shinfo(skb);
	struct udphdr *uh;
	u32 len;

	memcpy(skb_push(skb, hdr_len), hdr, hdr_len);
	skb_reset_network_header(skb);
	skb_set_transport_header(skb, hdr_len - sizeof(*uh));
	uh = udp_hdr(skb);
	len = skb->len - skb_transport_offset(skb);
	uh->len = htons(len);
	uh->check = 0;
	if (!rxe_rs_host_tag_set(skb, tag) && gso_segs < 2)
		return;

	if (gso_segs > 1) {
		info->gso_type = whole ? SKB_GSO_SCTP : SKB_GSO_UDP_L4;
		info->gso_size = gso_size;
		info->gso_segs = min_t(u32, gso_segs, READ_ONCE(skb->dev->gso_max_segs));
	}
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_transport_header(skb) - skb->head;
	skb->csum_offset = offsetof(struct udphdr, check);
	if (skb->protocol == htons(ETH_P_IP))
		uh->check = ~udp_v4_check(len, ip_hdr(skb)->saddr,
					  ip_hdr(skb)->daddr, 0);
	else
		uh->check = ~udp_v6_check(len, &ipv6_hdr(skb)->saddr,
					  &ipv6_hdr(skb)->daddr, 0);
}

/**
 * rxe_rs_tx_link() - append a buffer to a list
 * @last: last buffer of the list
 * @skb: complete buffer
 *
 * Context: Any context.
 */
void rxe_rs_tx_link(struct sk_buff *last, struct sk_buff *skb)
{
	last->next = skb;
}

/*
 * Returns an error for a buffer that the stack would drop without reporting it. The route discards
 * packets if the states (keys) of an IPsec policy do not exist yet. A packet that is too long for
 * the path after ESP is dropped behind the transformation, possibly later and on another CPU,
 * because "do not fragment" is set.
 */
static int rxe_rs_tx_check(const struct sk_buff *skb, const struct dst_entry *dst)
{
	if (READ_ONCE(dst->output) == dst_discard_out)
		return -EHOSTUNREACH;
	if (dst_xfrm(dst) && skb->len > dst_mtu(dst))
		return -EMSGSIZE;
	return 0;
}

/* Sends one buffer and consumes it. */
static int rxe_rs_tx_one(struct sk_buff *skb)
{
	const struct dst_entry *dst = skb_dst(skb);
	struct net *net;
	int err;

	/* Frames of rxe_rs_frame_new() have no route. */
	if (!dst)
		return dev_queue_xmit(skb);
	err = rxe_rs_tx_check(skb, dst);
	if (unlikely(err)) {
		kfree_skb(skb);
		return err;
	}
	net = dev_net_rcu(skb_dst_dev_rcu(skb));
	/* IPv4 takes the MTU of the path from this socket, IPv6 from that of the buffer. */
	if (skb->protocol == htons(ETH_P_IP))
		return ip_local_out(net, skb->sk, skb);
	return ip6_local_out(net, NULL, skb);
}

/*
 * The socket that accounts the buffers of a sender. Buffers that are charged to it keep the socket
 * allocated, and may be freed after the sender, which the socket no longer refers to then.
 */
struct rxe_rs_tx_owner {
	struct sock *sk;
	/* What is passed to wake() when at most "mark" bytes are charged, or NULL; exchanged. */
	void *waiter;
	u32 mark;
	void (*wake)(void *waiter);
	/* What the socket had before. */
	void (*write_space)(struct sock *sk);
	struct rcu_head rcu;
};

static void rxe_rs_tx_owner_wake(struct rxe_rs_tx_owner *owner)
{
	void *waiter;

	if (sk_wmem_alloc_get(owner->sk) > READ_ONCE(owner->mark))
		return;
	waiter = xchg(&owner->waiter, NULL);
	if (waiter)
		owner->wake(waiter);
}

/* A buffer is no longer charged: it is freed, or a receiver on this host has taken it. */
static void rxe_rs_tx_write_space(struct sock *sk)
{
	struct rxe_rs_tx_owner *owner;

	rcu_read_lock();
	owner = rcu_dereference_sk_user_data(sk);
	/* Pairs with the exchange in rxe_rs_tx_owner_wait(): one of both sees the other. */
	smp_mb();
	if (owner && READ_ONCE(owner->waiter))
		rxe_rs_tx_owner_wake(owner);
	rcu_read_unlock();
}

/* The protocol of UDP sockets of IPv6, which the kernel does not export; NULL without IPv6. */
static struct proto *rxe_rs_udp6_prot;

/**
 * rxe_rs_tx_set_udp6() - tell of which protocol the sockets of senders are to be
 * @sk: UDP socket of IPv6
 *
 * Context: Process context.
 */
void rxe_rs_tx_set_udp6(const struct sock *sk)
{
	WRITE_ONCE(rxe_rs_udp6_prot, sk->sk_prot);
}

/*
 * Makes the stack check the length of packets against the MTU of the device, not against what ICMP
 * errors say of the path. Anybody can forge such an error, with addresses alone, and the path MTU
 * of a queue pair is an attribute that no error changes: all of its packets would be dropped here.
 */
static void rxe_rs_tx_ignore_icmp(struct sock *sk)
{
	inet_sk(sk)->pmtudisc = IP_PMTUDISC_PROBE;
	inet_set_bit(MC_LOOP, sk);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == PF_INET6) {
		struct ipv6_pinfo *np = (void *)sk + sk->sk_prot->ipv6_pinfo_offset;

		np->pmtudisc = IPV6_PMTUDISC_PROBE;
		inet6_set_bit(MC6_LOOP, sk);
		inet_sk(sk)->pinet6 = np;
	}
#endif
}

/**
 * rxe_rs_tx_owner_new() - create a socket that accounts the buffers of a sender
 * @wake: called for rxe_rs_tx_owner_wait(), in any context that may take softirq locks; must
 *	not take locks under which buffers are freed
 *
 * The stack charges a buffer to its socket until the device has sent it, also in queueing
 * disciplines and after segmentation. The destructor of the buffer is not code of this module, so
 * buffers in a queue do not prevent the module from being unloaded. The socket is never bound. It
 * belongs to the initial network namespace because the device may be moved to another one. Its
 * memory is charged to the memory cgroup of the process, as for all sockets.
 *
 * Context: Process context. May sleep.
 * Return: The socket, or NULL if no memory is available.
 */
struct rxe_rs_tx_owner *rxe_rs_tx_owner_new(void (*wake)(void *waiter))
{
	struct rxe_rs_tx_owner *owner = kzalloc_obj(*owner, GFP_KERNEL_ACCOUNT);
	struct proto *udp6 = READ_ONCE(rxe_rs_udp6_prot);
	struct sock *sk;

	if (!owner)
		return NULL;
	sk = sk_alloc(&init_net, udp6 ? PF_INET6 : PF_INET, GFP_KERNEL, udp6 ?: &udp_prot, 1);
	if (!sk) {
		kfree(owner);
		return NULL;
	}
	sock_init_data(NULL, sk);
	rxe_rs_tx_ignore_icmp(sk);
	sock_set_flag(sk, SOCK_RCU_FREE);
	owner->sk = sk;
	owner->wake = wake;
	rcu_assign_sk_user_data(sk, owner);
	owner->write_space = sk->sk_write_space;
	sk->sk_write_space = rxe_rs_tx_write_space;
	return owner;
}

/**
 * rxe_rs_tx_owner_free() - release a socket of rxe_rs_tx_owner_new()
 * @owner: socket, with which nobody waits; buffers that are charged to it keep it allocated
 *
 * Context: Any context that may take softirq locks.
 */
void rxe_rs_tx_owner_free(struct rxe_rs_tx_owner *owner)
{
	struct sock *sk = owner->sk;

	/* Code of this module must not be called any more after a grace period. */
	WRITE_ONCE(sk->sk_write_space, owner->write_space);
	rcu_assign_sk_user_data(sk, NULL);
	sock_put(sk);
	kfree_rcu(owner, rcu);
}

/**
 * rxe_rs_tx_owner_bytes() - return the memory of queued buffers
 * @owner: socket
 *
 * Context: Any context.
 * Return: The sum of the truesize of all buffers that are charged to @owner.
 */
u32 rxe_rs_tx_owner_bytes(const struct rxe_rs_tx_owner *owner)
{
	return sk_wmem_alloc_get(owner->sk);
}

/**
 * rxe_rs_tx_owner_wait() - call wake() once, as soon as few bytes are charged
 * @owner: socket
 * @waiter: argument of the call, or NULL to cancel an earlier one
 * @mark: the call is made when at most as many bytes are charged, possibly at once
 *
 * Context: Any context that may take softirq locks.
 * Return: The waiter of an earlier call that has not been woken and will not be, or NULL.
 */
void *rxe_rs_tx_owner_wait(struct rxe_rs_tx_owner *owner, void *waiter, u32 mark)
{
	void *old;

	WRITE_ONCE(owner->mark, mark);
	old = xchg(&owner->waiter, waiter);
	if (waiter)
		rxe_rs_tx_owner_wake(owner);
	return old;
}

/**
 * rxe_rs_tx_send() - send a list of buffers
 * @list: first buffer; the others are linked by rxe_rs_tx_link()
 * @owner: socket that the buffers are charged to, or NULL
 * @result: counters, which are incremented
 *
 * Bottom halves are disabled until the last buffer has been sent, so packets that return over
 * loopback are received after that.
 *
 * Context: Process context or softirq, without locks that the receive path takes.
 */
void rxe_rs_tx_send(struct sk_buff *list, struct rxe_rs_tx_owner *owner,
		    struct rxe_rs_tx_result *result)
{
	struct sk_buff *skb, *next;

	local_bh_disable();
	rcu_read_lock();
	skb_list_walk_safe(list, skb, next) {
		u32 segs = max_t(u32, skb_shinfo(skb)->gso_segs, 1);
		int err;

		skb_mark_not_on_list(skb);
		if (owner)
			skb_set_owner_w(skb, owner->sk);
		err = rxe_rs_tx_one(skb);
		result->congested |= err > 0;
		if (net_xmit_eval(err))
			result->dropped += segs;
		else
			result->sent += segs;
		if (unlikely(err == -EMSGSIZE))
			result->too_long += segs;
	}
	rcu_read_unlock();
	local_bh_enable();
}

/**
 * rxe_rs_tx_discard() - free a list of buffers
 * @list: first buffer
 *
 * Context: Any context that may take softirq locks.
 */
void rxe_rs_tx_discard(struct sk_buff *list)
{
	kfree_skb_list(list);
}

/**
 * rxe_rs_tx_release_pages() - free the payload pages of all CPUs
 *
 * To be called at module exit, when no further buffers are created.
 *
 * Context: Process context.
 */
void rxe_rs_tx_release_pages(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct page_frag *frag = &per_cpu(rxe_rs_tx_pages, cpu).frag;

		if (frag->page)
			put_page(frag->page);
		frag->page = NULL;
	}
}
