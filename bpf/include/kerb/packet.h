/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reading packets and returning verdicts, the same on XDP and TC. */
#ifndef KERB_PACKET_H
#define KERB_PACKET_H

#include <kerb/parse.h>

/* Headers, or NULL if the packet does not have them. Valid until the packet's size changes. */
static __always_inline struct iphdr *kerb_ip4(const struct kerb_pkt *pkt)
{
	return pkt->family == 4 ? kerb_at(pkt, pkt->l3, sizeof(struct iphdr)) : 0;
}

static __always_inline struct ipv6hdr *kerb_ip6(const struct kerb_pkt *pkt)
{
	return pkt->family == 6 ? kerb_at(pkt, pkt->l3, sizeof(struct ipv6hdr)) : 0;
}

static __always_inline struct tcphdr *kerb_tcp(const struct kerb_pkt *pkt)
{
	return pkt->flags & KERB_F_L4 && pkt->proto == IPPROTO_TCP
		       ? kerb_at(pkt, pkt->l4, sizeof(struct tcphdr))
		       : 0;
}

static __always_inline struct udphdr *kerb_udp(const struct kerb_pkt *pkt)
{
	return pkt->flags & KERB_F_L4 && pkt->proto == IPPROTO_UDP
		       ? kerb_at(pkt, pkt->l4, sizeof(struct udphdr))
		       : 0;
}

/* Makes the packet context unknown to the verifier, so that it walks the following code once, not
 * once for each path through the parser and previous branches. Adds a zero whose value the verifier
 * does not know. */
static __always_inline void kerb_forget(struct kerb_pkt *pkt)
{
	__u64 zero = kerb_unknown_zero(pkt->ctx);

	pkt->l3 += zero;
	pkt->l4 += zero;
	pkt->l4_len += zero;
	pkt->eth_type += zero;
	pkt->vlan += zero;
	pkt->family += zero;
	pkt->proto += zero;
	pkt->flags += zero;
	pkt->outcome += zero;
	kerb_reload(pkt);
}

/* The IPv6 Fragment header of a fragment (KERB_F_FRAG). The parser has validated it and all headers
 * before it. */
static __always_inline struct kerb_ext_hdr *kerb_fragment(const struct kerb_pkt *pkt)
{
	struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));
	__u64 off = pkt->l3 + sizeof(*ip);
	__u8 next;

	if (!ip)
		return 0;
	next = ip->nexthdr;
	for (int i = 0; i < KERB_MAX_EXT; i++) {
		struct kerb_ext_hdr *ext = kerb_at(pkt, off, sizeof(*ext));

		if (!ext || next == IPPROTO_FRAGMENT)
			return ext;
		off += kerb_ext_len(next, ext);
		next = ext->next;
	}
	return 0;
}

/* The label that a previous module has given the packet (kerb/deliver.h), 0 if none. */
static __always_inline __u16 kerb_label(const struct kerb_pkt *pkt)
{
	return pkt->to_flags >> KERB_LABEL_SHIFT;
}

/* Drops the packet with a reason: enum kerb_drop_reason, or one of the module's own reasons
 * (KERB_DROP_MODULE_FIRST + n). */
static __always_inline int kerb_drop(struct kerb_pkt *pkt, __u32 reason)
{
	pkt->reason = reason;
	return KERB_DROP;
}

/* A call of this number, which is no helper, stands for a note: see kerb_note(). */
static void (*const kerb_note_take)(struct kerb_pkt *pkt, __u64 note) = (void *)0x6b6574;

/* Sets a note on the packet for `kerb trace`, such as the rule that matched. key: one of the
 * module's notes (`notes` in kerb.yaml); value: 48 bits. The last note of a module is shown. When
 * the agent links a chain (internal/dataplane/notes.go), it removes the call and the code that only
 * computes its arguments; in a traced chain the note is stored after *pkt. Not available in global
 * functions, where the verifier does not allow access beyond *pkt. */
static __always_inline void kerb_note(struct kerb_pkt *pkt, __u16 key, __u64 value)
{
	kerb_note_take(pkt, (__u64)key << 48 | (value & 0xffffffffffffULL));
}

/* Drops the packet with a reason and a note, which `kerb drops` shows without a trace. Unlike that
 * of kerb_note(), value has 16 bits; global functions may call this, too. */
static __always_inline int kerb_drop_noted(struct kerb_pkt *pkt, __u32 reason, __u8 key,
					   __u16 value)
{
	return kerb_drop(pkt, reason | (__u32)key << 8 | (__u32)value << 16);
}

/* Redirects the packet to another interface. flags: KERB_TO_*. */
static __always_inline int kerb_redirect(struct kerb_pkt *pkt, __u32 ifindex, __u32 flags)
{
	pkt->to_ifindex = ifindex;
	pkt->to_flags = flags;
	return KERB_REDIRECT;
}

/* Redirects the packet after the last module: the following modules see the packet as it will
 * leave, and may drop it or redirect it elsewhere. On TC, in packages with `deferredRedirect`;
 * otherwise this is kerb_redirect(). With KERB_TO_REPARSE in flags, the packet is parsed again
 * before the next module. */
static __always_inline int kerb_redirect_deferred(struct kerb_pkt *pkt, __u32 ifindex, __u32 flags)
{
#ifdef KERB_HOOK_TC
	flags |= KERB_TO_DEFERRED;
#endif
	return kerb_redirect(pkt, ifindex, flags);
}

/* Returns whether a previous module has redirected the packet. */
static __always_inline int kerb_is_redirected(const struct kerb_pkt *pkt)
{
	return pkt->to_flags & KERB_TO_DEFERRED;
}

#endif
