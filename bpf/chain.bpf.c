// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* The fixed parts of every chain. The agent links them with the modules: a generated entry calls kerb_head, then each
 * module, and kerb_verdict only when a module says something other than NEXT (internal/dataplane/link.go). All of them
 * become static functions, which the verifier checks in the caller's context: that is why packet pointers in the context
 * stay usable from one module to the next. Compiled once with KERB_HOOK_XDP and once with KERB_HOOK_TC. */
#include <kerb/types.h>
#include <kerb/parse.h>

#ifdef KERB_HOOK_XDP
#define KERB_ACT_DROP XDP_DROP
#else
#include <linux/pkt_cls.h>
#define KERB_ACT_DROP TC_ACT_SHOT
#endif

/* What kerb_verdict returns to go on with the next module: no action has this number. */
#define KERB_GO_ON 0x100
#define KERB_PULL_LEN (KERB_MAX_HDRS + 60) /* the last header may start at KERB_MAX_HDRS, and be TCP with options */

/* Packets by parse outcome, KERB_PARSE_OK excepted: those are what the modules see. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KERB_PARSE_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} kerb_outcomes SEC(".maps");

static __always_inline void count(void *map, __u32 key)
{
	__u64 *n = bpf_map_lookup_elem(map, &key);

	if (n)
		*n += 1;
}

#ifdef KERB_HOOK_XDP
static __always_inline int parse(struct xdp_md *ctx, struct kerb_pkt *pkt)
{
	kerb_reload(pkt);
	pkt->ifindex = ctx->ingress_ifindex;
#ifdef KERB_XDP_FRAGS
	pkt->len = bpf_xdp_get_buff_len(ctx);
#else
	pkt->len = pkt->data_end - pkt->data;
#endif
	pkt->vlan = 0;
	return kerb_parse(pkt, 0);
}
#else
static __always_inline int is_short(int outcome)
{
	return outcome == KERB_PARSE_SHORT_L2 || outcome == KERB_PARSE_SHORT_L3 || outcome == KERB_PARSE_SHORT_L4;
}

/* Headers may lie beyond the linear part: then they are pulled in and read again. A function of its own and no loop, whose
 * layout old verifiers (Linux 5.10, 6.1) refuse. */
static __noinline int parse_pulled(struct __sk_buff *ctx, struct kerb_pkt *pkt, __u32 tags)
{
	bpf_skb_pull_data(ctx, pkt->len < KERB_PULL_LEN ? pkt->len : KERB_PULL_LEN);
	kerb_reload(pkt);
	return kerb_parse(pkt, tags & 1);
}

static __always_inline int parse(struct __sk_buff *ctx, struct kerb_pkt *pkt)
{
	__u32 tags = ctx->vlan_present & 1;
	int outcome;

	kerb_reload(pkt);
	pkt->ifindex = ctx->ifindex;
	pkt->len = ctx->len;
	/* Without a branch, as one here would make the verifier walk the whole parser twice. */
	asm volatile("" : "+r"(tags));
	pkt->vlan = ctx->vlan_tci & -tags;
	outcome = kerb_parse(pkt, tags);
	if (is_short(outcome) && pkt->data + pkt->len > pkt->data_end)
		return parse_pulled(ctx, pkt, tags);
	return outcome;
}
#endif

SEC("kerb/head") int kerb_head(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	int outcome;

	pkt->ctx = ctx;
	pkt->reason = KERB_DROP_UNSPEC;
	pkt->to_ifindex = 0;
	pkt->to_flags = 0;
	outcome = parse(ctx, pkt);
	pkt->outcome = outcome;
	if (outcome)
		count(&kerb_outcomes, outcome);
	return 0;
}

/* Sends the packet out of the interface it came from. */
static __always_inline int reply(kerb_ctx *ctx, const struct kerb_pkt *pkt, __u32 egress_hook)
{
#ifdef KERB_HOOK_XDP
	return XDP_TX;
#else
	return bpf_redirect(pkt->ifindex, egress_hook ? BPF_F_INGRESS : 0);
#endif
}

static __always_inline int redirect(kerb_ctx *ctx, const struct kerb_pkt *pkt)
{
#ifdef KERB_HOOK_XDP
	return bpf_redirect(pkt->to_ifindex, 0);
#else
	if (pkt->to_flags & KERB_TO_PEER)
		return bpf_redirect_peer(pkt->to_ifindex, 0);
	return bpf_redirect(pkt->to_ifindex, pkt->to_flags & KERB_TO_INGRESS ? BPF_F_INGRESS : 0);
#endif
}

/* Flags that the generated entry passes for a module and hook. */
#define KERB_CALL_FAIL_CLOSED (1 << 0)
#define KERB_CALL_TC_EGRESS   (1 << 1)

/* Turns a module's verdict into the hook's action, and counts drops by reason in the module's own map. */
SEC("kerb/verdict") int kerb_verdict(struct kerb_pkt *pkt, __u32 verdict, void *drops, __u32 call)
{
	kerb_ctx *ctx = pkt->ctx;

	if (verdict == KERB_REPLY)
		return reply(ctx, pkt, call & KERB_CALL_TC_EGRESS);
	if (verdict == KERB_REDIRECT)
		return redirect(ctx, pkt);
	if (verdict != KERB_DROP) {
		count(drops, KERB_DROP_BAD_VERDICT);
		return call & KERB_CALL_FAIL_CLOSED ? KERB_ACT_DROP : KERB_GO_ON;
	}
	count(drops, pkt->reason < KERB_DROP_REASONS ? pkt->reason : KERB_DROP_UNSPEC);
	return KERB_ACT_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
