/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Classes, and classification: a packet belongs to the first class that matches. */
#ifndef ICPT_CLASS_H
#define ICPT_CLASS_H

#include <kerb/module.h>
#include "record.h"

#define ICPT_LIST  8 /* the length of each list of port ranges or prefixes of a class */
#define ICPT_BYTES 4 /* conditions on the payload, of up to 8 bytes each */

enum icpt_direction {
	ICPT_INGRESS = 1,
	ICPT_OUTGOING = 2,
};

struct icpt_range {
	__u16 first, last; /* host byte order; first > last matches none */
};

/* IPv4: the first word. */
struct icpt_prefix {
	__be32 addr[4], mask[4];
};

struct icpt_bytes {
	__u16 offset, len; /* in the payload; len 0 to 8, 0: no condition */
	__u32 zero;
	__u64 bytes, mask; /* as in the packet; bytes & ~mask is 0 */
};

/* The target of a class that forwards packets. */
struct icpt_target {
	__be32 addr[4];	/* IPv4: the first word */
	__u32 ifindex;	/* of the named interface; 0: it does not exist */
	__be16 port;	/* destination port; 0: unchanged */
	__u8 family;	/* of addr, 4 or 6; 0: the address is unchanged */
	__u8 named;	/* 1: the configuration names an interface */
};

#define ICPT_NO_RING 0xff

KERB_CONFIG(_Bool, use_labels, 1); /* some class matches a label */

#define ICPT_NOTE_CLASS 1 /* note for traces: index of the class in the configuration */

/* Empty lists match everything. */
struct icpt_class {
	__u64 identity;	 /* key of its counters */
	__u8 directions; /* enum icpt_direction, bits */
	__u8 family;	 /* 4, 6, or 0 for both */
	__u8 proto;	 /* IP protocol, if has_proto */
	__u8 has_proto;
	__u8 action; /* enum icpt_action */
	__u8 stopped;
	__u8 xdp_sockets;		     /* 1: packets may be redirected to AF_XDP sockets */
	__u8 ring;			     /* slot, or ICPT_NO_RING */
	__u8 to_ports, from_ports, to, from; /* lengths of the lists */
	__u32 priority;
	__u32 max_bytes; /* of each frame, that are delivered */
	/* us for which records may stay unread before packets are answered (map answers); 0: no
	 * fallback. Neither the program, which may be faulty, nor its messages can change it. */
	__u32 fallback;
	__u32 label; /* set by a preceding module (kerb_label); 0: any or none */
	__u32 zero;
	struct icpt_range to_port[ICPT_LIST], from_port[ICPT_LIST];
	struct icpt_bytes payload[ICPT_BYTES];
	struct icpt_prefix to_addr[ICPT_LIST], from_addr[ICPT_LIST];
	struct icpt_target target;
};

/* All classes of a configuration, in two copies: packets are matched against classes[version & 1].
 * Control messages change the other copy, increment version, then update what is now the other
 * copy. So a packet never waits for a change, even if the CPU that makes it is preempted; it is
 * matched again if version has changed meanwhile, as what it has read may have been overwritten. */
struct icpt_table {
	__u32 draining; /* 1: a CPU is applying control messages */
	__u32 rings;	/* number of slots in use */
	__u32 version;
	__u32 n;
	__u32 any_port;		  /* 1: ports is not valid, any port may match */
	__u32 directions;	  /* enum icpt_direction: bits of all classes */
	__u32 ports[2048];	  /* bitmap of destination ports that some class may match */
	__u8 of_ring[ICPT_RINGS]; /* by slot: index of the class */
	struct icpt_class classes[2][ICPT_CLASSES];
	__u32 identity; /* of the settings, for the control plane */
	__u32 zero;
};

/* By half, see KERB_TUNABLES. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* the control plane reverts changes of messages */
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct icpt_table);
} table SEC(".maps");

static __always_inline struct icpt_table *icpt_table(__u32 half)
{
	return bpf_map_lookup_elem(&table, &half);
}

/* The class of a packet, as of the time when it matched. */
struct icpt_found {
	__u64 time; /* T1 */
	__u64 identity;
	__u32 class;
	__u32 priority, max_bytes;
	__u32 payload; /* offset in the frame */
	__u8 direction, action, xdp_sockets, ring;
	__u8 half; /* of the table */
};

/* The match key of a packet, and the result. */
struct icpt_key {
	kerb_ctx *ctx;
	__be32 from[4], to[4];
	__u32 payload;	   /* offset in the frame */
	__u32 payload_len; /* 0 if unknown */
	__u16 from_port, to_port;
	__u8 direction, family, proto, has_ports;
	__u32 version;	   /* of the table */
	__u32 half;	   /* the table's */
	__u32 label;
	__u64 found; /* ICPT_FOUND, or ICPT_NONE */
};

/* Class, action, bytes to deliver and priority in one number, so that all that control messages can
 * change is read at one time. */
#define ICPT_FOUND(class, action, bytes, priority) \
	((__u64)(class) | (__u64)(action) << 8 | (__u64)(bytes) << 16 | (__u64)(priority) << 32)
#define ICPT_NONE 0xff

static __always_inline int icpt_in_ranges(const struct icpt_range *list, __u32 n, __u32 port)
{
	for (__u32 i = 0; i < ICPT_LIST; i++) {
		if (i >= n)
			return 0;
		if (port >= list[i].first && port <= list[i].last)
			return 1;
	}
	return 0;
}

static __always_inline int icpt_in_prefixes(const struct icpt_prefix *list, __u32 n,
					    const __be32 *addr)
{
	for (__u32 i = 0; i < ICPT_LIST; i++) {
		const __be32 *a = list[i].addr, *m = list[i].mask;
		__u32 differs = 0;

		if (i >= n)
			return 0;
		for (int w = 0; w < 4; w++) {
			differs |= (addr[w] & m[w]) ^ a[w];
			/* no branches: each would double the paths that the verifier follows */
			kerb_opaque(differs);
		}
		if (!differs)
			return 1;
	}
	return 0;
}

static __always_inline int icpt_bytes_load(kerb_ctx *ctx, __u32 off, void *to, __u32 len)
{
#ifdef KERB_HOOK_XDP
	return bpf_xdp_load_bytes(ctx, off, to, len);
#else
	return bpf_skb_load_bytes(ctx, off, to, len);
#endif
}

static __noinline int icpt_payload_matches(const struct icpt_class *c, const struct icpt_key *k)
{
	for (__u32 i = 0; i < ICPT_BYTES; i++) {
		const struct icpt_bytes *want = &c->payload[i];
		__u32 len = want->len, off = want->offset;
		__u64 have = 0;

		if (!len)
			continue;
		if (off + len > k->payload_len)
			return 0;
		len--; /* the verifier of Linux 6.1 does not derive len >= 1 from len != 0 */
		kerb_opaque(len);
		if (len >= sizeof(have) ||
		    icpt_bytes_load(k->ctx, k->payload + off, &have, len + 1) ||
		    (have & want->mask) != want->bytes)
			return 0;
	}
	return 1;
}

static __noinline int icpt_lists_match(const struct icpt_class *c, const struct icpt_key *k)
{
	if (c->to_ports && (!k->has_ports || !icpt_in_ranges(c->to_port, c->to_ports, k->to_port)))
		return 0;
	if (c->from_ports &&
	    (!k->has_ports || !icpt_in_ranges(c->from_port, c->from_ports, k->from_port)))
		return 0;
	if (c->to && !icpt_in_prefixes(c->to_addr, c->to, k->to))
		return 0;
	return !c->from || icpt_in_prefixes(c->from_addr, c->from, k->from);
}

static __always_inline int icpt_matches(const struct icpt_class *c, const struct icpt_key *k)
{
	if (!(c->directions & k->direction) || c->stopped ||
	    (c->family && c->family != k->family) || (c->has_proto && c->proto != k->proto) ||
	    (use_labels && c->label && c->label != k->label))
		return 0;
	return icpt_lists_match(c, k) && icpt_payload_matches(c, k);
}

static long icpt_class_match(__u32 i, struct icpt_key *k)
{
	struct icpt_table *t = icpt_table(k->half);
	const struct icpt_class *c;

	if (!t || i >= t->n || i >= ICPT_CLASSES)
		return 1;
	c = &t->classes[k->version & 1][i];
	if (!icpt_matches(c, k))
		return 0;
	k->found = ICPT_FOUND(i, c->action, c->max_bytes & 0xffff, c->priority);
	return 1;
}

/* A full memory barrier. BPF has no instruction for it, but atomic ones that return a value are
 * full barriers (Documentation/atomic_t.txt). */
static __always_inline void icpt_barrier(void)
{
	__u64 word = 0;

	asm volatile("" ::"r"(&word) : "memory");
	__sync_lock_test_and_set(&word, 1);
	asm volatile("" ::: "memory");
}

/* One attempt to match all classes: returns 1 unless they have changed meanwhile. */
static long icpt_classes_match(__u32 i, struct icpt_key *k)
{
	struct icpt_table *t = icpt_table(k->half);

	if (!t)
		return 1;
	k->version = *(volatile __u32 *)&t->version;
	icpt_barrier();
	k->found = ICPT_NONE;
	bpf_loop(ICPT_CLASSES, icpt_class_match, k, 0);
	icpt_barrier();
	return *(volatile __u32 *)&t->version == k->version;
}

/* A further attempt is for a change that was published during the previous one; a change takes
 * longer than an attempt. The result of the last one counts. */
#define ICPT_ATTEMPTS 16

static __always_inline int icpt_may_match(const struct icpt_table *t, const struct icpt_key *k)
{
	__u32 port = k->to_port;

	if (!(t->directions & k->direction))
		return 0;
	/* verifiers up to Linux 6.12 lose the bounds of a u16 that is read from the stack */
	kerb_opaque(port);
	return t->any_port || !k->has_ports || t->ports[port >> 5 & 2047] >> (port & 31) & 1;
}

/* Returns a pointer to len bytes (a constant) of headers at off, or NULL if the linear part is
 * shorter. */
static __always_inline void *icpt_header_at(kerb_ctx *ctx, __u64 off, __u64 len)
{
	void *p = (void *)kerb_ctx_field(ctx, data), *end = (void *)kerb_ctx_field(ctx, data_end);

	kerb_opaque(off);
	p += off & KERB_MAX_HDRS;
	return p + len > end ? 0 : p;
}

static __always_inline int icpt_key_fill_addresses(struct icpt_key *k, __u32 l3)
{
	struct iphdr *ip4;
	struct ipv6hdr *ip6;

	if (k->family == 4) {
		ip4 = icpt_header_at(k->ctx, l3, sizeof(*ip4));
		if (!ip4)
			return 0;
		k->from[0] = ip4->saddr;
		k->to[0] = ip4->daddr;
		return 1;
	}
	ip6 = icpt_header_at(k->ctx, l3, sizeof(*ip6));
	if (!ip6)
		return 0;
	__builtin_memcpy(k->from, &ip6->saddr, sizeof(k->from));
	__builtin_memcpy(k->to, &ip6->daddr, sizeof(k->to));
	return 1;
}

static __always_inline void icpt_key_fill_transport(struct icpt_key *k, __u32 l4, __u32 len,
						    __u8 flags)
{
	__u32 header = flags & KERB_F_L4 ? 8 : 0; /* UDP, ICMP, ICMPv6 */
	struct tcphdr *tcp;
	struct udphdr *udp;

	if (flags & KERB_F_L4 && (k->proto == IPPROTO_TCP || k->proto == IPPROTO_UDP)) {
		udp = icpt_header_at(k->ctx, l4, sizeof(*udp));
		if (udp) {
			k->has_ports = 1;
			k->from_port = bpf_ntohs(udp->source);
			k->to_port = bpf_ntohs(udp->dest);
		}
	}
	if (flags & KERB_F_L4 && k->proto == IPPROTO_TCP) {
		tcp = icpt_header_at(k->ctx, l4, sizeof(*tcp));
		header = tcp ? tcp->doff * 4 : 0;
	}
	k->payload = l4 + header;
	if (!(flags & KERB_F_FRAG_LATER) && len >= header)
		k->payload_len = len - header;
}

/* Flag in the byte of the direction or of the class: the half of the packet is 1. */
#define ICPT_HALF 0x80

/* Arguments of global functions, which take scalars and the context only: offsets and kind of a
 * packet, as for icpt_classify, and the packet context of them. low: the low byte of kind. */
#define ICPT_OFFSETS(pkt) ((pkt)->l3 | (pkt)->l4 << 16)
#define ICPT_KIND(pkt, low) \
	((low) | (pkt)->family << 8 | (pkt)->proto << 16 | (__u32)(pkt)->flags << 24)
#define ICPT_UNPACK_PKT(c, offsets, kind, l4_length, length)    \
	{                                                       \
		.ctx = c,                                       \
		.l3 = (offsets) & 0xffff,                       \
		.l4 = (offsets) >> 16,                          \
		.ifindex = kerb_ctx_field(c, KERB_CTX_IFINDEX), \
		.len = length,                                  \
		.family = (kind) >> 8,                          \
		.proto = (kind) >> 16,                          \
		.flags = (kind) >> 24,                          \
		.l4_len = l4_length,                            \
	}

/* Returns the class of an IP packet: ICPT_FOUND, or ICPT_NONE. A global function of numbers and the
 * context only, so that the verifier checks it once, independently of its callers. offsets: l3 in
 * bits 0 to 15, l4 in bits 16 to 31. kind: direction and ICPT_HALF, family, protocol and flags, a
 * byte each. */
__attribute__((noinline)) __u64 icpt_classify(kerb_ctx *ctx, __u32 offsets, __u32 kind,
					      __u32 l4_len, __u32 label)
{
	struct icpt_key k = { .ctx = ctx,
			      .direction = kind & ~ICPT_HALF,
			      .family = kind >> 8,
			      .proto = kind >> 16,
			      .half = !!(kind & ICPT_HALF),
			      .label = label,
			      .found = ICPT_NONE };
	struct icpt_table *t = icpt_table(k.half);

	if (!t)
		return ICPT_NONE;
	icpt_key_fill_transport(&k, offsets >> 16, l4_len, kind >> 24);
	if (!icpt_may_match(t, &k) || !icpt_key_fill_addresses(&k, offsets & 0xffff))
		return ICPT_NONE;
	bpf_loop(ICPT_ATTEMPTS, icpt_classes_match, &k, 0);
	return k.found;
}

#endif
