/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What an extractor hands to a model and what it gets back. The extractor fetches cls_scratch(),
 * fills features with cls_feature() in the order of its list of names, calls cls_infer(role) and
 * reads decision[role]:
 *
 *	struct cls_scratch *s = cls_scratch();
 *
 *	cls_feature(s, 0, dis);
 *	cls_feature(s, 1, dio);
 *	if (!cls_infer(CLS_LIVE))
 *		act(&s->decision[CLS_LIVE]);
 *
 * All of it on one CPU, in one run of the program. Models examine features and leave them as they
 * are. */
#ifndef CLS_FEATURES_H
#define CLS_FEATURES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define CLS_FEATURES_MAX 64
#define CLS_WIDTH_MAX	 64 /* inputs of a model, and neurons of a layer */
#define CLS_CLASSES_MAX	 16

#define CLS_FEATURE_LIMIT 0x7fffffffLL /* features are within +-2^31-1 */

enum cls_role {
	CLS_LIVE = 0,	/* decides */
	CLS_SHADOW = 1, /* is only compared */
	CLS_ROLES = 2,
};

struct cls_features {
	__s64 v[CLS_FEATURES_MAX];
};

struct cls_decision {
	__u32 version; /* of the model that decided */
	__u32 class;   /* index into the model's classes; 0 is what is normal */
	/* Q15, 0 to 32768: probability that the class is not 0, where the model gives one; else 0
	 * or 32768 */
	__s32 score;
	__u32 slot;    /* in which the model lies */
};

/* Work space of one CPU. What is before a is the contract; the rest belongs to the engine. */
struct cls_scratch {
	struct cls_features features;
	__s64 never; /* lower than every threshold: the feature of leaves */
	struct cls_decision decision[CLS_ROLES];
	/* activations; a layer reads one half and writes the other */
	__s64 a[2][CLS_WIDTH_MAX + 8];
	__s64 out[CLS_CLASSES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cls_scratch);
} scratch SEC(".maps");

static __always_inline struct cls_scratch *cls_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* Sets feature i, a constant or a number below CLS_FEATURES_MAX; counts that are too large become
 * the largest. */
static __always_inline void cls_feature(struct cls_scratch *s, __u32 i, __u64 value)
{
	s->features.v[i] = value > CLS_FEATURE_LIMIT ? CLS_FEATURE_LIMIT : value;
}

/* Lets the model of a role (enum cls_role) judge the features. 0, or -1 when the role has no model
 * (engine.h). It is inline: a return takes 10 ns where kernels defend themselves against SRSO, a
 * third of a small model's time. */
static int cls_infer(__u32 role);

#endif
