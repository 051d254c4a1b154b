// SPDX-License-Identifier: GPL-2.0
/*
 * Emulation of a network device that gives all packets of a UDP GSO buffer the same IPv4
 * identification. The stack does so for buffers with SKB_GSO_TCP_FIXEDID, whatever their protocol,
 * if the device does not have that feature (tx-tcp-mangleid-segmentation). This module sets the
 * flag in all UDP GSO buffers of all network namespaces.
 */
#include <linux/module.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/skbuff.h>
#include <net/net_namespace.h>

static unsigned int segment_hook(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	struct skb_shared_info *info = skb_shinfo(skb);

	if (info->gso_type & SKB_GSO_UDP_L4)
		info->gso_type |= SKB_GSO_TCP_FIXEDID;
	return NF_ACCEPT;
}

static const struct nf_hook_ops segment_ops = {
	.hook = segment_hook,
	.pf = NFPROTO_IPV4,
	.hooknum = NF_INET_POST_ROUTING,
	.priority = NF_IP_PRI_LAST,
};

static int __net_init segment_net_init(struct net *net)
{
	return nf_register_net_hook(net, &segment_ops);
}

static void __net_exit segment_net_exit(struct net *net)
{
	nf_unregister_net_hook(net, &segment_ops);
}

static struct pernet_operations segment_net_ops = {
	.init = segment_net_init,
	.exit = segment_net_exit,
};

static int __init segment_init(void)
{
	return register_pernet_subsys(&segment_net_ops);
}

static void __exit segment_exit(void)
{
	unregister_pernet_subsys(&segment_net_ops);
}

module_init(segment_init);
module_exit(segment_exit);
MODULE_DESCRIPTION("Devices that segment with one IPv4 identification");
MODULE_LICENSE("GPL");
