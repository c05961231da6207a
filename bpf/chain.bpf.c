// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* The fixed parts of every chain. The agent links them with the modules: a generated entry calls
 * kerb_head, then each module, and kerb_verdict only when a module says something other than NEXT
 * (internal/dataplane/entry.go). All of them become static functions, which the verifier checks in
 * the caller's context: that is why packet pointers in the context stay usable from one module to
 * the next. Functions that take numbers only, as the stages of the parser do, stay global. Compiled
 * once with KERB_HOOK_XDP and once with KERB_HOOK_TC. */
#define KERB_FIXED_LAYOUT
#define KERB_PARSE_STAGE __noinline
#include <kerb/types.h>
#include <kerb/parse.h>

#ifdef KERB_HOOK_XDP
#define KERB_ACT_DROP XDP_DROP
#else
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#define KERB_ACT_DROP TC_ACT_SHOT
#endif

/* Flags that the generated entry passes for a module and hook. */
#define KERB_CALL_TC_EGRESS   (1 << 0)
#define KERB_CALL_VETH	      (1 << 1) /* on XDP */
#define KERB_CALL_COUNT_SHIFT 8	       /* above: 1 + place of the module; 0: not counted */

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

#include "chain_count.h"
#include "chain_latency.h"
#include "chain_drops.h"

#ifdef KERB_HOOK_XDP
static __always_inline __u32 begin(struct xdp_md *ctx, struct kerb_pkt *pkt)
{
	pkt->ifindex = ctx->ingress_ifindex;
	pkt->vlan = 0;
	return 0;
}
#else
static __always_inline __u32 begin(struct __sk_buff *ctx, struct kerb_pkt *pkt)
{
	__u32 tags = ctx->vlan_present & 1;

	pkt->ifindex = ctx->ifindex;
	/* Without a branch, as one here would make the verifier walk what follows twice. */
	kerb_opaque(tags);
	pkt->vlan = ctx->vlan_tci & -tags;
	return tags;
}
#endif

static __always_inline int head(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	__u32 tags;

	pkt->reason = KERB_DROP_UNSPEC;
	pkt->to_ifindex = 0;
	pkt->to_flags = 0;
	kerb_reload(pkt);
	tags = begin(ctx, pkt);
	return kerb_parse(pkt, tags);
}

/* Parses the packet. One of kerb_count and kerb_time_start has set ctx and len. */
SEC("kerb/head") int kerb_head(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	int outcome = head(ctx, pkt);

	if (outcome)
		count(&kerb_outcomes, outcome);
	return 0;
}

/* Parses the packet again in a later part of a split chain, after kerb_enter. */
SEC("kerb/head_again") int kerb_head_again(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	head(ctx, pkt);
	return 0;
}

static __always_inline int parse_again(struct kerb_pkt *pkt)
{
	__u32 tags;

	kerb_reload(pkt);
	pkt->len = frame_len(pkt->ctx);
	tags = begin(pkt->ctx, pkt);
	return kerb_parse(pkt, tags);
}

/* Parses what a program that was not made for Kerb has left of the packet, for the modules behind
 * it (internal/pkgs/foreign.go). */
SEC("kerb/parse_again") int kerb_parse_again(struct kerb_pkt *pkt)
{
	return parse_again(pkt);
}

/* Sends the packet out of the interface it came from. On a veth XDP_TX wakes the other end only if
 * that has XDP too, a redirect also if it has GRO (veth_xdp_flush, veth_xdp_xmit). */
static __always_inline int reply(const struct kerb_pkt *pkt, __u32 call)
{
#ifdef KERB_HOOK_XDP
	return call & KERB_CALL_VETH ? bpf_redirect(pkt->ifindex, 0) : XDP_TX;
#else
	return bpf_redirect(pkt->ifindex, call & KERB_CALL_TC_EGRESS ? BPF_F_INGRESS : 0);
#endif
}

static __always_inline int redirect(kerb_ctx *ctx, const struct kerb_pkt *pkt)
{
#ifdef KERB_HOOK_XDP
	return pkt->to_flags & KERB_TO_MAP ? XDP_REDIRECT : bpf_redirect(pkt->to_ifindex, 0);
#else
	if (pkt->to_flags & KERB_TO_PEER) {
		/* else the stack there treats it as PACKET_OTHERHOST */
		if (ctx->pkt_type != PACKET_HOST)
			bpf_skb_change_type(ctx, PACKET_HOST);
		return bpf_redirect_peer(pkt->to_ifindex, 0);
	}
	if (pkt->to_flags & KERB_TO_NEIGH)
		return bpf_redirect_neigh(pkt->to_ifindex, 0, 0, 0);
	return bpf_redirect(pkt->to_ifindex, pkt->to_flags & KERB_TO_INGRESS ? BPF_F_INGRESS : 0);
#endif
}

/* Key of the drops by interface; the value is a __u64. The agent reads it
 * (internal/dataplane/drops.go). */
struct kerb_drop_key {
	__u32 ifindex;
	__u32 reason;
};

/* Packets that a module has dropped on one CPU. All are in one value, one CPU behind the other: a
 * per-CPU map with an element for each reason takes the kernel many times as long to create. */
struct kerb_drop_counts {
	__u64 packets[KERB_DROP_REASONS];
};

/* Counts in the module's own maps: all by reason, and by interface as far as there is room. The key
 * is written as one word: the verifier takes a slot of the stack that is written by halves for one
 * that was read before, and then keeps states of the modules apart that differ in nothing but what
 * is left there: four times as many for the firewall. */
static __always_inline void count_drop(struct kerb_drop_counts *drops, void *by_ifindex,
				       __u32 ifindex, __u32 reason)
{
	union {
		struct kerb_drop_key key;
		__u64 word;
	} u;
	__u64 one = 1, *n, cpu = ((__u64 (*)(void))BPF_FUNC_get_smp_processor_id)();

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	u.word = (__u64)reason << 32 | ifindex;
#else
	u.word = (__u64)ifindex << 32 | reason;
#endif
	kerb_bound(reason, KERB_DROP_REASONS - 1);
	if (cpu < kerb_cpus)
		drops[cpu].packets[reason] += 1;
	n = bpf_map_lookup_elem(by_ifindex, &u);
	if (n)
		*n += 1;
	else
		/* of a per-CPU map: the value of this CPU only */
		bpf_map_update_elem(by_ifindex, &u, &one, BPF_ANY);
}

/* Turns a module's verdict into the hook's action, and counts drops. What is no verdict drops the
 * packet: the entry calls this for modules that fail closed. */
SEC("kerb/verdict")
int kerb_verdict(struct kerb_pkt *pkt, __u32 verdict, struct kerb_drop_counts *drops, __u32 call,
		 void *by_ifindex)
{
	if (verdict == KERB_REPLY) {
		count_exit(call, KERB_EXIT_REPLY);
		return reply(pkt, call) & 0xff;
	}
	if (verdict == KERB_REDIRECT) {
		count_exit(call, KERB_EXIT_REDIRECT);
		return redirect(pkt->ctx, pkt) & 0xff;
	}
	/* Kept in the context, not in the frame of the entry: the firewall needs all of the stack
	 * that old kernels leave. */
	if (verdict != KERB_DROP)
		pkt->reason = KERB_DROP_BAD_VERDICT;
	else if ((pkt->reason & KERB_DROP_REASON) >= KERB_DROP_REASONS)
		pkt->reason = KERB_DROP_UNSPEC;
	kerb_drop_keep(pkt->ctx, call, pkt->reason);
	count_exit(call, KERB_EXIT_DROP);
	count_drop(drops, by_ifindex, pkt->ifindex, pkt->reason & KERB_DROP_REASON);
	return KERB_ACT_DROP;
}

/* Counts what is no verdict of a module that fails open. The packet continues. */
SEC("kerb/bad_verdict")
int kerb_bad_verdict(const struct kerb_pkt *pkt, struct kerb_drop_counts *drops, void *by_ifindex,
		     __u32 call)
{
	count_drop(drops, by_ifindex, pkt->ifindex, KERB_DROP_BAD_VERDICT);
	kerb_drop_keep(pkt->ctx, call, KERB_DROP_BAD_VERDICT | KERB_DROP_PASSED);
	return 0;
}

/* Counts a redirect that is performed after the last module, and makes the packet ready for the
 * modules behind. */
SEC("kerb/deferred") int kerb_deferred(struct kerb_pkt *pkt, __u32 call)
{
	count_exit(call, KERB_EXIT_DEFERRED);
	if (pkt->to_flags & KERB_TO_REPARSE)
		return parse_again(pkt);
	kerb_reload(pkt); /* for the verifier, which does not know the flags */
	return 0;
}

#include "chain_trace.h"
#include "chain_slow.h"

char _license[] SEC("license") = "Dual BSD/GPL";
