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

SEC("xdp")
int inject(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
