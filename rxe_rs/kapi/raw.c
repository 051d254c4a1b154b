// SPDX-License-Identifier: GPL-2.0
/*
 * Raw Ethernet frames: reception by a tap, transmission without a route.
 *
 * A tap is a packet handler as that of a packet socket: it receives a copy of what the device
 * receives, and the stack receives it as well. GSO buffers are segmented and partial checksums are
 * completed, so that every frame is as it would be on the wire.
 */
#include "bindings_helper.h"
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <net/gso.h>

struct rxe_rs_tap {
	struct packet_type pt;
	rxe_rs_frame_t receive;
	void *context;
};

/* Delivers one frame and consumes the buffer. */
static void rxe_rs_tap_frame(const struct rxe_rs_tap *tap, struct sk_buff *skb)
{
	if (!skb_linearize(skb))
		tap->receive(tap->context, skb->data, skb->len);
	consume_skb(skb);
}

/* Packet handler: skb->data is at the network header, and the function owns a reference to @skb. */
static int rxe_rs_tap_receive(struct sk_buff *skb, struct net_device *dev, struct packet_type *pt,
			      struct net_device *orig_dev)
{
	const struct rxe_rs_tap *tap = container_of(pt, struct rxe_rs_tap, pt);
	struct sk_buff *next;

	skb = skb_share_check(skb, GFP_ATOMIC);
	if (!skb)
		return NET_RX_DROP;
	if (skb->pkt_type == PACKET_OUTGOING ||
	    skb->pkt_type == PACKET_LOOPBACK ||
	    !skb_mac_header_was_set(skb) || !skb_frags_readable(skb))
		goto drop;
	skb_push(skb, skb->data - skb_mac_header(skb));
	if (skb_vlan_tag_present(skb)) {
		skb = __vlan_hwaccel_push_inside(skb);
		if (!skb)
			return NET_RX_DROP;
	}
	if (skb_is_gso(skb)) {
		struct sk_buff *segs;

		segs = __skb_gso_segment(skb, NETIF_F_SG, false);
		if (IS_ERR_OR_NULL(segs))
			goto drop;
		consume_skb(skb);
		skb_list_walk_safe(segs, skb, next) {
			skb_mark_not_on_list(skb);
			rxe_rs_tap_frame(tap, skb);
		}
		return NET_RX_SUCCESS;
	}
	/* Also the checksum of SCTP, which is another one. */
	if (skb->ip_summed == CHECKSUM_PARTIAL && skb_csum_hwoffload_help(skb, 0))
		goto drop;
	rxe_rs_tap_frame(tap, skb);
	return NET_RX_SUCCESS;
drop:
	kfree_skb(skb);
	return NET_RX_DROP;
}

/**
 * rxe_rs_tap_open() - open a tap on a network device
 * @dev: network device; must not be released before the tap is closed
 * @receive: called in softirq, in an RCU read-side critical section, with each frame received
 * @context: first argument of @receive
 *
 * Context: Process context. May sleep.
 * Return: The tap, or NULL if no memory is available.
 */
struct rxe_rs_tap *rxe_rs_tap_open(struct net_device *dev, rxe_rs_frame_t receive, void *context)
{
	struct rxe_rs_tap *tap = kzalloc_obj(*tap, GFP_KERNEL_ACCOUNT);

	if (!tap)
		return NULL;
	tap->receive = receive;
	tap->context = context;
	tap->pt.type = htons(ETH_P_ALL);
	tap->pt.dev = dev;
	tap->pt.func = rxe_rs_tap_receive;
	tap->pt.ignore_outgoing = true;
	dev_add_pack(&tap->pt);
	return tap;
}

/**
 * rxe_rs_tap_close() - close a tap
 * @tap: result of rxe_rs_tap_open()
 *
 * Waits for running calls of the receive function; none follow.
 *
 * Context: Process context. Sleeps.
 */
void rxe_rs_tap_close(struct rxe_rs_tap *tap)
{
	dev_remove_pack(&tap->pt);
	kfree(tap);
}

/**
 * rxe_rs_dev_is_ethernet() - check whether a network device carries Ethernet frames
 * @dev: network device
 *
 * Context: Any context.
 * Return: true if the hardware type of @dev is Ethernet.
 */
bool rxe_rs_dev_is_ethernet(const struct net_device *dev)
{
	return dev->type == ARPHRD_ETHER;
}

/**
 * rxe_rs_frame_new() - allocate a buffer for an Ethernet frame
 * @dev: network device that will send the frame
 * @len: length of the frame without its checksum
 * @data: receives the address of the frame, whose contents are undefined
 *
 * Context: Any context that may take softirq locks.
 * Return: The buffer, NULL if no memory is available, or ERR_PTR(-EMSGSIZE) if @len is less than a
 * header or more than the MTU of @dev allows.
 */
struct sk_buff *rxe_rs_frame_new(struct net_device *dev, u32 len, void **data)
{
	u32 reserve = LL_RESERVED_SPACE(dev);
	struct sk_buff *skb;

	if (len < ETH_HLEN || len > READ_ONCE(dev->mtu) + VLAN_ETH_HLEN)
		return ERR_PTR(-EMSGSIZE);
	skb = alloc_skb(reserve + len + dev->needed_tailroom,
			GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;
	/* Aligns the network header. */
	skb_reserve(skb, reserve - ETH_HLEN);
	skb->dev = dev;
	*data = skb_put(skb, len);
	return skb;
}

/**
 * rxe_rs_frame_finish() - prepare a complete frame for transmission
 * @skb: buffer of rxe_rs_frame_new() whose frame has been written
 *
 * The buffer has no route, so rxe_rs_tx_send() passes it to the device directly.
 *
 * Context: Any context that may take softirq locks.
 */
void rxe_rs_frame_finish(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, ETH_HLEN);
	skb->protocol = eth_hdr(skb)->h_proto;
	if (eth_type_vlan(skb->protocol) && skb->len >= VLAN_ETH_HLEN)
		skb_set_network_header(skb, VLAN_ETH_HLEN);
	skb_probe_transport_header(skb);
}
