/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The fast way, for the packets that are most of all: TCP and UDP without VLAN tag, IP options and
 * fragments, of sessions that this CPU has copies of, while nothing begins, ends or moves. All
 * offsets are constants here, and nothing is copied. */
#ifndef PX_FAST_H
#define PX_FAST_H

#include "hot.h"
#include "translate.h"
#include "handover.h"

/* Headers of such a packet. family and hook are constants to the compiler. */
struct px_plain {
	void *ip, *l4;
	__u32 family, hook;
};

/* The copy of the packet's session, or NULL. */
static __always_inline const struct px_hot *px_find_hot(const struct kerb_pkt *pkt,
							const struct px_plain *p)
{
	int v4 = p->family == 4;
	const px_wide *addr = p->ip + (v4 ? 12 : 8);
	const __be32 *word = (const void *)addr;
	__u32 hash = px_hot_hash(word[v4 ? 0 : 3], word[v4 ? 1 : 7], kerb_reread(*px_ports(p->l4)),
				 kerb_reread(pkt->ifindex));
	__u32 slot = px_hot_slot(hash), epoch_slot = px_epoch_slot(hash);
	const struct px_epoch *epoch = bpf_map_lookup_elem(&epochs, &epoch_slot);
	const struct px_hot *h = bpf_map_lookup_elem(&hot, &slot);
	__u64 differs;

	if (!epoch || !h)
		return 0;
	differs = (h->epoch ^ epoch->count) | (h->tick ^ (__u32)(bpf_jiffies64() / PX_HOT_TICK));
	differs |= (h->ports ^ kerb_reread(*px_ports(p->l4))) |
		   (h->ifindex ^ kerb_reread(pkt->ifindex));
	differs |= h->kind ^ PX_HOT_KIND(p->family, kerb_reread(pkt->proto), p->hook);
#pragma unroll
	for (int i = 0; i < (v4 ? 1 : 4); i++)
		differs |= addr[i] ^ ((const px_wide *)h->word)[i];
	return differs ? 0 : h;
}

/* Whether the copy will do: see px_session_is_settled(), which was true when it was made. */
static __always_inline int px_hot_valid(const struct px_session *s)
{
	struct px_instance *in;

	if (s->flags & PX_HAIRPIN)
		return 0;
	if (s->flags & PX_REVERSE)
		return 1;
	in = bpf_map_lookup_elem(&instances, &s->instance);
	return in && in->generation == s->generation && !(in->flags & PX_GONE);
}

/* The copy for a packet without options, tags and fragments, or NULL. family and hook are
 * constants. */
static __always_inline const struct px_hot *px_find_plain(const struct kerb_pkt *pkt, __u32 family,
							  __u32 hook)
{
	__u32 off = ETH_HLEN + (family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u8 *data = kerb_at(pkt, 0, off + sizeof(struct udphdr)),
	     *tcp = kerb_at(pkt, 0, off + sizeof(struct tcphdr));
	struct px_plain p = {
		.ip = data + ETH_HLEN, .l4 = data + off, .family = family, .hook = hook
	};

	if (!data)
		return 0;
	if (kerb_reread(pkt->proto) == IPPROTO_TCP) {
		if (!tcp || tcp[off + 13] & (TCP_SYN | TCP_FIN | TCP_RST))
			return 0;
	} else if (kerb_reread(pkt->proto) != IPPROTO_UDP) {
		return 0;
	}
	return px_find_hot(pkt, &p);
}

static __always_inline void px_change_plain4(const struct kerb_pkt *pkt, const struct px_hot *h)
{
	__u8 *data = kerb_at(pkt, 0, ETH_HLEN + sizeof(struct iphdr) + sizeof(__u32));
	struct iphdr *ip = (void *)(data + ETH_HLEN);

	if (!data)
		return;
	*px_ports(ip + 1) = *px_ports((void *)&h->session.sport);
	ip->check = kerb_csum(ip->check, h->addresses);
	*(h->session.flags & PX_REVERSE ? &ip->saddr : &ip->daddr) = h->session.addr.word[3];
}

static __always_inline void px_change_plain6(const struct kerb_pkt *pkt, const struct px_hot *h)
{
	__u8 *data = kerb_at(pkt, 0, ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(__u32));
	const px_wide *addr = (const void *)&h->session.addr;
	struct ipv6hdr *ip = (void *)(data + ETH_HLEN);
	px_wide *to;

	if (!data)
		return;
	*px_ports(ip + 1) = *px_ports((void *)&h->session.sport);
	to = (void *)(h->session.flags & PX_REVERSE ? &ip->saddr : &ip->daddr);
	to[0] = addr[0];
	to[1] = addr[1];
}

/* Returns a verdict, or -1 for packets that have to go the long way. It has to stay so short that
 * the linker writes it straight into the chain (internal/dataplane/inline.go). */
static __always_inline int px_fast_path(struct kerb_pkt *pkt, __u32 hook)
{
	int v4 = kerb_reread(pkt->family) == 4, verdict;
	const struct px_hot *h;

	if (kerb_reread(pkt->flags) != KERB_F_L4 || pkt->l3 != ETH_HLEN || pkt->vlan)
		return -1;
	h = v4 ? px_find_plain(pkt, 4, hook) : px_find_plain(pkt, 6, hook);
	if (!h || !px_hot_valid(&h->session))
		return -1;
	verdict = hook == PX_EGRESS ? px_neigh_redirect(pkt, kerb_at(pkt, 0, ETH_HLEN),
							px_target(&h->session))
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
