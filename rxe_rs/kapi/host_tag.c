// SPDX-License-Identifier: GPL-2.0
/*
 * Tags of packets that have not left the memory of this kernel.
 *
 * The network stack copies the hash of a buffer with the buffer, whatever devices and namespaces
 * of this host it passes, but not to the wire: a NIC, a virtual machine or a packet socket delivers
 * a new buffer with another hash or none. So a sender can tell a receiver in the same kernel
 * something that no packet from elsewhere can.
 */
#include <linux/skbuff.h>
#include <linux/siphash.h>
#include <net/ip.h>
#include "bindings_helper.h"

/* Bits of the hash that are the tag. The others select queues and processors, if anything does. */
#define RXE_RS_HOST_TAG_BITS 3U

static siphash_key_t rxe_rs_host_tag_key;

/**
 * rxe_rs_host_tag_init() - choose the key of the hashes
 *
 * Context: Any context, before the first packet.
 */
void rxe_rs_host_tag_init(void)
{
	get_random_bytes(&rxe_rs_host_tag_key, sizeof(rxe_rs_host_tag_key));
}

/* Returns the hash of addresses and ports, which follow each other in both kinds of headers. */
static u32 rxe_rs_host_tag_hash(const u8 *iph, bool v4)
{
	size_t ports = 2 * sizeof(__be16);

	if (v4)
		return siphash(iph + offsetof(struct iphdr, saddr),
			       2 * sizeof(struct in_addr) + ports, &rxe_rs_host_tag_key);
	return siphash(iph + offsetof(struct ipv6hdr, saddr),
		       2 * sizeof(struct in6_addr) + ports, &rxe_rs_host_tag_key);
}

/**
 * rxe_rs_host_tag_allowed() - check whether buffers for a network device may have a tag
 * @dev: network device
 * @v4: over IPv4, not IPv6
 *
 * Context: Any context.
 * Return: true if the device computes checksums and has no hardware below it.
 */
bool rxe_rs_host_tag_allowed(const struct net_device *dev, bool v4)
{
	return !dev->dev.parent && rxe_rs_tx_checksums(dev, v4);
}

/**
 * rxe_rs_host_tag_set() - tag a buffer, if it may stay in memory
 * @skb: buffer whose network header is the IP header, followed by the UDP header
 * @tag: 1 to 3
 *
 * Only buffers whose device computes checksums and has no hardware below it get a tag. The caller
 * leaves the checksum of a tagged buffer to the device, also if it has one datagram only: whatever
 * changes its contents on the way, such as netem, has to compute the checksum first.
 *
 * Context: Any context.
 * Return: true if the buffer has the tag.
 */
bool rxe_rs_host_tag_set(struct sk_buff *skb, u8 tag)
{
	bool v4 = skb->protocol == htons(ETH_P_IP);
	u32 hash;

	if (!tag || !rxe_rs_host_tag_allowed(skb->dev, v4))
		return false;
	hash = rxe_rs_host_tag_hash(skb_network_header(skb), v4);
	skb_set_hash(skb, (hash & ~RXE_RS_HOST_TAG_BITS) | tag, PKT_HASH_TYPE_L4);
	return true;
}

/**
 * rxe_rs_host_tag_get() - return the tag of a received buffer
 * @skb: buffer whose network header is the IP header, followed by the UDP header
 * @v4: IPv4, not IPv6
 *
 * Context: Any context.
 * Return: The tag that this kernel set when the buffer was sent from and to the same addresses; 0
 * if it set none, or the packet has left its memory or been changed since.
 */
u8 rxe_rs_host_tag_get(const struct sk_buff *skb, bool v4)
{
	u32 hash;

	if (!skb->l4_hash || skb->ip_summed != CHECKSUM_PARTIAL)
		return 0;
	hash = rxe_rs_host_tag_hash(skb_network_header(skb), v4);
	return (skb->hash ^ hash) & ~RXE_RS_HOST_TAG_BITS ? 0 : skb->hash & RXE_RS_HOST_TAG_BITS;
}
