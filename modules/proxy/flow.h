/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The lookup key of a packet. ICMP errors are looked up by the reversed key of the packet that they
 * quote, so that they find the same session as a reply to that packet. */
#ifndef PX_FLOW_H
#define PX_FLOW_H

#include <kerb/l4.h>

#include "maps.h"

/* instances send from their virtual addresses; otherwise the verifier removes the code for names */
KERB_CONFIG(_Bool, source_instance, 0);

#define PX_NOTE_INSTANCE 1 /* index in instances */

enum px_kind {
	PX_PLAIN = 1,	/* TCP, UDP and SCTP */
	PX_ECHO = 2,	/* ICMP echo request or reply */
	PX_ERROR = 3,	/* ICMP error */
	PX_LATER = 4,	/* fragment without ports */
	PX_OTHER = 5,	/* a transport that is not translated */
	PX_SPOOFED = 6, /* its source is not the sender's own address */
	PX_NOTHING = 7, /* the proxy ignores it */
};

/* The parser's result, and that of the packet: the fields of struct kerb_pkt up to the
 * verdict's. */
struct px_head {
	__u64 found[4], became[2];
};

_Static_assert(offsetof(struct kerb_pkt, l4_len) == offsetof(struct kerb_pkt, l3) + 32 &&
		       sizeof(struct kerb_pkt) == offsetof(struct kerb_pkt, l4_len) + 16,
	       "struct px_head");

/* Working memory for uncommon packets, which would not fit on the stack. The verifier does not know
 * values read from a map: it follows the subsequent code once, and not once for each path through
 * the code before. */
struct px_work {
	struct px_head head;
	struct px_flow flow; /* of the packet */
	struct px_flow pair; /* key of the session's other entry */
	struct px_flow other; /* of a session that is not the packet's */
	struct px_ask ask;
	struct px_session made, mirror;
	struct px_fragment datagram;
	struct px_fragment_of first;
	__u64 now;
	__u32 instance; /* chosen */
	__u32 start;	/* slot to begin with */
	__s64 fewest;
	__be16 target;	/* port at the instance */
	__u8 kind;	/* enum px_kind */
	__u8 tcp;	/* TCP flags */
	__u8 v4;
	__u8 state;  /* of the new session */
	__u8 quoted; /* PX_ERROR: enum px_kind of the packet in it */
	__u8 step;   /* enum px_step */
	__u8 was;    /* state of the session before the packet */
	__u8 kept;   /* the packet's session was in sessions, not in pending */
	__u8 flags;  /* of the new session: PX_JUDGED, PX_NAMED */
	__u64 inner; /* PX_ERROR: offset of the quoted transport header */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct px_work);
} work SEC(".maps");

struct px_icmp {
	__u8 type, code;
	__be16 check, id, seq;
};

static __always_inline struct px_work *px_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&work, &zero);
}

static __always_inline void px_set4(struct px_addr *a, __be32 addr)
{
	a->word[0] = 0;
	a->word[1] = 0;
	a->word[2] = bpf_htonl(0xffff);
	a->word[3] = addr;
}

static __always_inline void px_set6(struct px_addr *a, const struct in6_addr *addr)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		a->word[i] = addr->in6_u.u6_addr32[i];
}

static __always_inline struct px_name *px_name_of(const struct px_addr *addr, __u32 ifindex)
{
	struct px_name_of key = {.addr = *addr, .ifindex = ifindex};

	return bpf_map_lookup_elem(&names, &key);
}

/* The virtual address of an instance. */
static __always_inline struct px_name *px_instance_name(__u32 instance, int v4)
{
	struct px_name_of key = {.addr.word[3] = v4, .ifindex = PX_BY_INSTANCE | instance};

	return bpf_map_lookup_elem(&names, &key);
}

static __always_inline int px_same(const struct px_addr *a, const struct px_addr *b)
{
	return !((a->word[0] ^ b->word[0]) | (a->word[1] ^ b->word[1]) | (a->word[2] ^ b->word[2]) |
		 (a->word[3] ^ b->word[3]));
}

static __always_inline int px_is4(const struct px_addr *a)
{
	return !(a->word[0] | a->word[1] | (a->word[2] ^ bpf_htonl(0xffff)));
}

/* Both ports in one access, or any other four bytes. */
static __always_inline __u32 *px_ports(void *port)
{
	return port;
}

/* Everything but the ports. */
static __always_inline int px_read_addresses(const struct kerb_pkt *pkt, __u32 hook,
					     struct px_flow *f)
{
	if (pkt->family == 4) {
		struct iphdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return -1;
		px_set4(&f->src, ip->saddr);
		px_set4(&f->dst, ip->daddr);
	} else {
		struct ipv6hdr *ip = kerb_at(pkt, pkt->l3, sizeof(*ip));

		if (!ip)
			return -1;
		px_set6(&f->src, &ip->saddr);
		px_set6(&f->dst, &ip->daddr);
	}
	f->ifindex = pkt->ifindex;
	/* proto, hook and zero in one write, because the hash reads them in one immediately
	 * afterwards */
	*px_ports(&f->proto) = bpf_htonl((__u32)pkt->proto << 24 | hook << 16);
	return 0;
}

/* TCP or UDP, whole. */
static __always_inline int px_is_common(const struct kerb_pkt *pkt)
{
	return (pkt->flags & (KERB_F_L4 | KERB_F_FRAG)) == KERB_F_L4 &&
	       (pkt->proto == IPPROTO_TCP || pkt->proto == IPPROTO_UDP);
}

/* Returns the TCP flags (0 for UDP), or a negative value. */
static __always_inline int px_read_common(const struct kerb_pkt *pkt, __u32 hook, struct px_flow *f)
{
	__u8 *l4 = kerb_at(pkt, pkt->l4, sizeof(struct udphdr));

	if (!l4 || px_read_addresses(pkt, hook, f))
		return -1;
	*px_ports(&f->sport) = *px_ports(l4);
	if (pkt->proto != IPPROTO_TCP)
		return 0;
	l4 = kerb_at(pkt, pkt->l4, sizeof(struct tcphdr));
	return l4 ? l4[13] : -1;
}

/* Ports of an ICMP echo: see struct px_flow. */
static __always_inline int px_read_echo(struct px_flow *f, const struct px_icmp *icmp, int v4)
{
	__u8 request = v4 ? KERB_ICMP_ECHO : KERB_ICMP6_ECHO,
	     reply = v4 ? KERB_ICMP_ECHO_REPLY : KERB_ICMP6_ECHO_REPLY;

	if (icmp->type == request) {
		f->sport = icmp->id;
		f->dport = bpf_htons(request);
		return 1;
	}
	if (icmp->type == reply) {
		f->sport = bpf_htons(request);
		f->dport = icmp->id;
		return 1;
	}
	return 0;
}

static __always_inline int px_is_error(__u8 type, int v4)
{
	if (v4)
		return type == KERB_ICMP_UNREACHABLE || type == KERB_ICMP_TIME ||
		       type == KERB_ICMP_PARAMETER;
	return type >= KERB_ICMP6_UNREACHABLE && type <= KERB_ICMP6_PARAMETER;
}

/* Protocols whose ports are in the first four bytes. */
static __always_inline int px_has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP;
}

static __always_inline __u8 px_icmp_of(int v4)
{
	return v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
}

/* Ports, or an echo's identifier, at an offset of the frame. */
static __always_inline __u8 px_read_ports(const struct kerb_pkt *pkt, __u64 off, struct px_work *w)
{
	struct px_flow *f = &w->flow;

	f->sport = f->dport = 0;
	if (px_has_ports(f->proto)) {
		void *port = kerb_at(pkt, off, 4);

		if (!port)
			return PX_NOTHING;
		*px_ports(&f->sport) = *px_ports(port);
		return PX_PLAIN;
	}
	if (f->proto == px_icmp_of(w->v4)) {
		struct px_icmp *icmp = kerb_at(pkt, off, sizeof(*icmp));

		if (!icmp)
			return PX_NOTHING;
		if (px_is_error(icmp->type, w->v4))
			return PX_ERROR;
		return px_read_echo(f, icmp, w->v4) ? PX_ECHO : PX_NOTHING;
	}
	return PX_OTHER;
}

static __always_inline int px_is_echo_reply(const struct px_work *w)
{
	return w->kind == PX_ECHO &&
	       w->flow.dport != bpf_htons(w->v4 ? KERB_ICMP_ECHO : KERB_ICMP6_ECHO);
}

/* Swaps source and destination of a flow. */
static __always_inline void px_flow_reverse(struct px_flow *f)
{
	struct px_addr addr = f->src;
	__be16 port = f->sport;

	f->src = f->dst;
	f->dst = addr;
	f->sport = f->dport;
	f->dport = port;
}

static __always_inline int px_is_named(const struct px_session *s)
{
	return s->flags & PX_NAMED && source_instance;
}

/* Returns whether both addresses are rewritten in packets of a flow. */
static __always_inline int px_changes_both(const struct px_session *s)
{
	return px_is_named(s) && (s->flags & (PX_REVERSE | PX_FAR)) != (PX_REVERSE | PX_FAR);
}

/* The new client address in such a packet; NULL: its name no longer exists. */
static __always_inline struct px_name *px_client_name(const struct px_flow *f,
						      const struct px_session *s)
{
	int reverse = s->flags & PX_REVERSE;

	if (!source_instance)
		return 0;
	return px_name_of(reverse ? &f->dst : &f->src, reverse ? s->other : f->ifindex);
}

/* Key of the replies to a packet that is not translated: they are seen on the interface of its
 * receiver, or on the way to its sender. */
static __always_inline void px_answer_key(const struct px_flow *f, struct px_flow *answer)
{
	__u32 *home = bpf_map_lookup_elem(&homes, &f->dst);

	*answer = *f;
	px_flow_reverse(answer);
	if (home)
		answer->ifindex = *home;
	else
		answer->hook = PX_INGRESS;
}

#endif
