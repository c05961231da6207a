// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The two ends of a live measurement: frames are injected by XDP test run, and counted and dropped
 * in front of the receiver's stack. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TC_ACT_OK   0
#define TC_ACT_SHOT 2

#define PACKETS (1 << 17)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

SEC("tc")
int sink(struct __sk_buff *skb)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&arrived, &key);

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK; /* the receiver answers ARP */
	if (n)
		(*n)++;
	return TC_ACT_SHOT;
}

struct headers {
	__u32 word[10];
};

/* Headers that replace the frame's own, in turn. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PACKETS);
	__type(key, __u32);
	__type(value, struct headers);
} packets SEC(".maps");

/* The test run reuses frames without writing them again, after routing has changed their Ethernet
 * addresses. */
struct cursor {
	__u32 next, count;
	__u8 ethernet[ETH_HLEN];
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cursor);
} cursor SEC(".maps");

/* For the interfaces that receive injected frames; it passes the frames of their hosts. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp")
int inject(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key = 0;
	struct cursor *c = bpf_map_lookup_elem(&cursor, &key);
	struct headers *h;

	if (!c || !c->count || data + ETH_HLEN + sizeof(*h) > end)
		return XDP_PASS;
	if (c->next >= c->count)
		c->next = 0;
	key = c->next++;
	h = bpf_map_lookup_elem(&packets, &key);
	if (!h)
		return XDP_DROP;
	__builtin_memcpy(data, c->ethernet, ETH_HLEN);
	__builtin_memcpy(data + ETH_HLEN, h, sizeof(*h));
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
