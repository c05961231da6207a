// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* One trivial module as a separate program. Loaded n times, it is a list of TCX programs or clsact
 * filters; with `next` set, a chain of tail calls. */
#include "count.h"

#define TC_ACT_UNSPEC -1
#define TC_ACT_SHOT 2

/* The slot of the next module in `chain`; 0 ends the chain. The verifier sees a constant, so that
 * the JIT compiles the tail call to a direct jump. */
const volatile __u32 next;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __u32);
} chain SEC(".maps");

static __always_inline int module_xdp(struct xdp_md *ctx, int (*parse)(void *, void *))
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (parse(data, end))
		count_packet(&counters, end - data);
	if (next)
		bpf_tail_call(ctx, &chain, next);
	return XDP_PASS;
}

static __always_inline int module_tc(struct __sk_buff *skb, int (*parse)(void *, void *))
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (parse(data, end))
		count_packet(&counters, skb->len);
	if (next)
		bpf_tail_call(skb, &chain, next);
	return TC_ACT_UNSPEC;
}

SEC("xdp")
int module_xdp4(struct xdp_md *ctx)
{
	return module_xdp(ctx, parse_udp);
}

SEC("xdp")
int module_xdp6(struct xdp_md *ctx)
{
	return module_xdp(ctx, parse_udp6);
}

SEC("tc")
int module_tc4(struct __sk_buff *skb)
{
	return module_tc(skb, parse_udp);
}

SEC("tc")
int module_tc6(struct __sk_buff *skb)
{
	return module_tc(skb, parse_udp6);
}

/* The last program in live measurements, the same for every config. */
SEC("tc")
int drop_tc(struct __sk_buff *skb)
{
	return TC_ACT_SHOT;
}

/* No module; as XDP it passes the frames of a live run to the stack. */
SEC("xdp")
int pass_xdp(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("tc")
int pass_tc(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
