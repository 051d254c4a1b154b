/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions of the kapi crate for locks, the RCU table and the network part: inline functions of
 * kernel headers that Rust cannot call, and the handling of socket buffers, which consists of such
 * calls. bindgen reads this file too, so C and Rust share the prototypes.
 */
#ifndef RXE_RS_KAPI_NET_H
#define RXE_RS_KAPI_NET_H

#include <linux/types.h>

struct dst_entry;
struct net;
struct net_device;
struct sk_buff;
struct sock;
struct spinlock;
struct xarray;

/* Locks (lock.c). */
bool rxe_rs_spin_lock_bh(struct spinlock *lock);
void rxe_rs_spin_unlock_bh(struct spinlock *lock, bool disabled_bh);

/* Locks. */
bool rxe_rs_spin_trylock_bh(struct spinlock *lock);
unsigned long rxe_rs_spin_lock_irqsave(struct spinlock *lock);
bool rxe_rs_spin_trylock_irqsave(struct spinlock *lock, unsigned long *flags);
void rxe_rs_spin_unlock_irqrestore(struct spinlock *lock, unsigned long flags);
void rxe_rs_rwlock_init(rwlock_t *lock, const char *name, struct lock_class_key *key);
bool rxe_rs_read_trylock(rwlock_t *lock);
void rxe_rs_read_unlock(rwlock_t *lock);
void rxe_rs_write_lock(rwlock_t *lock);
void rxe_rs_write_unlock(rwlock_t *lock);

/* Context. */
void rxe_rs_local_bh_disable(void);
void rxe_rs_local_bh_enable(void);
bool rxe_rs_softirq_allowed(void);
bool rxe_rs_serving_softirq(void);
void rxe_rs_wmb(void);

/* RCU table (rcu_table.c). */
void rxe_rs_table_init(struct xarray *xa);
void *rxe_rs_table_load(struct xarray *xa, u32 index);
int rxe_rs_table_insert(struct xarray *xa, u32 index, void *entry);
int rxe_rs_table_alloc(struct xarray *xa, u32 *index, void *entry, u32 first, u32 last);
void *rxe_rs_table_replace(struct xarray *xa, u32 index, void *entry);
void *rxe_rs_table_erase(struct xarray *xa, u32 index);
void *rxe_rs_table_next(struct xarray *xa, u32 *index);
void rxe_rs_table_destroy(struct xarray *xa);

/* Unique numbers. */
void rxe_rs_ida_init(struct ida *ida);
int rxe_rs_ida_alloc(struct ida *ida, u32 first, u32 last);

/* Objects by random numbers (numbers.c). */
struct rxe_rs_number {
	/* Used after the removal. */
	struct rcu_head rcu;
	struct rhash_head node;
	u32 number;
};

struct rxe_rs_numbers;

struct rxe_rs_numbers *rxe_rs_numbers_alloc(void (*free)(struct rxe_rs_number *entry));
int rxe_rs_numbers_insert(struct rxe_rs_numbers *numbers, struct rxe_rs_number *entry);
struct rxe_rs_number *rxe_rs_numbers_lookup(struct rxe_rs_numbers *numbers, u32 number);
bool rxe_rs_numbers_remove(struct rxe_rs_numbers *numbers, struct rxe_rs_number *entry);
void rxe_rs_numbers_free(struct rxe_rs_numbers *numbers);

/* Network devices. */
void rxe_rs_dev_hold(struct net_device *dev);
void rxe_rs_dev_put(struct net_device *dev);
u64 rxe_rs_dev_net_id(const struct net_device *dev);
u64 rxe_rs_net_id(const struct net *net);
void rxe_rs_net_put(struct net *net);
bool rxe_rs_dev_is_loopback(const struct net_device *dev);
bool rxe_rs_dev_is_up(const struct net_device *dev);
u32 rxe_rs_dev_mtu(const struct net_device *dev);
u32 rxe_rs_dev_ifindex(const struct net_device *dev);
u16 rxe_rs_dev_type(const struct net_device *dev);
bool rxe_rs_dev_is_vlan(const struct net_device *dev);
void rxe_rs_dev_name(const struct net_device *dev, u8 *name);
struct net_device *rxe_rs_notifier_dev(void *info);

/* Network namespace and address of a network device (netdev.c). */
struct net *rxe_rs_netdev_net_get(const struct net_device *ndev);
void rxe_rs_dev_mac(const struct net_device *dev, u8 *mac);

/* Membership in multicast groups (multicast.c). */
void *rxe_rs_dev_join(const struct net_device *port, u32 ifindex, const u8 *group);
void rxe_rs_dev_leave(const u8 *group, void *config);

/* The UDP port of a network namespace (udp_rx.c). */
typedef void (*rxe_rs_receive_t)(struct sk_buff *skb);
struct rxe_rs_endpoint;

int rxe_rs_net_init(bool guarded);
void rxe_rs_net_exit(void);
struct rxe_rs_endpoint *rxe_rs_endpoint_open(const struct net_device *dev, u16 port,
					     rxe_rs_receive_t receive, rxe_rs_receive_t refuse);
void rxe_rs_endpoint_close(struct rxe_rs_endpoint *ep);
bool rxe_rs_endpoint_has_ipv6(const struct rxe_rs_endpoint *ep);
u64 rxe_rs_endpoint_refused(const struct rxe_rs_endpoint *ep);

/* Egress guard of that port (guard.c). */
struct rxe_rs_guard;

struct rxe_rs_guard *rxe_rs_guard_start(struct net *net, u16 port);
void rxe_rs_guard_stop(struct rxe_rs_guard *guard);
void rxe_rs_guard_free(struct rxe_rs_guard *guard);
u64 rxe_rs_guard_refused(const struct rxe_rs_guard *guard);

/* Tags of packets that have not left the memory of this kernel (host_tag.c). */
void rxe_rs_host_tag_init(void);
bool rxe_rs_host_tag_allowed(const struct net_device *dev, bool v4);
bool rxe_rs_host_tag_set(struct sk_buff *skb, u8 tag);
u8 rxe_rs_host_tag_get(const struct sk_buff *skb, bool v4);

/* Ethernet frames (raw.c). */
typedef void (*rxe_rs_frame_t)(void *context, const u8 *frame, u32 len);
struct rxe_rs_tap;

struct rxe_rs_tap *rxe_rs_tap_open(struct net_device *dev, rxe_rs_frame_t receive, void *context);
void rxe_rs_tap_close(struct rxe_rs_tap *tap);
bool rxe_rs_dev_is_ethernet(const struct net_device *dev);
struct sk_buff *rxe_rs_frame_new(struct net_device *dev, u32 len, void **data);
void rxe_rs_frame_finish(struct sk_buff *skb);

/* A received buffer, whose data is at the UDP header. The IP header precedes it. */
struct rxe_rs_rx {
	const u8 *iph;			/* IP header followed by the UDP header */
	const struct net_device *dev;	/* device that received it, in a VRF a port of that */
	const struct net_device *vrf;	/* device of the VRF, or NULL */
	u32 len;			/* bytes after the UDP header */
	u32 gso_size;			/* bytes per datagram, 0 if there is only one */
	u32 whole_size;			/* gso_size of rxe_rs_tx_finish() if it stays whole, or 0 */
	u32 ifindex;			/* of the device */
	u32 vrf_ifindex;		/* of the device of the VRF, or 0 */
	bool v4;			/* IPv4, not IPv6 */
	bool loopback;			/* the device is a loopback device */
	u8 tag;			/* of rxe_rs_host_tag_get() */
};

#define RXE_RS_NO_VLAN 0xffff

/* Contiguous bytes of a datagram. */
struct rxe_rs_rx_frag {
	const u8 *start;
	u32 len;
};

/* Maximum number of fragments per datagram. */
#define RXE_RS_RX_MAX_FRAGS 6

int rxe_rs_rx_parse(struct sk_buff *skb, struct rxe_rs_rx *rx);
u16 rxe_rs_rx_vlan(const struct net_device *dev, u32 ifindex);
u32 rxe_rs_rx_frags(const struct sk_buff *skb, u32 offset, u32 len, struct rxe_rs_rx_frag *out);
bool rxe_rs_dev_same_net(const struct net_device *dev, const struct net_device *other);
bool rxe_rs_dev_is_above(const struct net_device *dev, struct net_device *base);
bool rxe_rs_skb_is_copy(const struct sk_buff *skb, const struct net_device *dev,
			struct net_device *base);
u32 rxe_rs_skb_hold(struct sk_buff *skb);
void rxe_rs_skb_consume(struct sk_buff *skb);
void rxe_rs_rx_discard(struct sk_buff *skb, int err);

/* Flows (gso_tx.c). */
struct rxe_rs_flow_spec {
	u8 saddr[16];			/* IPv4 addresses in their IPv4-mapped form */
	u8 daddr[16];
	u32 flow_label;			/* IPv6 flow label */
	u32 ifindex;			/* output interface, 0 for the flow's device */
	u16 sport;			/* UDP ports */
	u16 dport;
	u8 tclass;			/* traffic class or type of service */
	bool v4;
};

struct rxe_rs_flow;

struct rxe_rs_flow *rxe_rs_flow_new(struct net_device *dev, const struct rxe_rs_flow_spec *spec);
void rxe_rs_flow_free(struct rxe_rs_flow *flow);
struct dst_entry *rxe_rs_flow_route(struct rxe_rs_flow *flow);
const struct net_device *rxe_rs_flow_dev(const struct rxe_rs_flow *flow);

/* IPsec (xfrm.c). */
u32 rxe_rs_dev_ipsec_overhead(struct net_device *dev, u16 port, u32 per_transform, u32 per_tunnel);
u32 rxe_rs_flow_ipsec_mtu(struct rxe_rs_flow *flow);

/* Transmission (gso_tx.c). */
struct sk_buff *rxe_rs_tx_new(struct rxe_rs_flow *flow, u8 tclass, u32 linear, u32 *max_len,
			      u32 *max_segs);
bool rxe_rs_tx_checksums(const struct net_device *dev, bool v4);
u32 rxe_rs_tx_max_whole(struct rxe_rs_flow *flow);
void rxe_rs_tx_account(struct sk_buff *skb, u32 bytes, u32 packets);
void *rxe_rs_tx_put(struct sk_buff *skb, u32 len);
void rxe_rs_tx_undo(struct sk_buff *skb, u32 len);
void rxe_rs_tx_finish(struct sk_buff *skb, const u8 *hdr, u32 hdr_len, u32 gso_size,
		      u32 gso_segs, u8 tag, bool whole);
void rxe_rs_tx_link(struct sk_buff *last, struct sk_buff *skb);

/* Counters of rxe_rs_tx_send(). */
struct rxe_rs_tx_result {
	u32 sent;			/* datagrams that the stack accepted */
	u32 dropped;			/* datagrams that it did not accept */
	u32 too_long;			/* of these, datagrams that exceed the path MTU */
	bool congested;			/* a queue is full or almost full (NET_XMIT_CN) */
};

struct rxe_rs_tx_owner;

void rxe_rs_tx_set_udp6(const struct sock *sk);
struct rxe_rs_tx_owner *rxe_rs_tx_owner_new(void (*wake)(void *waiter));
void rxe_rs_tx_owner_free(struct rxe_rs_tx_owner *owner);
u32 rxe_rs_tx_owner_bytes(const struct rxe_rs_tx_owner *owner);
void *rxe_rs_tx_owner_wait(struct rxe_rs_tx_owner *owner, void *waiter, u32 mark);
void rxe_rs_tx_send(struct sk_buff *list, struct rxe_rs_tx_owner *owner,
		    struct rxe_rs_tx_result *result);
void rxe_rs_tx_discard(struct sk_buff *list);
void rxe_rs_tx_release_pages(void);

#endif /* RXE_RS_KAPI_NET_H */
