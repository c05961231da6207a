// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* The fixed parts of every chain. The agent links them with the modules: a generated entry calls
 * kerb_head, then each module, and kerb_verdict if a module returns something other than KERB_NEXT
 * (internal/dataplane/entry.go). The linker makes all of them static functions, which the verifier
 * checks in the context of their caller, so that packet pointers stay valid from one module to the
 * next. Functions that take scalars only, such as the stages of the parser, stay global. Compiled
 * for XDP (KERB_HOOK_XDP), XDP with multi-buffer frames (also KERB_XDP_FRAGS), and TC
 * (KERB_HOOK_TC). */
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

/* Argument `call` of kerb_verdict, which the generated entry sets for each module and hook. */
#define KERB_CALL_TC_EGRESS   (1 << 0)
#define KERB_CALL_VETH	      (1 << 1) /* XDP on a veth */
#define KERB_CALL_COUNT_SHIFT 8	       /* above: 1 + position of the module; 0: none */

/* Packets by parse outcome; those with KERB_PARSE_OK are not counted. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KERB_PARSE_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} kerb_outcomes SEC(".maps");

static __always_inline void counter_add(void *map, __u32 key)
{
	__u64 *n = bpf_map_lookup_elem(map, &key);

	if (n)
		*n += 1;
}

#include "chain_count.h"
#include "chain_latency.h"
#include "chain_drops.h"

#ifdef KERB_HOOK_XDP
static __always_inline __u32 pkt_load_link(struct xdp_md *ctx, struct kerb_pkt *pkt)
{
	pkt->ifindex = ctx->ingress_ifindex;
	pkt->vlan = 0;
	return 0;
}
#else
static __always_inline __u32 pkt_load_link(struct __sk_buff *ctx, struct kerb_pkt *pkt)
{
	__u32 tags = ctx->vlan_present & 1;

	pkt->ifindex = ctx->ifindex;
	/* no branch here, which would make the verifier walk the rest of the chain twice */
	kerb_opaque(tags);
	pkt->vlan = ctx->vlan_tci & -tags;
	return tags;
}
#endif

static __always_inline int pkt_init(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	__u32 tags;

	pkt->reason = KERB_DROP_UNSPEC;
	pkt->to_ifindex = 0;
	pkt->to_flags = 0;
	kerb_reload(pkt);
	tags = pkt_load_link(ctx, pkt);
	return kerb_parse(pkt, tags);
}

/* Parses the packet. kerb_count or kerb_time_start has set ctx and len. */
SEC("kerb/head") int kerb_head(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	int outcome = pkt_init(ctx, pkt);

	if (outcome)
		counter_add(&kerb_outcomes, outcome);
	return 0;
}

/* Parses the packet again in a later part of a split chain, after kerb_enter. */
SEC("kerb/head_again") int kerb_head_again(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	pkt_init(ctx, pkt);
	return 0;
}

static __always_inline int pkt_parse_again(struct kerb_pkt *pkt)
{
	__u32 tags;

	kerb_reload(pkt);
	pkt->len = frame_len(pkt->ctx);
	tags = pkt_load_link(pkt->ctx, pkt);
	return kerb_parse(pkt, tags);
}

/* Parses the packet again for the modules after a foreign program (one that was not made for Kerb),
 * which may have changed it (internal/pkgs/foreign.go). */
SEC("kerb/parse_again") int kerb_parse_again(struct kerb_pkt *pkt)
{
	return pkt_parse_again(pkt);
}

/* Sends the packet out of the interface that it came from. On a veth, XDP_TX wakes the peer only if
 * that has XDP, too; a redirect wakes it also if it has GRO (veth_xdp_flush, veth_xdp_xmit). */
static __always_inline int pkt_reply(const struct kerb_pkt *pkt, __u32 call)
{
#ifdef KERB_HOOK_XDP
	return call & KERB_CALL_VETH ? bpf_redirect(pkt->ifindex, 0) : XDP_TX;
#else
	return bpf_redirect(pkt->ifindex, call & KERB_CALL_TC_EGRESS ? BPF_F_INGRESS : 0);
#endif
}

static __always_inline int pkt_redirect(kerb_ctx *ctx, const struct kerb_pkt *pkt)
{
#ifdef KERB_HOOK_XDP
	return pkt->to_flags & KERB_TO_MAP ? XDP_REDIRECT : bpf_redirect(pkt->to_ifindex, 0);
#else
	if (pkt->to_flags & KERB_TO_PEER) {
		/* otherwise the network stack there treats it as PACKET_OTHERHOST */
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

/* Packets that a module has dropped on one CPU. One value holds an array of these, by CPU: the
 * kernel takes many times as long to create a per-CPU map with an element for each reason. */
struct kerb_drop_counts {
	__u64 packets[KERB_DROP_REASONS];
};

/* Counts a drop in the maps of the module: by reason, and by interface while there is room. The key
 * is written as one word: the verifier treats a stack slot that is written in halves as read
 * before, and then does not prune states that differ only in the stale value there: four times as
 * many states for the firewall. */
static __always_inline void drop_count(struct kerb_drop_counts *drops, void *by_ifindex,
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
		/* a per-CPU map: sets the value of this CPU, the others to 0 */
		bpf_map_update_elem(by_ifindex, &u, &one, BPF_ANY);
}

/* Performs the verdict of a module: returns the action of the hook, and counts drops. An invalid
 * verdict drops the packet; for modules that fail open, the entry calls kerb_bad_verdict
 * instead. */
SEC("kerb/verdict")
int kerb_verdict(struct kerb_pkt *pkt, __u32 verdict, struct kerb_drop_counts *drops, __u32 call,
		 void *by_ifindex)
{
	if (verdict == KERB_REPLY) {
		exit_count(call, KERB_EXIT_REPLY);
		return pkt_reply(pkt, call) & 0xff;
	}
	if (verdict == KERB_REDIRECT) {
		exit_count(call, KERB_EXIT_REDIRECT);
		return pkt_redirect(pkt->ctx, pkt) & 0xff;
	}
	/* the reason is stored in the context, not on the stack of the entry: the firewall needs
	 * all of the stack on old kernels */
	if (verdict != KERB_DROP)
		pkt->reason = KERB_DROP_BAD_VERDICT;
	else if ((pkt->reason & KERB_DROP_REASON) >= KERB_DROP_REASONS)
		pkt->reason = KERB_DROP_UNSPEC;
	kerb_drop_keep(pkt->ctx, call, pkt->reason);
	exit_count(call, KERB_EXIT_DROP);
	drop_count(drops, by_ifindex, pkt->ifindex, pkt->reason & KERB_DROP_REASON);
	return KERB_ACT_DROP;
}

/* Counts an invalid verdict of a module that fails open. The packet continues. */
SEC("kerb/bad_verdict")
int kerb_bad_verdict(const struct kerb_pkt *pkt, struct kerb_drop_counts *drops, void *by_ifindex,
		     __u32 call)
{
	drop_count(drops, by_ifindex, pkt->ifindex, KERB_DROP_BAD_VERDICT);
	kerb_drop_keep(pkt->ctx, call, KERB_DROP_BAD_VERDICT | KERB_DROP_PASSED);
	return 0;
}

/* Counts a redirect that is performed after the last module, and prepares the packet for the
 * following modules. */
SEC("kerb/deferred") int kerb_deferred(struct kerb_pkt *pkt, __u32 call)
{
	exit_count(call, KERB_EXIT_DEFERRED);
	if (pkt->to_flags & KERB_TO_REPARSE)
		return pkt_parse_again(pkt);
	kerb_reload(pkt); /* the verifier does not know to_flags: both branches need pointers */
	return 0;
}

#include "chain_trace.h"
#include "chain_slow.h"

char _license[] SEC("license") = "Dual BSD/GPL";
