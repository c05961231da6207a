/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answering UDP requests in the kernel: the packet of a request becomes that of its reply.
 *
 *	KERB_INGRESS(pkt)
 *	{
 *		struct udphdr *udp = kerb_udp(pkt);
 *		struct kerb_request r;
 *		struct answer answer = {};
 *		struct question *q;
 *
 *		if (!udp || udp->dest != bpf_htons(port))
 *			return KERB_NEXT;
 *		kerb_forget(pkt);
 *		if (kerb_request_read(&r, pkt, udp) || kerb_request_verify(&r))
 *			return KERB_NEXT;
 *		q = kerb_request_at(&r, 0, sizeof(*q));
 *		if (!q || r.len != sizeof(*q))
 *			return KERB_NEXT;
 *		...
 *		if (kerb_reply_amplifies(&r, sizeof(answer), 1) ||
 *		    !kerb_reply_fits(&r, sizeof(answer)))
 *			return KERB_NEXT;
 *		if (kerb_reply_begin(&r, sizeof(answer)) ||
 *		    kerb_reply_store(&r, 0, &answer, sizeof(answer)))
 *			return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
 *		return kerb_reply_finish(&r);
 *	}
 *
 * kerb.yaml has `replies: true`. The functions are called in this order. Up to kerb_reply_begin the
 * packet is unchanged: with KERB_NEXT the program on the port answers it. Offsets and lengths
 * are bytes, of the payload unless something else is stated. The payload is in the byte order of
 * its sender, headers are in network byte order. kerb_request_verify, kerb_reply_begin, _store and
 * _finish invalidate pointers into the packet.
 *
 * A reply leaves by the interface that its request came from: addresses and ports swapped, no
 * IPv4 options or IPv6 extension headers, traffic class 0, hop limit 64. On XDP its UDP checksum is
 * complete. On TC it is what the request's is: complete, partial (the kernel or a card completes
 * it), or none (0, IPv4 only).
 * The source of a request may be forged. A reply that is longer than its request makes the service
 * an amplifier, and replies need a rate limit by source (kerb_request.source) where any host may
 * send. Sources that are this node or a broadcast address of its networks are not recognised here.
 *
 * Ethernet only. Linux 5.10 and newer. */
#ifndef KERB_RESPOND_H
#define KERB_RESPOND_H

#include <kerb/request.h>

#define KERB_REPLY_HOP_LIMIT 64
/* shorter frames are padded by the sender's network card: a padded request stays padded */
#define KERB_FRAME_MIN	     60
/* every IPv6 link supports this MTU (RFC 8200, 5): for kernels that do not return the MTU */
#define KERB_IPV6_MIN_MTU    1280

static __always_inline __u32 kerb_ip_len(const struct kerb_pkt *pkt)
{
	return pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* Returns whether a reply of len bytes fits the MTU of the interface; before Linux 5.12,
 * KERB_IPV6_MIN_MTU. A reply that is not longer than the request always fits. */
static __always_inline int kerb_reply_fits(const struct kerb_request *r, __u32 len)
{
	__u64 mtu = 0; /* of 32 bits: as kerb_key32 */

	if (len > KERB_REPLY_MAX)
		return 0;
	if (len <= r->len)
		return 1;
	if (KERB_HAS(check_mtu)) /* Linux 5.12 */
		return !bpf_check_mtu(r->pkt->ctx, 0, (__u32 *)&mtu, len - r->len, 0);
	return kerb_ip_len(r->pkt) + sizeof(struct udphdr) + len <= KERB_IPV6_MIN_MTU;
}

/* Returns whether len bytes of payload plus headers are more than `times` the asked bytes, which
 * include the IP header. Global, as comparisons in the caller would add bounds that prevent the
 * verifier from pruning states. */
KERB_GLOBAL int kerb_exceeds(__u32 len, __u32 family, __u32 asked, __u32 times)
{
	__u32 headers = (family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
			sizeof(struct udphdr);

	return times && headers + (__u64)len > (__u64)times * asked;
}

/* Returns whether a reply of len bytes has more than times (0: any) the bytes of its request, IP
 * headers included: the amplification for a sender with a forged source. */
static __always_inline int kerb_reply_amplifies(const struct kerb_request *r, __u32 len,
						__u32 times)
{
	return kerb_exceeds(len, r->pkt->family, (__u32)(r->payload - r->pkt->l3) + r->len, times);
}

/* Length of the frame with the reply, while options are still in it. */
static __always_inline __u32 kerb_reply_frame_len(const struct kerb_request *r)
{
	__u32 len = r->payload + r->reply_len, now = r->pkt->len;

	if (len < now && len < KERB_FRAME_MIN)
		return now < KERB_FRAME_MIN ? now : KERB_FRAME_MIN;
	return len;
}

/* Removes the options, and gives the frame the length of a reply of len bytes. The payload is still
 * the request's, and added bytes are undefined: write everything that differs. Returns 0; -ENOMEM
 * if the packet is unchanged and may pass; or another negative errno if it must be dropped. */
static __always_inline int kerb_reply_begin(struct kerb_request *r, __u32 len)
{
	struct kerb_pkt *pkt = r->pkt;
	__u32 frame;

	r->reply_len = len;
	r->reply_sum = r->sum;
	frame = kerb_reply_frame_len(r);
	if (frame != pkt->len && kerb_set_len(pkt, frame))
		return -ENOMEM;
	if (pkt->l4 == pkt->l3 + kerb_ip_len(pkt))
		return 0;
	if (kerb_remove_options(pkt))
		return -EFAULT;
	r->payload = pkt->l4 + sizeof(struct udphdr);
	return 0;
}

/* Writes len bytes (a constant) at an offset of the reply. Returns 0, or a negative errno: drop the
 * packet then. */
static __always_inline int kerb_reply_store(struct kerb_request *r, __u32 off, const void *from,
					    __u32 len)
{
	return kerb_store_bytes(r->pkt, r->payload + off, from, len);
}

/* Rewrites the IP header: no options, a new TTL, the type of service cleared, and never fragmented.
 * Addresses are swapped. An IPv4 header that is valid before and after adds nothing to
 * CHECKSUM_COMPLETE, and neither does a swap. */
static __always_inline int kerb_reply_ip4_header(struct kerb_pkt *pkt, __u32 udp_len)
{
	struct iphdr *ip = kerb_ip4(pkt);
	__u32 addr;
	__be16 *w = (void *)ip;

	if (!ip)
		return -1;
	w[0] = bpf_htons(0x4500);
	w[1] = bpf_htons(sizeof(*ip) + udp_len);
	w[2] = 0;
	w[3] = bpf_htons(0x4000); /* don't fragment */
	w[4] = bpf_htons(KERB_REPLY_HOP_LIMIT << 8 | IPPROTO_UDP);
	addr = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = addr;
	ip->check = ~kerb_fold((__u64)w[0] + w[1] + w[3] + w[4] + ip->saddr + ip->daddr);
	return 0;
}

static __always_inline int kerb_reply_ip6_header(struct kerb_pkt *pkt, __u32 udp_len)
{
	__be16 w[4] = { bpf_htons(0x6000), 0, bpf_htons(udp_len),
			bpf_htons(IPPROTO_UDP << 8 | KERB_REPLY_HOP_LIMIT) };

	return kerb_store_bytes(pkt, pkt->l3, w, sizeof(w)) ?: kerb_swap_ips(pkt);
}

#ifdef KERB_HOOK_XDP

/* The checksum is computed as a whole: the request's may have been partial. */
static __always_inline int kerb_reply_udp_header(struct kerb_request *r)
{
	__be16 len = bpf_htons(sizeof(struct udphdr) + r->reply_len);
	struct udphdr *udp = kerb_at(r->pkt, r->pkt->l4, sizeof(*udp));
	__be16 port;
	__u16 check;

	if (!udp)
		return -1;
	port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = len;
	check = ~kerb_fold(r->pseudo + udp->source + udp->dest + len + len + r->reply_sum);
	udp->check = check ? check : 0xffff;
	return 0;
}

#else

/* The kernel knows whether the checksum is partial or complete, and the helpers preserve that. A
 * packet without a checksum stays without one. */
static __always_inline int kerb_reply_udp_header(struct kerb_request *r)
{
	__be16 to = bpf_htons(sizeof(struct udphdr) + r->reply_len), from;
	struct udphdr *udp = kerb_at(r->pkt, r->pkt->l4, sizeof(*udp));
	__u64 diff, length;

	if (!udp)
		return -1;
	from = udp->len;
	length = kerb_diff16(from, to);
	diff = r->reply_sum + (__u16)~kerb_fold(r->sum);
	if (kerb_swap_ports(r->pkt))
		return -1;
	if (from != to &&
	    (kerb_store_bytes(r->pkt, r->pkt->l4 + __builtin_offsetof(struct udphdr, len), &to,
			      sizeof(to)) ||
	     kerb_fix_l4(r->pkt, length, 1)))
		return -1;
	return kerb_fix_l4(r->pkt, diff + length, 0);
}

#endif

/* Sums up the payload of the reply after it was written; -1 if the frame ends before. */
static __always_inline int kerb_reply_sum(struct kerb_request *r)
{
	int sum = kerb_sum_frame(r->pkt->ctx, r->payload, r->reply_len);

	r->reply_sum = (__u32)sum;
	return sum < 0 ? -1 : 0;
}

/* Swaps addresses and ports, and sets lengths, and checksums from reply_sum. Returns 0, or -1: drop
 * the packet then. */
static __always_inline int kerb_reply_turn(struct kerb_request *r)
{
	__u32 udp_len = sizeof(struct udphdr) + r->reply_len;
	struct kerb_pkt *pkt = r->pkt;

	if (kerb_swap_macs(pkt))
		return -1;
	if (pkt->family == 4 ? kerb_reply_ip4_header(pkt, udp_len)
			     : kerb_reply_ip6_header(pkt, udp_len))
		return -1;
	return kerb_reply_udp_header(r);
}

/* Completes the reply, and returns the verdict: KERB_REPLY, or KERB_DROP with reason no_memory. */
static __always_inline int kerb_reply_finish(struct kerb_request *r)
{
	if (kerb_reply_sum(r) || kerb_reply_turn(r))
		return kerb_drop(r->pkt, KERB_DROP_NO_MEMORY);
	return KERB_REPLY;
}

#endif
