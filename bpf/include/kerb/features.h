/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The interface between a feature extractor and a model. Include <kerb/infer.h>:
 *
 *	struct kerb_inference *s = kerb_inference();
 *
 *	if (!s)
 *		return KERB_NEXT;
 *	kerb_feature_set(s, 0, length);
 *	kerb_feature_set(s, 1, ttl);
 *	if (!kerb_infer(KERB_MODEL_LIVE) && s->decision[KERB_MODEL_LIVE].class)
 *		return kerb_drop(pkt, BY_MODEL);
 *
 * Features are integers in host byte order, in the order of the names that the model was packed
 * with (`kerb model pack`, or Pack of the Go package sdk/model); the meaning of each is up to
 * extractor and model. All of it happens in one run of the program, on one CPU: enclose it in
 * kerb_scratch_enter() and kerb_scratch_leave(). Inference leaves features and packet as they are.
 * Linux 5.10 and newer. */
#ifndef KERB_FEATURES_H
#define KERB_FEATURES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define KERB_FEATURES_MAX      64
#define KERB_MODEL_WIDTH_MAX   64 /* inputs of a model, and neurons of a layer */
#define KERB_MODEL_CLASSES_MAX 16

#define KERB_FEATURE_LIMIT 0x7fffffffLL /* features are within +-2^31-1 */

enum kerb_model_role {
	KERB_MODEL_LIVE = 0,   /* decides */
	KERB_MODEL_SHADOW = 1, /* its decision is only compared */
	KERB_MODEL_ROLES = 2,
};

struct kerb_features {
	__s64 v[KERB_FEATURES_MAX];
};

struct kerb_decision {
	__u32 version; /* of the model that decided */
	__u32 class;   /* index into the model's classes; 0 is normal traffic */
	/* Q15, 0 to 32768: probability that the class is not 0, if the model computes one,
	 * otherwise 0 or 32768 */
	__s32 score;
	__u32 slot; /* slot of the model */
};

/* Work space of one CPU. The fields before a are the interface; the rest belongs to the engine. */
struct kerb_inference {
	struct kerb_features features;
	__s64 never; /* below every threshold: the feature of leaves */
	struct kerb_decision decision[KERB_MODEL_ROLES];
	/* activations; a layer reads one half and writes the other */
	__s64 a[2][KERB_MODEL_WIDTH_MAX + 8];
	__s64 out[KERB_MODEL_CLASSES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_inference);
} kerb_workspace SEC(".maps");

static __always_inline struct kerb_inference *kerb_inference(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&kerb_workspace, &zero);
}

/* Sets feature i, a constant or a number below KERB_FEATURES_MAX, to a number that may be negative,
 * limited to +-KERB_FEATURE_LIMIT. */
static __always_inline void kerb_feature_set(struct kerb_inference *s, __u32 i, __s64 value)
{
	if (value > KERB_FEATURE_LIMIT)
		value = KERB_FEATURE_LIMIT;
	if (value < -KERB_FEATURE_LIMIT)
		value = -KERB_FEATURE_LIMIT;
	s->features.v[i] = value;
}

/* Evaluates the features with the model of a role (enum kerb_model_role) and stores the result in
 * decision[role]. Returns 0, or -1 if the role has no model. Inline: a return takes 10 ns on
 * kernels with mitigations against SRSO, a third of a small model's time. */
static int kerb_infer(__u32 role);

#endif
