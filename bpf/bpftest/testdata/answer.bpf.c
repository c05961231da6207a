// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Every packet is answered by an ICMP error, on XDP with frames in several buffers. */
#define KERB_XDP_FRAGS
#define KERB_FIXED_LAYOUT
#include <kerb/types.h>

__attribute__((noinline)) int kerb_head(struct xdp_md *ctx, struct kerb_pkt *pkt);

#include "../../chain.bpf.c"
#include <kerb/module.h>
#include <kerb/answer.h>

SEC("xdp.frags")
int answer(struct xdp_md *ctx)
{
	struct kerb_pkt pkt = {};

	kerb_enter(ctx, &pkt);
	kerb_head(ctx, &pkt);
	return kerb_icmp_unreachable(&pkt, KERB_UNREACHABLE_PORT) == KERB_REPLY ? XDP_TX : XDP_DROP;
}
