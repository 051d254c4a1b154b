// SPDX-License-Identifier: GPL-2.0
/*
 * Measures the bandwidth of the network stack for packets like those of RoCE v2, without a
 * protocol: an upper limit for a driver. Messages are sent from one network namespace to another as
 * UDP datagrams with the length of a path MTU, as many of them in a GSO buffer as fit. Each side
 * copies each byte once and computes a CRC32 per datagram; there are no acknowledgements. The
 * module measures when it is loaded and prints MiB per second to the kernel log: "limit: bw 6130",
 * or "limit: error -5". Loading succeeds in both cases.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/crc32.h>
#include <linux/delay.h>
#include <linux/inet.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/netfilter_ipv4.h>
#include <linux/nsproxy.h>
#include <linux/slab.h>
#include <linux/unaligned.h>
#include <net/ip.h>
#include <net/route.h>
#include <net/udp.h>

/* Payload of a datagram, its header (in place of the BTH) and both with its CRC, in bytes. */
#define PAYLOAD 4096u
#define HEADER 12u
#define EXTRA (HEADER + 4u)
/* Not that of RoCE v2, because a driver whose device has the address takes these datagrams. */
#define PORT 4790
#define MAX_SIZE (16u << 20)
/* Maximum number of datagrams in a GSO buffer, whose length is that of an IPv4 packet. */
#define MAX_SEGS ((65535u - sizeof(struct iphdr) - sizeof(struct udphdr)) / (PAYLOAD + EXTRA))
#define FRAG_ORDER 3

static int ns = -1;
module_param(ns, int, 0444);
MODULE_PARM_DESC(ns, "open file of the sender's network namespace; the receiver's is insmod's own");

static char *from = "10.77.0.1";
module_param(from, charp, 0444);
MODULE_PARM_DESC(from, "IPv4 address of the sender");

static char *to = "10.77.0.2";
module_param(to, charp, 0444);
MODULE_PARM_DESC(to, "IPv4 address of the receiver");

static uint size = 65536;
module_param(size, uint, 0444);
MODULE_PARM_DESC(size, "bytes of each message, a multiple of 4");

static uint count = 1000;
module_param(count, uint, 0444);
MODULE_PARM_DESC(count, "messages in all");

/* The receiver: offset of the next payload, bytes received, damaged datagrams. */
static struct {
	u8 *buf;
	u32 at;
	u32 damaged;
	atomic64_t bytes;
} receiver;

static struct {
	u8 *buf;
	struct net *net;
	struct rtable *rt;
	__be32 saddr, daddr;
} sender;

/* Receives a datagram, without its UDP header, from a buffer; returns false if it is damaged. */
static bool receive_one(const struct sk_buff *skb, u32 offset, u32 len)
{
	u8 header[HEADER];
	__le32 sum;
	u32 crc;

	if (len < EXTRA || len > PAYLOAD + EXTRA)
		return false;
	len -= EXTRA;
	if (receiver.at + len > size)
		receiver.at = 0;
	if (skb_copy_bits(skb, offset, header, HEADER) ||
	    skb_copy_bits(skb, offset + HEADER, receiver.buf + receiver.at, len) ||
	    skb_copy_bits(skb, offset + HEADER + len, &sum, sizeof(sum)))
		return false;
	crc = crc32_le(crc32_le(~0, header, HEADER), receiver.buf + receiver.at, len);
	receiver.at += len;
	atomic64_add(len, &receiver.bytes);
	return crc == le32_to_cpu(sum);
}

/* Receives GSO buffers before the UDP layer, which would segment them. */
static unsigned int receive(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	const struct iphdr *iph = ip_hdr(skb);
	u32 offset = sizeof(*iph) + sizeof(struct udphdr), step;
	struct udphdr buf;
	const struct udphdr *uh;

	if (iph->protocol != IPPROTO_UDP || iph->ihl != 5)
		return NF_ACCEPT;
	uh = skb_header_pointer(skb, sizeof(*iph), sizeof(buf), &buf);
	if (!uh || uh->dest != htons(PORT))
		return NF_ACCEPT;
	step = skb_is_gso(skb) ? skb_shinfo(skb)->gso_size : skb->len;
	for (; offset < skb->len; offset += step)
		if (!receive_one(skb, offset, min(step, skb->len - offset)))
			receiver.damaged++;
	consume_skb(skb);
	return NF_STOLEN;
}

static const struct nf_hook_ops hook = {
	.hook = receive,
	.pf = NFPROTO_IPV4,
	.hooknum = NF_INET_LOCAL_IN,
	.priority = NF_IP_PRI_LAST,
};

/* Writes datagrams with the payload to a buffer that has room for them. */
static int fill(struct sk_buff *skb, const u8 *payload, u32 len)
{
	static const u8 header[HEADER];
	u32 offset = 0, part;
	__le32 sum;
	int ret = 0;

	for (; len && !ret; len -= part, payload += part) {
		part = min(len, PAYLOAD);
		sum = cpu_to_le32(crc32_le(crc32_le(~0, header, HEADER), payload, part));
		ret = skb_store_bits(skb, offset, header, HEADER) ?:
		      skb_store_bits(skb, offset + HEADER, payload, part) ?:
		      skb_store_bits(skb, offset + HEADER + part, &sum, sizeof(sum));
		offset += part + EXTRA;
	}
	return ret;
}

static void add_headers(struct sk_buff *skb, u32 datagrams)
{
	struct udphdr *uh = skb_push(skb, sizeof(*uh));
	u32 len = skb->len;
	struct iphdr *iph;

	skb_reset_transport_header(skb);
	uh->source = htons(0xc000);
	uh->dest = htons(PORT);
	uh->len = htons(len);
	uh->check = 0;
	iph = skb_push(skb, sizeof(*iph));
	skb_reset_network_header(skb);
	*iph = (struct iphdr){
		.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
		.frag_off = htons(IP_DF), .saddr = sender.saddr, .daddr = sender.daddr,
	};
	skb->protocol = htons(ETH_P_IP);
	if (datagrams < 2)
		return;
	skb_shinfo(skb)->gso_type = SKB_GSO_UDP_L4;
	skb_shinfo(skb)->gso_size = PAYLOAD + EXTRA;
	skb_shinfo(skb)->gso_segs = datagrams;
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_transport_header(skb) - skb->head;
	skb->csum_offset = offsetof(struct udphdr, check);
	uh->check = ~udp_v4_check(len, sender.saddr, sender.daddr, 0);
}

static int send_batch(const u8 *payload, u32 len)
{
	u32 datagrams = DIV_ROUND_UP(len, PAYLOAD), reserve;
	struct net_device *dev = sender.rt->dst.dev;
	struct sk_buff *skb;
	int ret;

	reserve = LL_RESERVED_SPACE(dev) + sizeof(struct iphdr) + sizeof(struct udphdr);
	skb = alloc_skb_with_frags(reserve, len + datagrams * EXTRA, FRAG_ORDER, &ret,
				   GFP_KERNEL);
	if (!skb)
		return ret;
	skb_reserve(skb, reserve);
	skb->data_len = len + datagrams * EXTRA;
	skb->len = skb->data_len;
	ret = fill(skb, payload, len);
	if (ret) {
		kfree_skb(skb);
		return ret;
	}
	add_headers(skb, datagrams);
	skb->dev = dev;
	skb_dst_set(skb, dst_clone(&sender.rt->dst));
	/* The receiver's side runs when bottom halves are enabled again. */
	local_bh_disable();
	ret = ip_local_out(sender.net, NULL, skb);
	local_bh_enable();
	return net_xmit_eval(ret);
}

static int send_message(void)
{
	u32 at, len;
	int ret = 0;

	for (at = 0; at < size && !ret; at += len) {
		len = min_t(u32, size - at, MAX_SEGS * PAYLOAD);
		ret = send_batch(sender.buf + at, len);
	}
	cond_resched();
	return ret;
}

static int transfer(void)
{
	ktime_t start = ktime_get();
	s64 all = (s64)size * count;
	int ret = 0, patience;
	u64 took;
	u32 i;

	for (i = 0; i < count && !ret; i++)
		ret = send_message();
	/* The time includes the datagrams that another processor has yet to receive. */
	for (patience = 5000; !ret && atomic64_read(&receiver.bytes) < all && patience; patience--)
		usleep_range(100, 200);
	took = ktime_to_ns(ktime_sub(ktime_get(), start));
	if (!ret && (atomic64_read(&receiver.bytes) != all || receiver.damaged))
		ret = -EIO;
	if (!ret)
		pr_info("bw %llu\n", div64_u64((u64)all * (NSEC_PER_SEC >> 10), took) >> 10);
	return ret;
}

static int route(void)
{
	struct flowi4 fl4 = {
		.flowi4_proto = IPPROTO_UDP, .saddr = sender.saddr, .daddr = sender.daddr,
	};
	struct rtable *rt = ip_route_output_key(sender.net, &fl4);

	if (IS_ERR(rt))
		return PTR_ERR(rt);
	sender.rt = rt;
	return 0;
}

static int prepare(void)
{
	if (!in4_pton(from, -1, (u8 *)&sender.saddr, -1, NULL) ||
	    !in4_pton(to, -1, (u8 *)&sender.daddr, -1, NULL))
		return -EINVAL;
	sender.buf = kvmalloc(size, GFP_KERNEL);
	receiver.buf = kvmalloc(size, GFP_KERNEL);
	if (!sender.buf || !receiver.buf)
		return -ENOMEM;
	get_random_bytes(sender.buf, size);
	return route();
}

static void measure(void)
{
	struct net *own = current->nsproxy->net_ns;
	int ret = prepare();

	if (!ret)
		ret = nf_register_net_hook(own, &hook);
	if (!ret) {
		ret = transfer();
		nf_unregister_net_hook(own, &hook);
		/* The hook may still be running elsewhere, and writes to the buffer. */
		synchronize_net();
	}
	if (ret)
		pr_info("error %d\n", ret);
	if (sender.rt)
		ip_rt_put(sender.rt);
	kvfree(sender.buf);
	kvfree(receiver.buf);
}

static int __init limit_init(void)
{
	if (!count || !size || size > MAX_SIZE || size % 4)
		return -EINVAL;
	sender.net = get_net_ns_by_fd(ns);
	if (IS_ERR(sender.net))
		return PTR_ERR(sender.net);
	measure();
	put_net(sender.net);
	return 0;
}

/* Empty, but a module without an exit function cannot be unloaded. */
static void __exit limit_exit(void)
{
}

module_init(limit_init);
module_exit(limit_exit);
MODULE_DESCRIPTION("Upper limit of the bandwidth of UDP datagrams");
MODULE_LICENSE("GPL");
