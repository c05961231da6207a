/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Fragmentation of IPv4 packets whose sender allows it (no DF): such a sender need not evaluate
 * ICMP. A program decides on one packet and sends it to one neighbour, so the packet is cloned,
 * once per fragment, to the ingress of the underlay interface, where this module receives the
 * clones, cuts the fragment out of each, and sends it. The packet's mark has the number of the
 * fragment: packets from the network and from services have none. */
#ifndef TUN_FRAGMENT_H
#define TUN_FRAGMENT_H

#include "raw.h"
#include "segment.h"

#define TUN_MARK       0x6b740000 /* with the number of the fragment in the lower half */
#define TUN_MARK_MASK  0xffff0000
#define TUN_PIECES     8
/* maximum length in bytes of a packet that is fragmented: services with jumbo frames */
#define TUN_WHOLE_MOST 9216
#define TUN_DF	       0x4000
#define TUN_MF	       0x2000
#define TUN_CHUNK      64
/* maximum bytes that bpf_skb_adjust_room() removes at once, a multiple of eight */
#define TUN_STEP       0xff8
#define TUN_STEPS      3
#define TUN_REPLACE    40 /* bytes after the IP header that are removed and inserted again */

static __always_inline void tun_set_mark(const struct kerb_pkt *pkt, __u32 mark)
{
	asm volatile("*(u32 *)(%0 + %1) = %2" ::"r"(pkt->ctx),
		     "i"(__builtin_offsetof(struct __sk_buff, mark)), "r"(mark)
		     : "memory");
}

static __always_inline int tun_may_fragment(const struct kerb_pkt *pkt)
{
	struct iphdr *ip = kerb_ip4(pkt);

	return ip && ip->ihl == 5 && !(ip->frag_off & bpf_htons(TUN_DF)) &&
	       tun_length(pkt) <= TUN_WHOLE_MOST && !kerb_ctx_field(pkt->ctx, gso_size);
}

/* Payload of all fragments but the last. */
static __always_inline __u32 tun_piece_room(__u32 mtu)
{
	return (mtu - sizeof(struct iphdr)) & ~7;
}

/* Sum over len bytes. Trailing zeros change nothing. */
static __noinline __u32 tun_sum(const struct kerb_pkt *pkt, __u32 off, __u32 len)
{
	__u32 part[TUN_CHUNK / 4], sum = 0;
	__u64 last;

#pragma clang loop unroll(disable)
	for (int i = 0; i < TUN_WHOLE_MOST / TUN_CHUNK && len >= TUN_CHUNK; i++) {
		if (bpf_skb_load_bytes(pkt->ctx, off, part, TUN_CHUNK))
			return 0;
		sum = bpf_csum_diff(0, 0, part, TUN_CHUNK, sum);
		off += TUN_CHUNK;
		len -= TUN_CHUNK;
	}
	if (!len)
		return sum;
	__builtin_memset(part, 0, sizeof(part));
	/* In 64-bit arithmetic: the verifier of Linux 5.10 has to see that it is at least one
	 * byte. */
	last = len - 1;
	kerb_bound(last, TUN_CHUNK - 1);
	if (bpf_skb_load_bytes(pkt->ctx, off, part, last + 1))
		return 0;
	return bpf_csum_diff(0, 0, part, TUN_CHUNK, sum);
}

/* Completes a transport checksum that was left to the device, which would compute it over one
 * fragment. Removing the transport header makes the kernel forget that it has to; then it is
 * inserted again. */
static __noinline int tun_complete_checksum(struct kerb_pkt *pkt)
{
	__u32 l4 = pkt->l4, len = pkt->l4_len, is_udp = pkt->proto == IPPROTO_UDP;
	__u8 head[TUN_REPLACE];
	__u16 check;

	if (!(pkt->flags & KERB_F_L4) || (!is_udp && pkt->proto != IPPROTO_TCP) ||
	    !kerb_is_partial(pkt))
		return 0;
	check = ~kerb_fold(tun_sum(pkt, l4, len));
	if (is_udp && !check)
		check = 0xffff;
	if (bpf_skb_store_bytes(pkt->ctx, l4 + (is_udp ? 6 : 16), &check, sizeof(check), 0) ||
	    bpf_skb_load_bytes(pkt->ctx, l4, head, sizeof(head)))
		return -ENOMEM;
	if (bpf_skb_adjust_room(pkt->ctx, -TUN_REPLACE, BPF_ADJ_ROOM_NET, 0) ||
	    bpf_skb_adjust_room(pkt->ctx, TUN_REPLACE, BPF_ADJ_ROOM_NET, 0))
		return -ENOMEM;
	return bpf_skb_store_bytes(pkt->ctx, l4, head, sizeof(head), 0);
}

/* Sends a packet that is too big in fragments that fit. */
static __noinline int tun_fragment(struct kerb_pkt *pkt, const struct tun_node *n, __u32 mtu)
{
	__u32 room = tun_piece_room(mtu), len = tun_length(pkt) - sizeof(struct iphdr),
	      to = n->ifindex;
	int i;

	if (tun_complete_checksum(pkt))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
#pragma clang loop unroll(disable)
	for (i = 0; i < TUN_PIECES; i++) {
		tun_set_mark(pkt, TUN_MARK | i);
		if (len <= room) /* the last one */
			return kerb_redirect(pkt, to, KERB_TO_INGRESS);
		if (bpf_clone_redirect(pkt->ctx, to, BPF_F_INGRESS))
			return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
		len -= room;
	}
	return kerb_drop(pkt, KERB_DROP_TOO_BIG);
}

/* Removes the bytes after the IPv4 header that precede the fragment. */
static __always_inline int tun_remove_bytes(struct kerb_pkt *pkt, __u32 len)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < TUN_STEPS && len; i++) {
		__u32 step = len > TUN_STEP ? TUN_STEP : len;

		if (bpf_skb_adjust_room(pkt->ctx, -(__s32)step, BPF_ADJ_ROOM_NET, 0))
			return -ENOMEM;
		len -= step;
	}
	return len ? -EINVAL : 0;
}

/* Reduces the packet to one of its fragments. */
static __noinline int tun_extract_fragment(struct kerb_pkt *pkt, __u32 which, __u32 mtu)
{
	__u32 room = tun_piece_room(mtu), begin = (which & (TUN_PIECES - 1)) * room, total, len;
	struct iphdr *was = kerb_at(pkt, ETH_HLEN, sizeof(*was)), ip;
	__u16 field;

	if (!was || was->version != 4 || was->ihl != 5)
		return -EINVAL;
	ip = *was;
	total = bpf_ntohs(ip.tot_len) - sizeof(ip);
	if (begin >= total || total > TUN_WHOLE_MOST)
		return -EINVAL;
	field = bpf_ntohs(ip.frag_off);
	len = total - begin;
	field = ((field & 0x1fff) + begin / 8) | (field & TUN_MF);
	if (len > room) {
		len = room;
		field |= TUN_MF;
	}
	ip.frag_off = bpf_htons(field);
	ip.tot_len = bpf_htons(sizeof(ip) + len);
	ip.check = 0;
	ip.check = ~kerb_fold(bpf_csum_diff(0, 0, (void *)&ip, sizeof(ip), 0));
	if (kerb_set_len(pkt, ETH_HLEN + sizeof(ip) + begin + len) || tun_remove_bytes(pkt, begin))
		return -ENOMEM;
	pkt->len = kerb_ctx_field(pkt->ctx, len);
	bpf_skb_pull_data(pkt->ctx, pkt->len < TUN_PULL ? pkt->len : TUN_PULL);
	return kerb_store_bytes(pkt, ETH_HLEN, &ip, sizeof(ip)) ? -EINVAL : kerb_reparse(pkt);
}

#endif
