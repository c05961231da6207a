// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The engine alone, for tests and benchmarks. */
#include "../../../modules/classifier/alone.h"

#define ROWS 256

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ROWS);
	__type(key, __u32);
	__type(value, struct frame);
} rows SEC(".maps");

struct turn {
	__u32 row, features;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turn);
} turns SEC(".maps");

/* Takes the features of the next row. */
static __always_inline void turn_over(void)
{
	__u32 zero = 0, next;
	struct turn *t = bpf_map_lookup_elem(&turns, &zero);
	struct kerb_inference *s = kerb_inference();
	struct frame *f;

	if (!t || !s)
		return;
	next = t->row++ % ROWS;
	f = bpf_map_lookup_elem(&rows, &next);
	for (__u32 i = 0; i < KERB_FEATURES_MAX; i++) {
		if (!f || i >= t->features)
			break;
		s->features.v[i] = f->features[i];
	}
}

SEC("xdp")
int take(struct xdp_md *ctx)
{
	turn_over();
	return XDP_PASS;
}

SEC("xdp")
int infer(struct xdp_md *ctx)
{
	turn_over();
	return 2 + kerb_infer(KERB_MODEL_LIVE);
}

/* Sets the first features to those of the frame, and returns the results in its place. */
SEC("xdp")
int set(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	struct kerb_inference *s = kerb_inference();

	if (!s || (void *)(f + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (__u32 i = 0; i < 8; i++) {
		kerb_feature_set(s, i, f->features[i]);
		f->features[i] = s->features.v[i];
	}
	return XDP_PASS;
}
