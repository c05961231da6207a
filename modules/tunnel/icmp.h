/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The path MTU: routers report outer packets that are too big. Such ICMP errors are copied to the
 * control plane, which checks whether they quote one of our packets, and pass to the stack. */
#ifndef TUN_ICMP_H
#define TUN_ICMP_H

#include "header.h"

/* ICMP header, outer headers, and the part of the inner packet that the MAC covers */
#define TUN_ICMP_COPY 256

#define TUN_ICMP_LEAST 36 /* RFC 792: the IPv4 header and 8 bytes more */

/* Mirrored by maps.go. */
struct tun_icmp {
	__u32 len;
	__u32 family; /* 4 or 6 */
	__u8 data[TUN_ICMP_COPY];
};

KERB_EVENTS(icmp_errors, 1 << 15);

/* l4: offset of the ICMP header from the IP header. */
static __noinline int tun_report_icmp(const struct kerb_pkt *pkt, __u32 l4)
{
	__u32 is4 = kerb_ctx_field(pkt->ctx, protocol) == bpf_htons(ETH_P_IP);
	struct tun_icmp *e;
	__u8 head[2];

	if (mode == TUN_MODE_DEVICE ||
	    bpf_skb_load_bytes_relative(pkt->ctx, l4, head, sizeof(head), BPF_HDR_START_NET))
		return 0;
	if (is4 ? head[0] != 3 || head[1] != 4 : head[0] != 2)
		return 0;
	e = kerb_event_reserve(&icmp_errors, sizeof(*e));
	if (!e)
		return 0;
	e->family = is4 ? 4 : 6;
	e->len = TUN_ICMP_COPY;
	if (bpf_skb_load_bytes_relative(pkt->ctx, l4, e->data, TUN_ICMP_COPY, BPF_HDR_START_NET)) {
		e->len = TUN_ICMP_LEAST;
		if (bpf_skb_load_bytes_relative(pkt->ctx, l4, e->data, TUN_ICMP_LEAST,
						BPF_HDR_START_NET))
			e->len = 0;
	}
	kerb_event_submit(e, 0);
	return 0;
}

#endif
