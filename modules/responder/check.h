/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a packet must be for the kernel to answer it. Whatever fails one check passes to the
 * ordinary server, untouched. */
#ifndef RSP_CHECK_H
#define RSP_CHECK_H

#include "respond.h"

/* Packets by result: counters of every listener, and in slot 0 of those that no listener was found
 * for. */
enum rsp_outcome {
	RSP_ANSWERED = 0,
	RSP_CONSUMED = 1,
	RSP_MALFORMED = 2,	  /* did not parse (slot 0) */
	RSP_LATER_FRAGMENT = 3,	  /* of UDP: its port is not known (slot 0) */
	/* an answered port, but of an address that no listener has (slot 0) */
	RSP_OTHER_ADDRESS = 4,
	RSP_FRAGMENT = 5,	  /* first fragment */
	RSP_NOT_LINEAR = 6,	  /* in several buffers, or several requests in one packet (GRO) */
	RSP_LINK_ADDRESS = 7,	  /* a MAC address is one of a group */
	/* not unicast, loopback, the destination's, one's own, a broadcast address of the
	 * network */
	RSP_SOURCE_ADDRESS = 8,
	/* 0, an answered port, or that of another service that answers anything */
	RSP_SOURCE_PORT = 9,
	/* IP options or extension headers that may not be left out of an answer's way */
	RSP_OPTIONS = 10,
	RSP_SIZE = 11,		  /* payload too short or too long */
	RSP_HEADER_CHECKSUM = 12, /* IPv4 header */
	RSP_CHECKSUM = 13,	  /* UDP */
	/* the reply would be longer than max_reply or the interface's MTU */
	RSP_REPLY_SIZE = 14,
	RSP_SOURCE_LIMIT = 15,	  /* over the rate of one source */
	RSP_TOTAL_LIMIT = 16,	  /* over the rate of all */
	RSP_NO_ROOM = 17,	  /* no memory for the reply */
	RSP_LOST = 18,		  /* dropped: what was begun could not be finished */
	/* the reply would amplify, and the source has not proven its address */
	RSP_UNPROVEN = 19,
	RSP_CHALLENGED = 20,	  /* answered by asking the source for a proof of its address */
	RSP_APP = 24,		  /* the application's own reasons to pass */
	RSP_OUTCOMES = RSP_APP + RSP_APP_REASONS,
};

struct rsp_counts {
	__u64 n[RSP_OUTCOMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct rsp_counts);
} counts SEC(".maps");

static __always_inline int rsp_count(__u32 slot, __u32 outcome, int verdict)
{
	struct rsp_counts *c = bpf_map_lookup_elem(&counts, &slot);

	if (c && outcome < RSP_OUTCOMES)
		c->n[outcome]++;
	return verdict;
}

/* Whose a slot is; the control plane's alone, kept here so that it survives with the counters. */
struct rsp_owner {
	/* hash of the listener's application and name, 0: free; of slot 0, bits of the slots that
	 * are running */
	__u64 name;
	__u64 fill; /* number of the last configuration that had it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct rsp_owner);
} owners SEC(".maps");

/* Bits by port, host byte order. */
struct rsp_ports {
	__u64 zero; /* always: see rsp_reset_verifier */
	/* of the first element: ports of listeners of either half, so that packets to others need
	 * not ask which half is theirs */
	__u32 answered[2048];
	__u32 not_sources[2048]; /* source ports that get no answer */
};

/* By half. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct rsp_ports);
} ports SEC(".maps");

/* Listeners by address and port, network byte order. Address 0: those of the interface, which the
 * maps below have. */
struct rsp_key4 {
	__be32 addr;
	__be16 port;
	__u16 half; /* of the config */
};

struct rsp_key6 {
	__be32 addr[4];
	__be16 port;
	__u16 half;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct rsp_key4);
	__type(value, struct rsp_listener);
} listeners4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct rsp_key6);
	__type(value, struct rsp_listener);
} listeners6 SEC(".maps");

/* What an address is to an interface. */
enum rsp_local {
	RSP_OWN = 1,
	RSP_BROADCAST = 2,
	RSP_VIRTUAL = 3, /* of the address 0: no packet of the interface has been on a wire */
};

/* How UDP checksums that hold only the sum of the pseudo-header are handled. */
enum rsp_partial_policy {
	RSP_PARTIAL_PASS = 0,	 /* left to the ordinary server */
	RSP_PARTIAL_ACCEPT = 1,
	RSP_PARTIAL_VIRTUAL = 2, /* accepted on virtual interfaces */
};

struct rsp_local4 {
	__u32 ifindex;
	__be32 addr;
};

struct rsp_local6 {
	__u32 ifindex;
	__be32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rsp_local4);
	__type(value, __u32);
} local4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rsp_local6);
	__type(value, __u32);
} local6 SEC(".maps");

KERB_CONFIG(_Bool, by_address, 1);   /* some listener has addresses of its own */
KERB_CONFIG(_Bool, by_interface, 1); /* some listener has those of the interface */

/* The addresses and what depends on them, of either family. */
struct rsp_ends {
	__u64 sum; /* of the addresses and the protocol: the pseudo-header without the length */
	__u64 source; /* IPv4 address, or the /64 of an IPv6 one: whom the rate limit means */
	__u32 same; /* source and destination are equal */
	__u32 odd; /* no unicast source, or loopback */
	__u32 kind; /* enum rsp_local of the source */
};

static __always_inline const struct rsp_listener *rsp_find4(const struct kerb_pkt *pkt,
							    const struct iphdr *ip, __be16 port,
							    __u16 half)
{
	struct rsp_key4 key = {.addr = ip->daddr, .port = port, .half = half};
	struct rsp_local4 local = {.ifindex = pkt->ifindex, .addr = ip->daddr};
	const struct rsp_listener *l = 0;
	__u32 *kind;

	if (by_address)
		l = bpf_map_lookup_elem(&listeners4, &key);
	if (l || !by_interface)
		return l;
	kind = bpf_map_lookup_elem(&local4, &local);
	if (!kind || *kind != RSP_OWN)
		return 0;
	key.addr = 0;
	return bpf_map_lookup_elem(&listeners4, &key);
}

static __always_inline const struct rsp_listener *rsp_find6(const struct kerb_pkt *pkt,
							    const struct ipv6hdr *ip, __be16 port,
							    __u16 half)
{
	struct rsp_key6 key = {.port = port, .half = half};
	struct rsp_local6 local = {.ifindex = pkt->ifindex};
	const struct rsp_listener *l = 0;
	__u32 *kind;

	__builtin_memcpy(key.addr, &ip->daddr, sizeof(key.addr));
	if (by_address)
		l = bpf_map_lookup_elem(&listeners6, &key);
	if (l || !by_interface)
		return l;
	__builtin_memcpy(local.addr, &ip->daddr, sizeof(local.addr));
	kind = bpf_map_lookup_elem(&local6, &local);
	if (!kind || *kind != RSP_OWN)
		return 0;
	__builtin_memset(key.addr, 0, sizeof(key.addr));
	return bpf_map_lookup_elem(&listeners6, &key);
}

static __always_inline void rsp_ends4(const struct kerb_pkt *pkt, const struct iphdr *ip,
				      struct rsp_ends *e)
{
	struct rsp_local4 local = {.ifindex = pkt->ifindex, .addr = ip->saddr};
	__u32 first = bpf_ntohl(ip->saddr) >> 24;
	__u32 *kind = bpf_map_lookup_elem(&local4, &local);

	e->sum = (__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_UDP);
	e->source = ip->saddr;
	e->same = ip->saddr == ip->daddr;
	e->odd = !first || first == 127 || first >= 224;
	e->kind = kind ? *kind : 0;
}

/* Odd sources are multicast ones and all of ::/64, which has the unspecified, the loopback and
 * IPv4's addresses. */
static __always_inline void rsp_ends6(const struct kerb_pkt *pkt, const struct ipv6hdr *ip,
				      struct rsp_ends *e)
{
	struct rsp_local6 local = {.ifindex = pkt->ifindex};
	const __be32 *s = (const void *)&ip->saddr, *d = (const void *)&ip->daddr;
	__u32 *kind;

	__builtin_memcpy(local.addr, s, sizeof(local.addr));
	kind = bpf_map_lookup_elem(&local6, &local);
	e->sum = (__u64)s[0] + s[1] + s[2] + s[3] + d[0] + d[1] + d[2] + d[3] +
		 bpf_htons(IPPROTO_UDP);
	e->source = (__u64)s[0] << 32 | s[1];
	e->same = s[0] == d[0] && s[1] == d[1] && s[2] == d[2] && s[3] == d[3];
	e->odd = !e->source || (bpf_ntohl(s[0]) >> 24) == 0xff;
	e->kind = kind ? *kind : 0;
}

/* A number below 2048 of which the verifier does not know where it came from. Else it would take
 * each round of a loop that ends with it as knowledge about the request, and follow the rest of the
 * program once for each. */
static __always_inline __u64 rsp_offset(__u64 n)
{
	kerb_bound(n, 0x7ff);
	return n;
}

/* Functions that the verifier checks once, by themselves, and not in every state of their callers:
 * they take numbers and the hook's context only, and are not static. */
#define RSP_GLOBAL __attribute__((noinline))

/* Pointer to len bytes (a constant) at an offset of the frame below 2048, or NULL when it ends
 * before. */
static __always_inline void *rsp_frame_at(kerb_ctx *ctx, __u64 off, __u64 len)
{
	void *p = (void *)kerb_ctx_field(ctx, data), *end = (void *)kerb_ctx_field(ctx, data_end);

	p += rsp_offset(off);
	return p + len > end ? 0 : p;
}

/* Options that an answer may do without: End, No-Operation, Record Route, Timestamp, Router Alert.
 * Not source routes, nor what it does not know. */
RSP_GLOBAL int rsp_ip4_options_harmless(kerb_ctx *ctx, __u32 l3, __u32 end)
{
	__u64 off = l3 + sizeof(struct iphdr);

	for (int i = 0; i < 40; i++) {
		__u8 *option;

		off = rsp_offset(off);
		option = rsp_frame_at(ctx, off, 2); /* a UDP header follows */
		if (off >= end)
			return 1;
		if (!option)
			return 0;
		if (option[0] == 0)
			return 1;
		if (option[0] == 1) {
			off++;
			continue;
		}
		if (option[0] != 7 && option[0] != 68 && option[0] != 148)
			return 0;
		if (option[1] < 2 || off + option[1] > end)
			return 0;
		off += option[1];
	}
	return off >= end;
}

#define RSP_EXT_STEPS 48 /* headers and options that are examined */

/* Extension headers that an answer may do without: hop-by-hop and destination options that say
 * themselves that who does not know them skips them (RFC 8200, 4.2), routing headers that are used
 * up, fragment headers of whole packets (RFC 6946). */
RSP_GLOBAL int rsp_ip6_extensions_harmless(kerb_ctx *ctx, __u32 l3, __u32 l4)
{
	__u64 off = l3 + sizeof(struct ipv6hdr), end = off; /* end of the header that off is in */
	struct ipv6hdr *ip = rsp_frame_at(ctx, l3, sizeof(*ip));
	__u8 next;

	if (!ip)
		return 0;
	next = ip->nexthdr;
	for (int i = 0; i < RSP_EXT_STEPS; i++) {
		__u8 *p;

		off = rsp_offset(off);
		end = rsp_offset(end);
		p = rsp_frame_at(ctx, off, 8);
		if (off > end || !p)
			return 0;
		if (off < end) {
			if (p[0] & 0xc0)
				return 0;
			off += p[0] ? 2 + p[1] : 1;
			continue;
		}
		if (off >= l4)
			return off == l4;
		if (next == IPPROTO_FRAGMENT)
			end = off + 8;
		else
			end = off + (p[1] + 1) * 8;
		if (next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS)
			off += 2;
		else if (next == IPPROTO_FRAGMENT || (next == IPPROTO_ROUTING && !p[3]))
			off = end;
		else
			return 0;
		next = p[0];
	}
	return 0;
}

/* The ones' complement sum of len bytes, at most RSP_MAX_REPLY, at an offset of the frame, in 16
 * bits, as they lie in memory;
 * -1 if the frame ends before. */
RSP_GLOBAL int rsp_sum_frame(kerb_ctx *ctx, __u32 at, __u32 len)
{
	__u64 sum = 0, tail = rsp_offset(len & ~31);
	__u32 *p;

	for (__u64 off = 0; off < RSP_MAX_REPLY; off += 32) {
		if (off >= tail)
			break;
		p = rsp_frame_at(ctx, at + off, 32);
		if (!p)
			return -1;
		sum += (__u64)p[0] + p[1] + p[2] + p[3] + p[4] + p[5] + p[6] + p[7];
	}
	tail += at;
#define RSP_SUM_REST(size, add)                    \
	if (len & size) {                          \
		p = rsp_frame_at(ctx, tail, size); \
		if (!p)                            \
			return -1;                 \
		sum += add;                        \
		tail = rsp_offset(tail + size);    \
	}
	RSP_SUM_REST(16, (__u64)p[0] + p[1] + p[2] + p[3])
	RSP_SUM_REST(8, (__u64)p[0] + p[1])
	RSP_SUM_REST(4, *p)
	RSP_SUM_REST(2, *(__u16 *)p)
	RSP_SUM_REST(1, bpf_htons(*(__u8 *)p << 8))
#undef RSP_SUM_REST
	return kerb_fold(sum);
}

/* Sums the first len bytes of the payload into r->sum; -1 if the frame ends before. */
static __always_inline int rsp_sum(struct rsp_request *r, __u32 len)
{
	int sum = rsp_sum_frame(r->pkt->ctx, r->payload, len);

	r->sum = (__u32)sum;
	return sum < 0 ? -1 : 0;
}

static __always_inline int rsp_ip4_checksum_right(const struct kerb_pkt *pkt,
						  const struct iphdr *ip)
{
	const __u32 *w = (const void *)ip;
	__u64 sum = (__u64)w[0] + w[1] + w[2] + w[3] + w[4], off = pkt->l3 + sizeof(*ip);

	for (int i = 0; i < 10; i++) {
		__u32 *p;

		if (off >= pkt->l4)
			break;
		p = kerb_at(pkt, off, 4);
		if (!p)
			return 0;
		sum += *p;
		off += 4;
	}
	return kerb_fold(sum) == 0xffff;
}

/* Whether a checksum that holds the sum of the pseudo-header alone is one that the sender left to
 * its network card. XDP cannot know: it depends on the interface. On TC the kernel knows: it does
 * not change a partial checksum for a change of payload. */
static __always_inline int rsp_partial(const struct rsp_request *r, struct udphdr *udp)
{
#ifdef KERB_HOOK_TC
	__u16 before = udp->check;

	int rc = bpf_l4_csum_replace(
		r->pkt->ctx, r->pkt->l4 + __builtin_offsetof(struct udphdr, check), 0, 1, 0);

	kerb_reload(r->pkt);
	if (rc)
		return 0;
	udp = kerb_at(r->pkt, r->pkt->l4, sizeof(*udp));
	if (!udp)
		return 0;
	if (udp->check == before)
		return r->listener->partial != RSP_PARTIAL_PASS;
	udp->check = before;
	return 0;
#else
	struct rsp_local4 key = {.ifindex = r->pkt->ifindex};
	__u32 *kind;

	if (r->listener->partial != RSP_PARTIAL_VIRTUAL)
		return r->listener->partial;
	kind = bpf_map_lookup_elem(&local4, &key);
	return kind && *kind == RSP_VIRTUAL;
#endif
}

/* None is allowed on IPv4 only. */
static __always_inline int rsp_checksum_right(const struct rsp_request *r, const struct rsp_ends *e,
					      struct udphdr *udp)
{
	__u64 sum = e->sum + udp->len;

	if (!udp->check)
		return r->pkt->family == 4;
	if (kerb_fold(sum + udp->len + udp->source + udp->dest + udp->check + r->sum) == 0xffff)
		return 1;
	return udp->check == kerb_fold(sum) && rsp_partial(r, udp);
}

#endif
