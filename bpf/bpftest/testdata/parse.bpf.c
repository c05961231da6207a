// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The chain head alone. dump hands out the packet context, plain whether the straight part of the
 * parser takes the packet, reparse what kerb_reparse finds; cost and empty are what the benchmark
 * compares. The head is kept out of line as in a linked chain. */
#define KERB_FIXED_LAYOUT
#include <kerb/types.h>

#ifdef KERB_HOOK_XDP
#define HOOK "xdp"
__attribute__((noinline)) int kerb_head(struct xdp_md *ctx, struct kerb_pkt *pkt);
#else
#define HOOK "tc"
__attribute__((noinline)) int kerb_head(struct __sk_buff *ctx, struct kerb_pkt *pkt);
#endif

#include "../../chain.bpf.c"
#include <kerb/rewrite.h>

#define PASS 2 /* XDP_PASS; on TC TC_ACT_SHOT, which a test run only reports */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_pkt);
} parsed SEC(".maps");

/* The window as offsets: the verifier lets no packet pointer out. */
static __always_inline int show(const struct kerb_pkt *pkt)
{
	__u32 key = 0;
	struct kerb_pkt *out = bpf_map_lookup_elem(&parsed, &key);

	if (!out)
		return 0;
	out->data_end = (void *)(pkt->data_end - pkt->data);
	out->l3 = pkt->l3;
	out->l4 = pkt->l4;
	out->ifindex = pkt->ifindex;
	out->len = pkt->len;
	out->eth_type = pkt->eth_type;
	out->vlan = pkt->vlan;
	out->family = pkt->family;
	out->proto = pkt->proto;
	out->flags = pkt->flags;
	out->outcome = pkt->outcome;
	out->l4_len = pkt->l4_len;
	out->reason = pkt->reason;
	out->to_ifindex = pkt->to_ifindex;
	out->to_flags = pkt->to_flags;
	return PASS;
}

SEC(HOOK) int dump(kerb_ctx *ctx)
{
	struct kerb_pkt pkt;

	kerb_enter(ctx, &pkt);
	kerb_head(ctx, &pkt);
	return show(&pkt);
}

SEC(HOOK) int plain(kerb_ctx *ctx)
{
	struct kerb_pkt pkt = {};

	kerb_enter(ctx, &pkt);
	kerb_reload(&pkt);
	pkt_load_link(ctx, &pkt);
	return kerb_parse_plain(&pkt);
}

SEC(HOOK) int reparse(kerb_ctx *ctx)
{
	struct kerb_pkt pkt = {};

	kerb_enter(ctx, &pkt);
	kerb_reload(&pkt);
	pkt_load_link(ctx, &pkt);
	kerb_reparse(&pkt);
	return show(&pkt);
}

SEC(HOOK) int cost(kerb_ctx *ctx)
{
	struct kerb_pkt pkt;

	kerb_enter(ctx, &pkt);
	kerb_head(ctx, &pkt);
	return pkt.flags & KERB_F_L4 ? PASS : 0;
}

SEC(HOOK) int empty(kerb_ctx *ctx)
{
	return PASS;
}
