// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The classifier's engine with nothing around it, and the evaluation of a window of the published study: the counters of each
 * source from a map, then the model. */
#include "../../modules/classifier/alone.h"

/* Inference and nothing else, of the features that judge left. */
SEC("xdp")
int infer(struct xdp_md *ctx)
{
	return 2 + cls_infer(CLS_LIVE);
}

SEC("xdp")
int nothing(struct xdp_md *ctx)
{
	return XDP_PASS;
}

#define SOURCES 12 /* of the published network */

struct counters {
	__u32 kind[4]; /* DIS, DIO, DAO, others */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SOURCES);
	__type(key, __u64);
	__type(value, struct counters);
} sources SEC(".maps");

SEC("xdp")
int window(struct xdp_md *ctx)
{
	struct cls_scratch *s = cls_scratch();
	int found = 0;

	for (__u64 key = 0; key < SOURCES; key++) {
		struct counters *c = bpf_map_lookup_elem(&sources, &key);

		if (!c || !s)
			return XDP_ABORTED;
		for (__u32 i = 0; i < 4; i++)
			cls_feature(s, i, c->kind[i]);
		if (cls_infer(CLS_LIVE))
			return XDP_ABORTED;
		found += s->decision[CLS_LIVE].class;
	}
	return XDP_PASS + (found > SOURCES);
}
