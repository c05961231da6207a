/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reading a packet for a trace: headers, first bytes, and the key by which the next chain of this
 * node recognizes it. */
#ifndef KERB_CHAIN_TRACE_READ_H
#define KERB_CHAIN_TRACE_READ_H

#include <kerb/trace.h>

/* The most bytes of a packet in a trace: enough for the headers of a tunnel and of the packet in
 * it. */
#define KERB_TRACE_BYTES 256

/* Offsets and kind of the packet in one number, for kerb_trace_event, which takes scalars only. */
union trace_where {
	struct {
		__u16 l3, l4;
		__u8 family, proto, flags, outcome;
	};
	__u64 all;
};

/* Reads the present IP header, which a module may have changed. Returns the offset of the transport
 * header: l4 if the kind of the packet is unchanged, otherwise computed; 0: none. */
static __always_inline __u32 trace_read_ip(const void *data, const void *end, union trace_where w,
					   __u32 l4, struct kerb_trace_event *e)
{
	const void *l3 = data + (w.l3 & KERB_MAX_HDRS);
	const struct ipv6hdr *ip6 = l3;
	const struct iphdr *ip4 = l3;

	if (!w.family || l3 + sizeof(*ip4) > end)
		return 0;
	if (ip4->version == 4) {
		e->family = 4;
		e->proto = ip4->protocol;
		__builtin_memcpy(e->saddr, &ip4->saddr, 4);
		__builtin_memcpy(e->daddr, &ip4->daddr, 4);
		if (ip4->frag_off & bpf_htons(0x1fff))
			return 0;
		return w.family == 4 && w.proto == e->proto ? l4 : w.l3 + ip4->ihl * 4;
	}
	if (ip4->version != 6 || l3 + sizeof(*ip6) > end)
		return 0;
	e->family = 6;
	e->proto = w.family == 6 ? w.proto : ip6->nexthdr;
	__builtin_memcpy(e->saddr, &ip6->saddr, 16);
	__builtin_memcpy(e->daddr, &ip6->daddr, 16);
	return w.family == 6 ? l4 : w.l3 + sizeof(*ip6);
}

static __always_inline void trace_read_l4(const void *data, const void *end, __u32 off,
					  struct kerb_trace_event *e)
{
	const void *l4 = data + (off & KERB_MAX_HDRS);
	const __u8 *byte = l4;

	if (!off || l4 + 8 > end)
		return;
	if (e->proto == IPPROTO_ICMP || e->proto == IPPROTO_ICMPV6) {
		e->icmp_type = byte[0];
		e->icmp_code = byte[1];
	}
	if (e->proto != IPPROTO_TCP && e->proto != IPPROTO_UDP)
		return;
	e->sport = bpf_ntohs(*(__u16 *)l4);
	e->dport = bpf_ntohs(*(__u16 *)(l4 + 2));
	if (e->proto == IPPROTO_TCP && l4 + 14 <= end)
		e->tcp_flags = byte[13];
}

static __always_inline __u64 trace_mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

#define KERB_KEY_PAYLOAD 48 /* bytes; in a tunnel up to the inner TCP header */

/* Returns the length of the IP packet by its header, without the padding of a short frame. */
static __always_inline __u32 trace_ip_length(const void *l3, const void *end,
					     const struct kerb_trace_event *e)
{
	const struct ipv6hdr *ip6 = l3;
	const struct iphdr *ip4 = l3;

	if (e->family == 4 && (const void *)(ip4 + 1) <= end)
		return bpf_ntohs(ip4->tot_len);
	if (e->family == 6 && (const void *)(ip6 + 1) <= end)
		return sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
	return 0;
}

/* Returns a hash that identifies a packet in flight, on this node and on others, or 0: of its
 * present addresses and ports, and of fields that neither forwarding nor offloads change, so not of
 * checksums. off: offset of the transport header, or 0. */
static __always_inline __u64 trace_key(const void *data, const void *end, union trace_where w,
				       __u32 off, const struct kerb_trace_event *e)
{
	const struct iphdr *ip4 = data + (w.l3 & KERB_MAX_HDRS);
	const __u64 *s = (const void *)e->saddr, *d = (const void *)e->daddr;
	const void *l4 = data + (off & KERB_MAX_HDRS);
	__u32 last = (w.l3 & KERB_MAX_HDRS) + trace_ip_length(ip4, end, e);
	__u64 hash = (__u64)e->proto << 32 | (__u32)e->sport << 16 | e->dport;

	if (!e->family || (e->family != 4 && !off))
		return 0;
	hash = trace_mix(trace_mix(hash, s[0]), s[1]);
	hash = trace_mix(trace_mix(hash, d[0]), d[1]);
	if (e->family == 4 && (const void *)(ip4 + 1) <= end)
		hash = trace_mix(hash, (__u32)ip4->id << 16 | (ip4->frag_off & bpf_htons(0x3fff)));
	if (!off || l4 + 8 > end)
		return hash | 1;
	if (e->proto == IPPROTO_UDP)
		hash = trace_mix(hash, *(const __u16 *)(l4 + 4)); /* length */
	else
		hash = trace_mix(hash, *(const __u32 *)(l4 + 4)); /* sequence number, identifier */
	if (e->proto == IPPROTO_TCP)
		return (l4 + 12 > end ? hash : trace_mix(hash, *(const __u32 *)(l4 + 8))) | 1;
#pragma clang loop unroll(full)
	for (__u32 i = 8; i < 8 + KERB_KEY_PAYLOAD; i += 8)
		if (off + i + 8 <= last && l4 + i + 8 <= end)
			hash = trace_mix(hash, *(const __u64 *)(l4 + i));
	return hash | 1;
}

/* Copies the first bytes of the packet and returns their number. No bpf_xdp_load_bytes, which is of
 * Linux 5.18. */
static __always_inline __u32 trace_read_bytes(kerb_ctx *ctx, __u8 *to, const __u8 *data,
					      const void *end, __u32 length, __u32 wanted)
{
	__u32 n = length < wanted ? length : wanted;

	if (n == 0 || n > KERB_TRACE_BYTES)
		return 0;
#ifdef KERB_HOOK_XDP
	for (__u32 i = 0; i < KERB_TRACE_BYTES; i++) {
		if (i >= n || (const void *)(data + i + 1) > end)
			return i;
		to[i] = data[i];
	}
	return n;
#else
	n--;
	kerb_bound(n, KERB_TRACE_BYTES - 1); /* a power of two less one */
	return bpf_skb_load_bytes(ctx, 0, to, n + 1) ? 0 : n + 1;
#endif
}

#endif
