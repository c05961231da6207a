// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The two ends of a live measurement: frames enter by XDP test run and end in
 * a program that counts them and takes them away from the service's stack. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define TC_ACT_SHOT 2

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

	if (n)
		(*n)++;
	return TC_ACT_SHOT;
}

struct headers {
	__u32 word[10];
};

/* Headers to send in turn instead of the frame's own: written by packets.go. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct headers);
} packets SEC(".maps");

struct cursor {
	__u32 next, count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cursor);
} cursor SEC(".maps");

SEC("xdp")
int inject(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key = 0;
	struct cursor *c = bpf_map_lookup_elem(&cursor, &key);
	struct headers *h;

	if (!c || !c->count || data + 14 + sizeof(*h) > end)
		return XDP_PASS;
	if (c->next >= c->count)
		c->next = 0;
	key = c->next++;
	h = bpf_map_lookup_elem(&packets, &key);
	if (h)
		__builtin_memcpy(data + 14, h, sizeof(*h));
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
