// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Has a global function move the packet. Ingress reads it again behind that; egress reads through
 * its old pointer, which the verifier must refuse. */
#include <kerb/module.h>

/* Its symbol has another name than its type information. */
__noinline int move(kerb_ctx *ctx, __u32 len) __asm__("shove");
__noinline int move(kerb_ctx *ctx, __u32 len)
{
#ifdef KERB_HOOK_XDP
	return bpf_xdp_adjust_head(ctx, len & 1);
#else
	return bpf_skb_pull_data(ctx, len & 1);
#endif
}

/* Verified in its callers' context, where its moves are seen. */
static __noinline int move_again(kerb_ctx *ctx)
{
#ifdef KERB_HOOK_XDP
	return bpf_xdp_adjust_head(ctx, 0);
#else
	return bpf_skb_pull_data(ctx, 0);
#endif
}

KERB_EGRESS(pkt)
{
	__u8 *byte = kerb_at(pkt, 0, 1);

	if (!byte)
		return KERB_NEXT;
	move(pkt->ctx, 0);
	return *byte == 7 ? KERB_DROP : KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	__u8 *byte;

	if (move(pkt->ctx, 0) || move_again(pkt->ctx))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	kerb_reload(pkt);
	byte = kerb_at(pkt, 0, 1);
	return byte && *byte == 7 ? KERB_DROP : KERB_NEXT;
}

KERB_LICENSE("Dual BSD/GPL");
