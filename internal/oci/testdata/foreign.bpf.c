/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Programs that were not made for Kerb: each is a whole program for its hook, which says by the
 * UDP port what it shall return. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} seen SEC(".maps");

static __noinline int port(void *data, void *data_end)
{
	struct udphdr *udp = data + sizeof(struct ethhdr) + sizeof(struct iphdr);

	return (void *)(udp + 1) > data_end ? 0 : bpf_ntohs(udp->dest);
}

static void count(void)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&seen, &key);

	if (n)
		++*n;
}

/* Puts in a VLAN tag. */
static __noinline int tag(struct xdp_md *ctx)
{
	void *data, *data_end;

	if (bpf_xdp_adjust_head(ctx, -4))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (data + sizeof(struct ethhdr) + 4 > data_end)
		return XDP_ABORTED;
	__builtin_memmove(data, data + 4, 2 * ETH_ALEN);
	*(__be16 *)(data + 2 * ETH_ALEN) = bpf_htons(ETH_P_8021Q);
	*(__be16 *)(data + 2 * ETH_ALEN + 2) = bpf_htons(42);
	return XDP_PASS;
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	count();
	switch (port((void *)(long)ctx->data, (void *)(long)ctx->data_end)) {
	case 1001: return XDP_DROP;
	case 1002: return XDP_TX;
	case 1003: return XDP_ABORTED;
	case 1004: return XDP_REDIRECT;
	case 1005: return tag(ctx);
	}
	return XDP_PASS;
}

SEC("tc")
int stats(struct __sk_buff *skb)
{
	count();
	if (bpf_skb_pull_data(skb, 0))
		return TC_ACT_SHOT;
	switch (port((void *)(long)skb->data, (void *)(long)skb->data_end)) {
	case 1001: return TC_ACT_SHOT;
	case 1002: return TC_ACT_PIPE;
	case 1003: return TC_ACT_UNSPEC;
	case 1004: return TC_ACT_STOLEN;
	}
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
