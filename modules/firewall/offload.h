/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Deferred checksums. A packet whose checksum is left to the device (CHECKSUM_PARTIAL) states where
 * the device writes it. A sender that chooses the place (PACKET_VNET_HDR) can thus have 16 bits of
 * the packet changed after the verdict: a port, an address. Here the place must be the checksum of
 * the transport header, or beyond everything that the firewall has read.
 *
 * struct __sk_buff does not have these fields. They are read from the kernel's own structure, at
 * offsets that the agent takes from the kernel's type information; without it, nothing is checked
 * (kerb doctor). From Linux 6.2 on programs may read the structure directly; before, the bytes are
 * copied, which costs some 35 ns more per packet. */
#ifndef FW_OFFLOAD_H
#define FW_OFFLOAD_H

#include "flow.h"

#define FW_SKB_WINDOW	   80 /* bytes; mirrored in internal/dataplane/skb.go */
#define FW_CHECKSUM_PARTIAL 3

/* offset in struct sk_buff of the bytes that are read; 0: unknown */
const volatile __u32 kerb_skb_window = 0;
const volatile __u32 kerb_skb_ip_summed = 0;	  /* in the window, as all that follow */
const volatile __u32 kerb_skb_ip_summed_shift = 0; /* of its two bits */
const volatile __u32 kerb_skb_csum = 0;		  /* csum_start; csum_offset follows it */
const volatile __u32 kerb_skb_mac_header = 0;
const volatile _Bool kerb_skb_cast = 0; /* bpf_cast_to_kern_ctx exists */

#ifdef KERB_HOOK_TC
/* The agent replaces calls of this number, which no helper has, by calls of bpf_cast_to_kern_ctx
 * (internal/dataplane/kfunc.go). */
static const __u8 *(*const kerb_cast_to_kern_ctx)(void *ctx) = (void *)0x6b6572;

/* Returns whether the place is the transport checksum of the packet quoted in an ICMP error, of the
 * kind that modules generate (kerb/answer.h). The quoted packet has neither options nor extension
 * headers. */
static __always_inline int fw_is_quoted_checksum(const struct kerb_pkt *pkt, __s32 start,
						 __s32 offset)
{
	__u8 *icmp = kerb_at(pkt, pkt->l4, sizeof(struct fw_icmp) + sizeof(struct iphdr)), *quoted,
	     proto;
	__s32 v4 = pkt->family == 4, at = pkt->l4 + sizeof(struct fw_icmp);

	if (!icmp || pkt->proto != (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) ||
	    fw_icmp_kind(v4, *icmp, FW_INGRESS) != FW_ERROR)
		return 0;
	quoted = icmp + sizeof(struct fw_icmp);
	if (v4 ? *quoted != 0x45 || quoted[6] & 0x1f || quoted[7] : *quoted >> 4 != 6)
		return 0;
	proto = quoted[v4 ? __builtin_offsetof(struct iphdr, protocol)
			  : __builtin_offsetof(struct ipv6hdr, nexthdr)];
	if (start != at + (__s32)(v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)))
		return 0;
	return offset == 6 ? proto == IPPROTO_UDP : offset == 16 && proto == IPPROTO_TCP;
}

/* Returns whether a checksum, computed from start on and written offset bytes after it, overwrites
 * evaluated bytes. */
static __always_inline int fw_overwrites(const struct kerb_pkt *pkt, __s32 start, __s32 offset)
{
	__s32 at = start + offset, l4 = pkt->l4;

	if (pkt->outcome == KERB_PARSE_NOT_IP)
		return pkt->eth_type == ETH_P_ARP || at < (__s32)pkt->l3;
	if (pkt->outcome)
		return 1;
	if (!(pkt->flags & KERB_F_L4))
		return at < l4;
	if ((start == l4 && offset == kerb_check_offset(pkt->proto)) ||
	    fw_is_quoted_checksum(pkt, start, offset))
		return 0;
	/* tunnels of the service's own */
	return pkt->proto != IPPROTO_UDP || at < l4 + (__s32)sizeof(struct udphdr);
}

static __always_inline int fw_checksum_overwrites(const struct kerb_pkt *pkt, const __u8 *window)
{
	if ((window[kerb_skb_ip_summed] >> kerb_skb_ip_summed_shift & 3) != FW_CHECKSUM_PARTIAL)
		return 0;
	return fw_overwrites(
		pkt, *(__u16 *)(window + kerb_skb_csum) - *(__u16 *)(window + kerb_skb_mac_header),
		*(__u16 *)(window + kerb_skb_csum + 2));
}

static __noinline int fw_bad_offload(const struct kerb_pkt *pkt)
{
	__u8 window[FW_SKB_WINDOW] __attribute__((aligned(8)));

	if (!kerb_skb_window)
		return 0;
	if (kerb_skb_cast)
		return fw_checksum_overwrites(pkt,
					      kerb_cast_to_kern_ctx(pkt->ctx) + kerb_skb_window);
	if (bpf_probe_read_kernel(window, sizeof(window), pkt->ctx + kerb_skb_window))
		return 0;
	return fw_checksum_overwrites(pkt, window);
}
#else
static __always_inline int fw_bad_offload(const struct kerb_pkt *pkt)
{
	return 0;
}
#endif

#endif
