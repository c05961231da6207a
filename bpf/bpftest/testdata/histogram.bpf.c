// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts the number in the first eight bytes of each packet. */
#include <kerb/types.h>
#include <kerb/histogram.h>

#define BUCKETS 160

struct histogram {
	__u64 counts[BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct histogram);
} histogram SEC(".maps");

SEC("xdp")
int count(struct xdp_md *ctx)
{
	const __u64 *value = (const void *)kerb_ctx_field(ctx, data);
	__u32 zero = 0;
	struct histogram *h = bpf_map_lookup_elem(&histogram, &zero);

	if (!h || (const void *)(value + 1) > (const void *)kerb_ctx_field(ctx, data_end))
		return XDP_ABORTED;
	kerb_histogram_count(h->counts, BUCKETS, *value);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
