// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Drops UDP packets to port 9, with a reason of its own. It was written for a Kerb whose packet
 * context has the same fields in another order, and not all of them. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct kerb_pkt {
	void *ctx;
	__u8 flags;
	__u8 proto;
	__u8 family;
	__u32 reason;
	__u64 l4;
	void *data_end;
	void *data;
} __attribute__((preserve_access_index));

#define KERB_F_L4 (1 << 4)

static __always_inline int decide(struct kerb_pkt *pkt)
{
	__be16 *ports;

	if (pkt->family != 4 || pkt->proto != IPPROTO_UDP || !(pkt->flags & KERB_F_L4))
		return 0;
	ports = pkt->data + (pkt->l4 & 0x1ff);
	if ((void *)(ports + 2) > pkt->data_end || ports[1] != bpf_htons(9))
		return 0;
	pkt->reason = 33;
	return 1;
}

SEC("kerb/egress") int kerb_egress(struct kerb_pkt *pkt)
{
	return decide(pkt);
}

SEC("kerb/ingress") int kerb_ingress(struct kerb_pkt *pkt)
{
	return decide(pkt);
}

char _license[] SEC("license") = "Dual BSD/GPL";
