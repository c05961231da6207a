// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The classifier's engine with nothing around it, and the evaluation of a window of the published study: the counters of each
 * source from a map, then the model. */
#include "../../modules/classifier/engine.h"

/* A frame is features, which the decision takes the place of. The action is cls_infer's result plus 2. */
struct frame {
	__s64 features[CLS_FEATURES_MAX];
};

SEC("xdp")
int judge(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	struct cls_scratch *s = cls_scratch();
	int err;

	if (!s || (void *)(f + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(&s->features, f->features, sizeof(s->features));
	err = cls_infer(CLS_LIVE);
	__builtin_memcpy(f->features, &s->decision[CLS_LIVE], sizeof(struct cls_decision));
	return 2 + err;
}

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

char _license[] SEC("license") = "Dual BSD/GPL";
