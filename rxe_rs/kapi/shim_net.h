/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C side of the kapi crate: locks, the RCU table, network. Static inlines of the kernel's headers
 * that Rust cannot call, and the handling of socket buffers, which is made of little else.
 * bindgen reads this file, so both sides share the prototypes.
 */
#ifndef RXE_RS_SHIM_NET_H
#define RXE_RS_SHIM_NET_H

#include <linux/types.h>

struct dst_entry;
struct net;
struct net_device;
struct sk_buff;
struct xarray;
struct spinlock;

/* Locks. */
void rxe_spin_lock_bh(struct spinlock *lock);
bool rxe_spin_trylock_bh(struct spinlock *lock);
void rxe_spin_unlock_bh(struct spinlock *lock);
unsigned long rxe_spin_lock_irqsave(struct spinlock *lock);
bool rxe_spin_trylock_irqsave(struct spinlock *lock, unsigned long *flags);
void rxe_spin_unlock_irqrestore(struct spinlock *lock, unsigned long flags);

/* Context. */
void rxe_rwlock_init(rwlock_t *lock, const char *name, struct lock_class_key *key);
bool rxe_read_trylock(rwlock_t *lock);
void rxe_read_unlock(rwlock_t *lock);
void rxe_write_lock(rwlock_t *lock);
void rxe_write_unlock(rwlock_t *lock);
void rxe_local_bh_disable(void);
void rxe_local_bh_enable(void);
bool rxe_softirq_allowed(void);
void rxe_wmb(void);

/* RCU table. Storing never sleeps; a null entry reserves its index. */
void rxe_table_init(struct xarray *xa);
void *rxe_table_load(struct xarray *xa, u32 index);
int rxe_table_insert(struct xarray *xa, u32 index, void *entry);
int rxe_table_publish(struct xarray *xa, u32 index, void *entry);
void *rxe_table_replace(struct xarray *xa, u32 index, void *entry);
void *rxe_table_erase(struct xarray *xa, u32 index);
void *rxe_table_next(struct xarray *xa, u32 *index);
void rxe_table_destroy(struct xarray *xa);

/* Network devices. */
void rxe_dev_hold(struct net_device *dev);
void rxe_dev_put(struct net_device *dev);
u64 rxe_dev_net_id(const struct net_device *dev);
bool rxe_dev_is_loopback(const struct net_device *dev);
bool rxe_dev_is_up(const struct net_device *dev);
u32 rxe_dev_mtu(const struct net_device *dev);
u32 rxe_dev_ifindex(const struct net_device *dev);
u16 rxe_dev_type(const struct net_device *dev);
bool rxe_dev_is_vlan(const struct net_device *dev);
void rxe_dev_mac(const struct net_device *dev, u8 *mac);
void rxe_dev_name(const struct net_device *dev, u8 *name);
struct net_device *rxe_notifier_dev(void *info);

/* Multicast groups of a device: 16 bytes, an IPv4 group in its mapped form. Process context. */
int rxe_dev_join(struct net_device *dev, const u8 *group);
void rxe_dev_leave(struct net_device *dev, const u8 *group);

/*
 * The UDP port of a network namespace. `receive` takes over the buffer; `refuse` takes over what IPsec
 * policies do not let in, to count it.
 */
int rxe_net_init(bool guarded);
void rxe_net_exit(void);
typedef void (*rxe_receive_t)(struct sk_buff *skb);
struct rxe_endpoint;
struct rxe_endpoint *rxe_endpoint_open(const struct net_device *dev, u16 port,
				       rxe_receive_t receive,
				       rxe_receive_t refuse);
void rxe_endpoint_close(struct rxe_endpoint *ep);
bool rxe_endpoint_has_ipv6(const struct rxe_endpoint *ep);
u64 rxe_endpoint_refused(const struct rxe_endpoint *ep);

/* Who may send to that port (shim_guard.c). Process context. */
struct rxe_guard;
struct rxe_guard *rxe_guard_start(struct net *net, u16 port);
void rxe_guard_stop(struct rxe_guard *guard);
void rxe_guard_free(struct rxe_guard *guard);
u64 rxe_guard_refused(const struct rxe_guard *guard);

/* Ethernet frames. `receive` gets what the device receives. */
typedef void (*rxe_frame_t)(void *context, const u8 *frame, u32 len);
struct rxe_tap;
struct rxe_tap *rxe_tap_open(struct net_device *dev, rxe_frame_t receive,
			     void *context);
void rxe_tap_close(struct rxe_tap *tap);
bool rxe_dev_has_frames(const struct net_device *dev);
struct sk_buff *rxe_frame_new(struct net_device *dev, u32 len, void **data);
void rxe_frame_finish(struct sk_buff *skb);

/* Received buffers: `data` is at the UDP header, the IP header lies before it. */
struct rxe_rx {
	const u8 *iph;			/* IP header followed by the UDP header */
	const struct net_device *dev;	/* where it came in */
	u32 len;			/* bytes after the UDP header */
	u32 gso_size;			/* bytes per datagram, 0 if there is one */
	u32 ifindex;
	u16 vlan;			/* of the device; RXE_NO_VLAN */
	bool v4;
	bool loopback;
};

#define RXE_NO_VLAN 0xffff

struct rxe_piece {
	const u8 *start;
	u32 len;
};

#define RXE_RX_PIECES 6			/* at most, per datagram; train.rs compares */

int rxe_rx_parse(struct sk_buff *skb, struct rxe_rx *rx);
bool rxe_dev_same_net(const struct net_device *dev,
		      const struct net_device *other);
bool rxe_dev_is_above(const struct net_device *dev, struct net_device *base);
u32 rxe_rx_pieces(const struct sk_buff *skb, u32 offset, u32 len,
		  struct rxe_piece *out);
void rxe_skb_consume(struct sk_buff *skb);
void rxe_skb_drop(struct sk_buff *skb);

/* One direction of a path, with its cached route. */
struct rxe_flow_spec {
	u8 saddr[16];
	u8 daddr[16];
	u32 flow_label;
	u32 ifindex;			/* 0: of the flow's device */
	u16 sport;
	u16 dport;
	u8 tclass;
	bool v4;
};

struct rxe_flow;
struct rxe_flow *rxe_flow_new(struct net_device *dev,
			      const struct rxe_flow_spec *spec);
void rxe_flow_free(struct rxe_flow *flow);
struct dst_entry *rxe_flow_route(struct rxe_flow *flow);
const struct net_device *rxe_flow_dev(const struct rxe_flow *flow);

/* IPsec (shim_xfrm.c). */
u32 rxe_dev_ipsec_room(const struct net_device *dev, u16 port,
		       u32 per_transform, u32 per_tunnel);
u32 rxe_flow_ipsec_mtu(struct rxe_flow *flow);

/* Sending. `max_len` and `max_segs` bound a run of datagrams in one buffer. */
struct sk_buff *rxe_tx_new(struct rxe_flow *flow, u8 tclass, u32 room,
			   u32 *max_len, u32 *max_segs);
void *rxe_tx_put(struct sk_buff *skb, u32 len);
void rxe_tx_undo(struct sk_buff *skb, u32 len);
void rxe_tx_finish(struct sk_buff *skb, const u8 *hdr, u32 hdr_len,
		   u32 gso_size, u32 gso_segs);

void rxe_tx_link(struct sk_buff *last, struct sk_buff *skb);

struct rxe_tx_result {
	u32 sent;			/* datagrams the stack took */
	u32 dropped;			/* datagrams it did not take */
	u32 too_long;			/* of these: longer than the path takes */
	bool congested;
};

/* Whose buffers are in the queues below: a socket that does nothing but count. */
struct sock *rxe_tx_owner_new(void);
void rxe_tx_owner_free(struct sock *owner);
u32 rxe_tx_owner_bytes(const struct sock *owner);

void rxe_tx_send(struct sk_buff *list, struct sock *owner,
		 struct rxe_tx_result *result);
void rxe_tx_discard(struct sk_buff *list);
void rxe_tx_release_pages(void);

#endif /* RXE_RS_SHIM_NET_H */
