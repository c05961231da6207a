/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changing a packet, the same on XDP and TC. Every setter keeps the checksums right, incrementally
 * (RFC 1624): the IPv4 header's and, in whole packets and first fragments, those of TCP, UDP and
 * ICMPv6. A UDP checksum of 0 (none) stays 0, and none becomes 0. Functions return 0 or a negative
 * errno; after an error the packet may be half changed: drop it.
 *
 * They end the validity of pointers from kerb_ip4() and the like: fetch them again.
 *
 * On TC the kernel knows whether a checksum is complete, still to be computed by the device
 * (CHECKSUM_PARTIAL), or summed up by it (CHECKSUM_COMPLETE), and the helpers used here keep to
 * that. XDP cannot know: a packet from a veth whose peer offloads checksums carries a partial one,
 * and must not be changed there.
 *
 * Not handled: the destination of a packet with a routing header that is not used up (its
 * pseudo-header holds another address), and transports with a pseudo-header other than TCP, UDP and
 * ICMPv6 (UDP-Lite, DCCP). */
#ifndef KERB_REWRITE_H
#define KERB_REWRITE_H

#include <linux/errno.h>
#include <linux/in6.h>
#include <bpf/bpf_core_read.h>
#include <kerb/checksum.h>

#define KERB_MAX_ROOM 256 /* bytes that kerb_adjust_room adds or takes at once */

/* Nanoseconds since boot, from the coarse clock if the kernel has it (Linux 5.11): accurate to a
 * timer tick, 1 to 10 ms. */
static __always_inline __u64 kerb_now(void)
{
	if (KERB_HAS(ktime_get_coarse_ns))
		return bpf_ktime_get_coarse_ns();
	return bpf_ktime_get_ns();
}

static __always_inline int kerb_set_ip4(struct kerb_pkt *pkt, __u32 field, __be32 to)
{
	struct iphdr *ip = kerb_ip4(pkt);
	__be32 *addr;
	__u64 diff;

	if (!ip)
		return -EINVAL;
	addr = (void *)ip + field;
	diff = kerb_diff32(*addr, to);
	*addr = to;
	ip->check = kerb_csum(ip->check, diff);
	return kerb_fix_l4(pkt, diff, 1);
}

/* Set IPv4 addresses. -EINVAL if the packet is not IPv4. */
static __always_inline int kerb_set_ip4_saddr(struct kerb_pkt *pkt, __be32 to)
{
	return kerb_set_ip4(pkt, __builtin_offsetof(struct iphdr, saddr), to);
}

static __always_inline int kerb_set_ip4_daddr(struct kerb_pkt *pkt, __be32 to)
{
	return kerb_set_ip4(pkt, __builtin_offsetof(struct iphdr, daddr), to);
}

/* The IPv6 header has no checksum: on TC the stored bytes are added to CHECKSUM_COMPLETE, from
 * which bpf_l4_csum_replace subtracts them again. */
static __always_inline int kerb_set_ip6(struct kerb_pkt *pkt, __u32 field,
					const struct in6_addr *to)
{
	struct ipv6hdr *ip = kerb_ip6(pkt);
	struct in6_addr *addr;
	__u64 diff = 0;
	int rc;

	if (!ip)
		return -EINVAL;
	addr = (void *)ip + field;
#pragma unroll
	for (int i = 0; i < 4; i++)
		diff += kerb_diff32(addr->in6_u.u6_addr32[i], to->in6_u.u6_addr32[i]);
	rc = kerb_store_bytes(pkt, pkt->l3 + field, to, sizeof(*to));
	return rc ?: kerb_fix_l4(pkt, diff, 1);
}

/* Set IPv6 addresses. -EINVAL if the packet is not IPv6. */
static __always_inline int kerb_set_ip6_saddr(struct kerb_pkt *pkt, const struct in6_addr *to)
{
	return kerb_set_ip6(pkt, __builtin_offsetof(struct ipv6hdr, saddr), to);
}

static __always_inline int kerb_set_ip6_daddr(struct kerb_pkt *pkt, const struct in6_addr *to)
{
	return kerb_set_ip6(pkt, __builtin_offsetof(struct ipv6hdr, daddr), to);
}

/* The source and destination ports of TCP and UDP, or NULL. */
static __always_inline __be16 *kerb_ports(const struct kerb_pkt *pkt)
{
	if (!(pkt->flags & KERB_F_L4) || (pkt->proto != IPPROTO_TCP && pkt->proto != IPPROTO_UDP))
		return 0;
	return kerb_at(pkt, pkt->l4, 2 * sizeof(__be16));
}

static __always_inline int kerb_set_port(struct kerb_pkt *pkt, __u32 which, __be16 to)
{
	__be16 *ports = kerb_ports(pkt);
	__u64 diff;

	if (!ports)
		return -EINVAL;
	diff = kerb_diff16(ports[which], to);
	ports[which] = to;
	return kerb_fix_l4(pkt, diff, 0);
}

/* Set ports of TCP and UDP. -EINVAL if the packet has none (later fragments for example). */
static __always_inline int kerb_set_sport(struct kerb_pkt *pkt, __be16 to)
{
	return kerb_set_port(pkt, 0, to);
}

static __always_inline int kerb_set_dport(struct kerb_pkt *pkt, __be16 to)
{
	return kerb_set_port(pkt, 1, to);
}

/* Sets the TTL or hop limit. */
static __always_inline int kerb_set_ttl(struct kerb_pkt *pkt, __u8 ttl)
{
	struct iphdr *ip = kerb_ip4(pkt);
	__be16 from;

	if (!ip)
		return pkt->family == 6
			       ? kerb_store_bytes(
					 pkt,
					 pkt->l3 + __builtin_offsetof(struct ipv6hdr, hop_limit),
					 &ttl, 1)
			       : -EINVAL;
	from = bpf_htons(ip->ttl << 8);
	ip->ttl = ttl;
	ip->check = kerb_csum(ip->check, kerb_diff16(from, bpf_htons(ttl << 8)));
	return 0;
}

/* Returns the TTL or hop limit, or -EINVAL. */
static __always_inline int kerb_ttl(const struct kerb_pkt *pkt)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6;

	if (ip4)
		return ip4->ttl;
	ip6 = kerb_ip6(pkt);
	return ip6 ? ip6->hop_limit : -EINVAL;
}

/* Decrements the TTL or hop limit, as a router does. Returns -ETIME if it is used up: the packet is
 * unchanged and must not continue. */
static __always_inline int kerb_decrement_ttl(struct kerb_pkt *pkt)
{
	int ttl = kerb_ttl(pkt);

	if (ttl < 0)
		return ttl;
	return ttl > 1 ? kerb_set_ttl(pkt, ttl - 1) : -ETIME;
}

/* For replies: swap source and destination. Sums do not depend on the order, so no checksum
 * changes. */
static __always_inline int kerb_swap_macs(struct kerb_pkt *pkt)
{
	/* words, as struct ethhdr is packed: memcpy() would copy single bytes */
	__u16 *w = kerb_at(pkt, 0, sizeof(struct ethhdr));

	if (!w)
		return -EINVAL;
#pragma unroll
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		__u16 dest = w[i];

		w[i] = w[i + ETH_ALEN / 2];
		w[i + ETH_ALEN / 2] = dest;
	}
	return 0;
}

static __always_inline int kerb_swap_ips(struct kerb_pkt *pkt)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6;

	if (ip4) {
		__be32 addr = ip4->saddr;

		ip4->saddr = ip4->daddr;
		ip4->daddr = addr;
		return 0;
	}
	ip6 = kerb_ip6(pkt);
	if (!ip6)
		return -EINVAL;
	struct in6_addr addr = ip6->saddr;

	ip6->saddr = ip6->daddr;
	ip6->daddr = addr;
	return 0;
}

/* TCP and UDP. */
static __always_inline int kerb_swap_ports(struct kerb_pkt *pkt)
{
	__be16 *ports = kerb_ports(pkt), port;

	if (!ports)
		return -EINVAL;
	port = ports[0];
	ports[0] = ports[1];
	ports[1] = port;
	return 0;
}

/* Offset of the bytes after the transport header (or after the IP headers, if there is none). */
static __always_inline __u32 kerb_payload(const struct kerb_pkt *pkt)
{
	struct tcphdr *tcp = kerb_tcp(pkt);

	if (tcp)
		return pkt->l4 + tcp->doff * 4;
	/* ICMP's header has 8 bytes too */
	return pkt->flags & KERB_F_L4 ? pkt->l4 + sizeof(struct udphdr) : pkt->l4;
}

/* Number of bytes from there to the end of the UDP datagram, or of the IP datagram if it is not
 * UDP. */
static __always_inline __u32 kerb_payload_len(const struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	__u32 len = pkt->l4_len;

	if (udp && udp->len && bpf_ntohs(udp->len) < len)
		len = bpf_ntohs(udp->len);
	return len - (kerb_payload(pkt) - (__u32)pkt->l4);
}

/* Parses again after headers have been added or removed. Returns the new outcome. Never inlined: it
 * is long. Headers are pulled before parsing, and not after a parser that missed some, as in
 * kerb_parse: an inlined parser is thus walked once by the verifier. */
static __attribute__((noinline, unused)) int kerb_reparse(struct kerb_pkt *pkt)
{
	__u32 tags = 0;

#ifdef KERB_HOOK_XDP
	pkt->vlan = 0;
#else
	tags = kerb_ctx_field(pkt->ctx, vlan_present) & 1;
	/* Without a branch, which would make the verifier walk the whole parser twice. */
	kerb_opaque(tags);
	pkt->vlan = kerb_ctx_field(pkt->ctx, vlan_tci) & -tags;
#endif
	if (kerb_parse_plain(pkt))
		return KERB_PARSE_OK;
#if !defined(KERB_HOOK_XDP) || defined(KERB_XDP_FRAGS)
	if (pkt->data + KERB_PULL_LEN > pkt->data_end && pkt->data + pkt->len > pkt->data_end)
		kerb_pull(pkt);
	kerb_reload(pkt);
#endif
	return kerb_parse_stages(pkt, tags);
}

#ifdef KERB_HOOK_XDP

/* Moves the link header, including up to two VLAN tags, by delta bytes, from offset from to offset
 * to. */
static __always_inline int kerb_move_l2(struct kerb_pkt *pkt, __u64 to, __u64 from)
{
	__u8 l2[ETH_HLEN + KERB_VLAN_DEPTH * sizeof(struct kerb_vlan_hdr)];

#define KERB_MOVE_L2(size)                                                       \
	if (pkt->l3 == (size)) {                                                 \
		void *a = kerb_at(pkt, from, size), *b = kerb_at(pkt, to, size); \
		if (!a || !b)                                                    \
			return -EFAULT;                                          \
		__builtin_memcpy(l2, a, size);                                   \
		__builtin_memcpy(b, l2, size);                                   \
		return 0;                                                        \
	}
	KERB_MOVE_L2(ETH_HLEN)
	KERB_MOVE_L2(ETH_HLEN + sizeof(struct kerb_vlan_hdr))
	KERB_MOVE_L2(ETH_HLEN + 2 * sizeof(struct kerb_vlan_hdr))
#undef KERB_MOVE_L2
	return -EINVAL;
}

/* Inserts delta bytes between the link header and the IP header, or removes -delta bytes. |delta|
 * is at most KERB_MAX_ROOM. flags: BPF_F_ADJ_ROOM_*, used only on TC (which needs
 * BPF_F_ADJ_ROOM_ENCAP_* to segment tunnelled packets correctly). The new bytes are undefined:
 * write all of them with kerb_store_bytes at pkt->l3, then call kerb_reparse(); until then family
 * is 0. TC refuses frames with a VLAN tag in their bytes. */
static __always_inline int kerb_adjust_room(struct kerb_pkt *pkt, __s32 delta, __u64 flags)
{
	int rc;

	if (delta > KERB_MAX_ROOM || delta < -KERB_MAX_ROOM)
		return -EINVAL;
	if (delta < 0) {
		rc = pkt->l3 - delta > pkt->len ? -EINVAL : kerb_move_l2(pkt, -delta, 0);
		if (rc)
			return rc;
	}
	rc = bpf_xdp_adjust_head(pkt->ctx, -delta);
	kerb_reload(pkt);
	if (rc)
		return rc;
	pkt->len += delta;
	pkt->family = 0;
	pkt->flags = 0;
	return delta > 0 ? kerb_move_l2(pkt, 0, delta) : 0;
}

#else

static __always_inline int kerb_adjust_room(struct kerb_pkt *pkt, __s32 delta, __u64 flags)
{
	int rc;

	if (delta > KERB_MAX_ROOM || delta < -KERB_MAX_ROOM)
		return -EINVAL;
	rc = bpf_skb_adjust_room(pkt->ctx, delta, BPF_ADJ_ROOM_MAC, flags);
	kerb_reload(pkt);
	if (rc)
		return rc;
	pkt->len = kerb_ctx_field(pkt->ctx, len);
	pkt->family = 0;
	pkt->flags = 0;
	return 0;
}

#endif

/* Changes the length of the frame at its end: new bytes are zero on XDP, undefined on TC. The
 * caller adapts the headers. After an error nothing has changed. */
static __always_inline int kerb_set_len(struct kerb_pkt *pkt, __u32 len)
{
#ifdef KERB_HOOK_XDP
	int rc = bpf_xdp_adjust_tail(pkt->ctx, (int)(len - pkt->len));
#else
	int rc = bpf_skb_change_tail(pkt->ctx, len, 0);
#endif

	kerb_reload(pkt);
	if (!rc)
		pkt->len = len;
	return rc;
}

/* Removes the bytes between the fixed IP header and l4: IPv4 options, IPv6 extension headers. The
 * IP header is unchanged: the caller updates its length, checksum and next header. TC refuses
 * frames with a VLAN tag in their bytes. */
static __attribute__((noinline, unused)) int kerb_remove_options(struct kerb_pkt *pkt)
{
	__u64 head = pkt->l3 + (pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u64 gap = pkt->l4 - head;
	int rc;

#ifdef KERB_HOOK_XDP
	__u64 at = head; /* from the end, because both overlap */

	/* The verifier must not learn the header's length from the loop, and follow the subsequent
	 * code once for each length. */
	kerb_bound(at, 0xff);
#pragma clang loop unroll(disable)
	for (int i = 0; i < (ETH_HLEN + KERB_VLAN_DEPTH * sizeof(struct kerb_vlan_hdr) +
			     sizeof(struct ipv6hdr)) /
				    2;
	     i++) {
		__be16 *from, *to;

		if (at < 2)
			break;
		at -= 2;
		from = kerb_at(pkt, at, sizeof(*from));
		to = kerb_at(pkt, at + gap, sizeof(*to));
		if (!from || !to)
			return -EFAULT;
		*to = *from;
	}
	rc = bpf_xdp_adjust_head(pkt->ctx, gap);
#else
	rc = bpf_skb_adjust_room(pkt->ctx, -(__s32)gap, BPF_ADJ_ROOM_NET, 0);
#endif
	kerb_reload(pkt);
	if (rc)
		return rc;
	pkt->l4 = head;
	pkt->len -= gap;
	pkt->flags &= ~(KERB_F_OPTIONS | KERB_F_EXT);
	return 0;
}

static __always_inline __u32 kerb_rol(__u32 x, int n)
{
	return x << n | x >> (32 - n);
}

/* Bob Jenkins' lookup3, as in the kernel's jhash: mixing and the last step. */
#define KERB_JHASH_MIX(a, b, c)       \
	do {                          \
		a -= c;               \
		a ^= kerb_rol(c, 4);  \
		c += b;               \
		b -= a;               \
		b ^= kerb_rol(a, 6);  \
		a += c;               \
		c -= b;               \
		c ^= kerb_rol(b, 8);  \
		b += a;               \
		a -= c;               \
		a ^= kerb_rol(c, 16); \
		c += b;               \
		b -= a;               \
		b ^= kerb_rol(a, 19); \
		a += c;               \
		c -= b;               \
		c ^= kerb_rol(b, 4);  \
		b += a;               \
	} while (0)

#define KERB_JHASH_FINAL(a, b, c)     \
	do {                          \
		c ^= b;               \
		c -= kerb_rol(b, 14); \
		a ^= c;               \
		a -= kerb_rol(c, 11); \
		b ^= a;               \
		b -= kerb_rol(a, 25); \
		c ^= b;               \
		c -= kerb_rol(b, 16); \
		a ^= c;               \
		a -= kerb_rol(c, 4);  \
		b ^= a;               \
		b -= kerb_rol(a, 14); \
		c ^= b;               \
		c -= kerb_rol(b, 24); \
	} while (0)

/* Hash of addresses, protocol and ports in one direction. All fragments of a datagram have the same
 * hash: they count as having no ports. 0 if the packet is not IP. The words are hashed in packet
 * byte order as the kernel's jhash2 does: addresses, ports, protocol, and for IPv4 nothing else;
 * seed replaces initval. */
static __always_inline __u32 kerb_hash(const struct kerb_pkt *pkt, __u32 seed)
{
	struct ipv6hdr *ip6 = kerb_ip6(pkt);
	struct iphdr *ip4 = kerb_ip4(pkt);
	__u32 a, b, c, ports = 0;
	__be16 *port = pkt->flags & KERB_F_FRAG ? 0 : kerb_ports(pkt);

	if (port)
		ports = *(__u32 *)port;
	if (ip4) {
		a = b = c = 0xdeadbeef + (4 << 2) + seed;
		a += ip4->saddr;
		b += ip4->daddr;
		c += ports;
		KERB_JHASH_MIX(a, b, c);
	} else if (ip6) {
		__u32 *w = (__u32 *)&ip6->saddr;

		a = b = c = 0xdeadbeef + (10 << 2) + seed;
#pragma unroll
		for (int i = 0; i < 9; i += 3) {
			a += w[i];
			b += w[i + 1];
			c += i < 6 ? w[i + 2] : ports;
			KERB_JHASH_MIX(a, b, c);
		}
	} else {
		return 0;
	}
	a += pkt->proto;
	KERB_JHASH_FINAL(a, b, c);
	return c;
}

#endif
