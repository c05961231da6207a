// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The inference engine without the classifier, and the evaluation of a window as in the published
 * study: the counters of each source, then the model. */
#include "../alone.h"

/* Inference only, of the features that decide() has stored. */
SEC("xdp")
int infer(struct xdp_md *ctx)
{
	return 2 + kerb_infer(KERB_MODEL_LIVE);
}

SEC("xdp")
int nothing(struct xdp_md *ctx)
{
	return XDP_PASS;
}

#define SOURCES 12 /* of the published network */

struct counters {
	__u32 kind[4];	 /* DIS, DIO, DAO, others */
	__u32 before[4]; /* values at the start of the window */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SOURCES);
	__type(key, __u64);
	__type(value, struct counters);
} sources SEC(".maps");

static __always_inline int evaluate(struct counters *c, struct kerb_inference *s)
{
	for (__u32 i = 0; i < 4; i++) {
		kerb_feature_set(s, i, c->kind[i] - c->before[i]);
		c->before[i] = c->kind[i];
	}
	return kerb_infer(KERB_MODEL_LIVE) ? -1 : s->decision[KERB_MODEL_LIVE].class;
}

/* For each source: counts a message (counts), and evaluates its window (evaluates). */
static __always_inline int each(int counts, int evaluates)
{
	struct kerb_inference *s = kerb_inference();
	int found = 0, class = 0;

	for (__u64 key = 0; key < SOURCES; key++) {
		struct counters *c = bpf_map_lookup_elem(&sources, &key);

		if (!c || !s)
			return XDP_ABORTED;
		if (counts)
			__sync_fetch_and_add(&c->kind[3], 1);
		if (evaluates)
			class = evaluate(c, s);
		if (class < 0)
			return XDP_ABORTED;
		found += class;
	}
	return XDP_PASS + (found > SOURCES);
}

SEC("xdp")
int count(struct xdp_md *ctx)
{
	return each(1, 0);
}

/* As in the classifier: the packet that ends a window has looked up its source already. */
SEC("xdp")
int count_and_evaluate(struct xdp_md *ctx)
{
	return each(1, 1);
}

/* Without packets: sources are looked up for the evaluation only. */
SEC("xdp")
int look_up_and_evaluate(struct xdp_md *ctx)
{
	return each(0, 1);
}
