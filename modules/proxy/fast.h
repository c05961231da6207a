/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The fast path, for most packets: TCP and UDP without VLAN tag, IP options and fragmentation, of
 * sessions that this CPU has copies of, while nothing begins, ends or moves. All offsets are
 * constants here, and nothing is copied. */
#ifndef PX_FAST_H
#define PX_FAST_H

#include "hot.h"
#include "translate.h"
#include "handover.h"

/* The key of such a packet. */
struct px_plain {
	px_wide addr; /* as in struct px_hot */
	__u32 ports, hash;
};

/* Returns whether a packet without options, tags and fragmentation neither begins nor ends
 * anything. family is a constant. */
static __always_inline int px_read_plain(const struct kerb_pkt *pkt, __u32 family,
					 struct px_plain *p)
{
	__u32 off = ETH_HLEN + (family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u8 *data = kerb_at(pkt, 0, off + sizeof(struct udphdr)),
	     *tcp = kerb_at(pkt, 0, off + sizeof(struct tcphdr));
	const __be32 *word = (void *)data + ETH_HLEN + (family == 4 ? 12 : 8);

	if (!data)
		return 0;
	if (kerb_reread(pkt->proto) == IPPROTO_TCP) {
		if (!tcp || tcp[off + 13] & (KERB_TCP_SYN | KERB_TCP_FIN | KERB_TCP_RST))
			return 0;
	} else if (kerb_reread(pkt->proto) != IPPROTO_UDP) {
		return 0;
	}
	p->addr = *(const px_wide *)word;
	p->ports = *px_ports(data + off);
	p->hash = px_hot_hash(word[family == 4 ? 0 : 3], word[family == 4 ? 1 : 7], p->ports,
			      kerb_reread(pkt->ifindex));
	return 1;
}

/* Returns whether the other half of the IPv6 addresses differs. */
static __always_inline int px_rest_differs(const struct kerb_pkt *pkt, const struct px_hot *h)
{
	__u8 *data = kerb_at(pkt, 0, ETH_HLEN + sizeof(struct ipv6hdr));
	const px_wide *rest = (void *)(data + ETH_HLEN + 16);

	if (!data)
		return 1;
	return ((rest[0] ^ h->rest[0]) | (rest[1] ^ h->rest[1]) | (rest[2] ^ h->rest[2])) != 0;
}

/* Returns the copy of the packet's session, or NULL. */
static __always_inline const struct px_hot *px_hot_lookup(const struct kerb_pkt *pkt,
							  const struct px_plain *p, __u32 hook)
{
	__u32 slot = px_hot_slot(p->hash), epoch_slot = px_epoch_slot(p->hash);
	const struct px_epoch *epoch = bpf_map_lookup_elem(&epochs, &epoch_slot);
	struct px_hot_set *set = bpf_map_lookup_elem(&hot, &slot);
	const struct px_hot *h;
	__u64 differs;

	if (!epoch || !set)
		return 0;
	h = px_hot_way(set, p->ports);
	differs = (h->epoch ^ epoch->count) | (h->tick ^ px_hot_tick(h->age, bpf_jiffies64()));
	differs |= (h->ports ^ p->ports) | (h->ifindex ^ kerb_reread(pkt->ifindex));
	differs |= h->kind ^
		   PX_HOT_KIND(kerb_reread(pkt->family), kerb_reread(pkt->proto), hook);
	differs |= h->addr ^ p->addr;
	return differs || (kerb_reread(pkt->family) != 4 && px_rest_differs(pkt, h)) ? 0 : h;
}

/* Returns whether the copy may be used: see is_settled(), which was true when it was made. */
static __always_inline int px_hot_valid(const struct px_hot *h)
{
	struct px_instance *in;

	if (h->flags & PX_HAIRPIN)
		return 0;
	if (h->flags & PX_REVERSE)
		return 1;
	in = bpf_map_lookup_elem(&instances, &h->instance);
	return in && in->generation == h->generation && !(in->flags & PX_GONE);
}

static __always_inline void px_change_plain4(const struct kerb_pkt *pkt, const struct px_hot *h)
{
	__u8 *data = kerb_at(pkt, 0, ETH_HLEN + sizeof(struct iphdr) + sizeof(__u32));
	struct iphdr *ip = (void *)(data + ETH_HLEN);

	if (!data)
		return;
	*px_ports(ip + 1) = *px_ports((void *)&h->sport);
	ip->check = kerb_csum(ip->check, h->addresses);
	*(px_wide *)&ip->saddr = h->to4;
}

static __always_inline void px_change_plain6(const struct kerb_pkt *pkt, const struct px_hot *h)
{
	__u8 *data = kerb_at(pkt, 0, ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(__u32));
	struct ipv6hdr *ip = (void *)(data + ETH_HLEN);
	px_wide *to = (void *)&ip->saddr;

	if (!data)
		return;
	*px_ports(ip + 1) = *px_ports((void *)&h->sport);
	to[0] = h->to6[0];
	to[1] = h->to6[1];
	to[2] = h->to6[2];
	to[3] = h->to6[3];
}

/* Returns a verdict, or -1 for packets of the slow path. It must stay so short that the linker
 * inlines it into the chain (internal/dataplane/inline.go). */
static __always_inline int px_fast_path(struct kerb_pkt *pkt, __u32 hook)
{
	int v4 = kerb_reread(pkt->family) == 4, verdict;
	const struct px_hot *h;
	struct px_plain p;

	if (kerb_reread(pkt->flags) != KERB_F_L4 || pkt->l3 != ETH_HLEN || pkt->vlan)
		return -1;
	if (!(v4 ? px_read_plain(pkt, 4, &p) : px_read_plain(pkt, 6, &p)))
		return -1;
	h = px_hot_lookup(pkt, &p, hook);
	if (!h || !px_hot_valid(h))
		return -1;
	if (h->instance)
		kerb_note(pkt, PX_NOTE_INSTANCE, h->instance);
	verdict = hook == PX_EGRESS ? px_neigh_redirect(pkt, kerb_at(pkt, 0, ETH_HLEN),
							px_target(&h->local, h->other))
				    : KERB_NEXT;
	if (kerb_reread(pkt->family) == 4)
		px_change_plain4(pkt, h);
	else
		px_change_plain6(pkt, h);
	px_fix_check(pkt, pkt->l4 + (kerb_reread(pkt->proto) == IPPROTO_TCP ? 16 : 6),
		     kerb_reread(pkt->family), kerb_reread(pkt->proto), h->addresses, h->sum);
	return verdict;
}

#endif
