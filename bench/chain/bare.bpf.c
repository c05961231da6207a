// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The upper limit: up to 16 modules in one hand-written program. It parses once and then counts for
 * each module. */
#include "count.h"

/* Number of modules; the verifier removes the others as dead code. */
const volatile __u32 modules;

struct counters {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
};

struct counters m0 SEC(".maps"), m1 SEC(".maps"), m2 SEC(".maps"), m3 SEC(".maps");
struct counters m4 SEC(".maps"), m5 SEC(".maps"), m6 SEC(".maps"), m7 SEC(".maps");
struct counters m8 SEC(".maps"), m9 SEC(".maps"), m10 SEC(".maps"), m11 SEC(".maps");
struct counters m12 SEC(".maps"), m13 SEC(".maps"), m14 SEC(".maps"), m15 SEC(".maps");

#define MODULE(i)        \
	if (modules > i) \
		count_packet(&m##i, bytes);

static __always_inline void count_modules(__u64 bytes)
{
	MODULE(0) MODULE(1) MODULE(2) MODULE(3)
	MODULE(4) MODULE(5) MODULE(6) MODULE(7)
	MODULE(8) MODULE(9) MODULE(10) MODULE(11)
	MODULE(12) MODULE(13) MODULE(14) MODULE(15)
}

static __always_inline int bare_xdp(struct xdp_md *ctx, int (*parse)(void *, void *))
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (parse(data, end))
		count_modules(end - data);
	return XDP_PASS;
}

static __always_inline int bare_tc(struct __sk_buff *skb, int (*parse)(void *, void *))
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (parse(data, end))
		count_modules(skb->len);
	return -1; /* TC_ACT_UNSPEC */
}

SEC("xdp")
int bare_xdp4(struct xdp_md *ctx)
{
	return bare_xdp(ctx, parse_udp);
}

SEC("xdp")
int bare_xdp6(struct xdp_md *ctx)
{
	return bare_xdp(ctx, parse_udp6);
}

SEC("tc")
int bare_tc4(struct __sk_buff *skb)
{
	return bare_tc(skb, parse_udp);
}

SEC("tc")
int bare_tc6(struct __sk_buff *skb)
{
	return bare_tc(skb, parse_udp6);
}

char _license[] SEC("license") = "Dual BSD/GPL";
