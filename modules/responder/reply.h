/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Makes the request's packet the reply's. */
#ifndef RSP_REPLY_H
#define RSP_REPLY_H

#include "check.h"

#define RSP_HOP_LIMIT 64
/* shorter frames are padded by the sender's card: a padded request stays so */
#define RSP_MIN_FRAME 60
/* every IPv6 link carries that much: for kernels that do not tell the MTU */
#define RSP_SURE_MTU  1280

static __always_inline __u32 rsp_ip_len(const struct kerb_pkt *pkt)
{
	return pkt->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* Whether a reply fits what leaves here: as long as the request does at any rate. */
static __always_inline int rsp_fits(const struct rsp_request *r)
{
	__u32 mtu = 0, grow;

	if (r->reply_len > r->listener->max_reply || r->reply_len > RSP_MAX_REPLY)
		return 0;
	if (r->reply_len <= r->len)
		return 1;
	grow = r->reply_len - r->len;
	if (KERB_HAS(check_mtu)) /* Linux 5.12 */
		return !bpf_check_mtu(r->pkt->ctx, 0, &mtu, grow, 0);
	return rsp_ip_len(r->pkt) + sizeof(struct udphdr) + r->reply_len <= RSP_SURE_MTU;
}

/* Length of the frame with the reply, as long as options are still there. */
static __always_inline __u32 rsp_frame_len(const struct rsp_request *r)
{
	__u32 len = r->payload + r->reply_len, now = r->pkt->len;

	if (len < now && len < RSP_MIN_FRAME)
		return now < RSP_MIN_FRAME ? now : RSP_MIN_FRAME;
	return len;
}

#ifdef KERB_HOOK_XDP

/* Copies size bytes (a constant) from the scratch buffer into the packet. */
#define RSP_COPY(at, from, size)                         \
	do {                                             \
		void *_to = rsp_frame_at(ctx, at, size); \
		if (!_to)                                \
			return -1;                       \
		__builtin_memcpy(_to, from, size);       \
	} while (0)

#else
#define RSP_COPY(at, from, size)
#endif

/* Copies a reply of len bytes from the scratch buffer to an offset of the frame, and sums it: as
 * rsp_sum_frame() does. */
RSP_GLOBAL int rsp_copy_frame(kerb_ctx *ctx, __u32 at, __u32 len)
{
	struct rsp_scratch *from = rsp_scratch();
	__u64 sum = 0, tail = rsp_offset(len & ~31);

	if (!from)
		return -1;
	for (__u64 off = 0; off < RSP_MAX_REPLY; off += 32) {
		__u32 *w = (__u32 *)(from->data + off);

		if (off >= tail)
			break;
		sum += (__u64)w[0] + w[1] + w[2] + w[3] + w[4] + w[5] + w[6] + w[7];
		RSP_COPY(at + off, w, 32);
	}
#define RSP_COPY_REST(size, add)                         \
	if (len & size) {                                \
		__u32 *w = (__u32 *)(from->data + tail); \
		sum += add;                              \
		RSP_COPY(at + tail, w, size);            \
		tail = rsp_offset(tail + size);          \
	}
	RSP_COPY_REST(16, (__u64)w[0] + w[1] + w[2] + w[3])
	RSP_COPY_REST(8, (__u64)w[0] + w[1])
	RSP_COPY_REST(4, *w)
	RSP_COPY_REST(2, *(__u16 *)w)
	RSP_COPY_REST(1, bpf_htons(*(__u8 *)w << 8))
#undef RSP_COPY_REST
#ifdef KERB_HOOK_TC
	if (len &&
	    bpf_skb_store_bytes(ctx, at, from->data, rsp_offset(len - 1) + 1, BPF_F_RECOMPUTE_CSUM))
		return -1;
#endif
	return kerb_fold(sum);
}

/* Copies the reply from the scratch buffer into the packet, and sums it into r->sum. */
static __always_inline int rsp_copy(struct rsp_request *r)
{
	int sum = rsp_copy_frame(r->pkt->ctx, r->payload, r->reply_len);

	kerb_reload(r->pkt);
	r->sum = (__u32)sum;
	return sum < 0 ? -1 : 0;
}

/* The IP header again: no options, own TTL, nothing of the request's type of service, and nothing
 * to be fragmented. Ends swapped. An IPv4 header that is right before and after adds nothing to
 * CHECKSUM_COMPLETE, and neither does a swap. */
static __always_inline int rsp_ip4_header(struct kerb_pkt *pkt, __u32 udp_len)
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
	w[4] = bpf_htons(RSP_HOP_LIMIT << 8 | IPPROTO_UDP);
	addr = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = addr;
	ip->check = ~kerb_fold((__u64)w[0] + w[1] + w[3] + w[4] + ip->saddr + ip->daddr);
	return 0;
}

static __always_inline int rsp_ip6_header(struct kerb_pkt *pkt, __u32 udp_len)
{
	__be16 w[4] = { bpf_htons(0x6000), 0, bpf_htons(udp_len),
			bpf_htons(IPPROTO_UDP << 8 | RSP_HOP_LIMIT) };

	return kerb_store_bytes(pkt, pkt->l3, w, sizeof(w)) ?: kerb_swap_ips(pkt);
}

#ifdef KERB_HOOK_XDP

/* The checksum is computed as a whole: the request's may have been partial. */
static __always_inline int rsp_udp_header(struct rsp_request *r, const struct rsp_ends *e,
					  __u64 before)
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
	check = ~kerb_fold(e->sum + udp->source + udp->dest + len + len + r->sum);
	udp->check = check ? check : 0xffff;
	return 0;
}

#else

/* The kernel knows whether the checksum is partial or complete, and the helpers keep it so. None
 * stays none. */
static __always_inline int rsp_udp_header(struct rsp_request *r, const struct rsp_ends *e,
					  __u64 before)
{
	__be16 to = bpf_htons(sizeof(struct udphdr) + r->reply_len), from;
	struct udphdr *udp = kerb_at(r->pkt, r->pkt->l4, sizeof(*udp));
	__u64 diff, length;

	if (!udp)
		return -1;
	from = udp->len;
	length = kerb_diff16(from, to);
	diff = r->sum + (__u16)~kerb_fold(before);
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

/* Turns the packet round. e is that of the request, before the sum of its payload. */
static __always_inline int rsp_reply_finish(struct rsp_request *r, const struct rsp_ends *e,
					    __u64 before)
{
	__u32 udp_len = sizeof(struct udphdr) + r->reply_len;

	if (r->scratch) {
		if (rsp_copy(r))
			return -1;
	} else if (!r->same && rsp_sum(r, r->reply_len)) {
		return -1;
	}
	if (kerb_swap_macs(r->pkt))
		return -1;
	if (r->pkt->family == 4 ? rsp_ip4_header(r->pkt, udp_len) : rsp_ip6_header(r->pkt, udp_len))
		return -1;
	return rsp_udp_header(r, e, before);
}

#endif
