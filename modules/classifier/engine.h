/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Inference: features to outputs (layers.h, trees.h), outputs to a decision. All arithmetic is of
 * integers and has its double in sdk/model/infer.go, to the last bit. */
#ifndef CLS_ENGINE_H
#define CLS_ENGINE_H

#include "layers.h"
#include "trees.h"

/* Output i in Q15. */
static __always_inline __s64 cls_q15(const struct cls_model *m, const __s64 *out, __u32 i)
{
	return out[i] * m->score_mul >> (m->score_shift & 63);
}

static __always_inline const __s64 *cls_outputs(const struct cls_model *m,
						const struct cls_scratch *s)
{
	return m->kind >= CLS_SMALL ? s->out : s->a[kerb_reread(m->layers) & 1];
}

/* The first of the largest outputs. It is unpredictable, so nothing branches on it. */
static __always_inline __u32 cls_largest(const struct cls_model *m, const __s64 *out)
{
	__s64 most = out[0];
	__u64 class = 0;

	for (__u32 i = 1; i < CLS_CLASSES_MAX; i++) {
		__s64 more;

		if (i >= kerb_reread(m->outputs))
			break;
		more = (most - out[i]) >> 63;
		kerb_opaque(more);
		most += (out[i] - most) & more;
		class += (i - class) & more;
	}
	return class;
}

/* Probability that the class is not 0, from logits: 1 - exp(out[0]) / sum of exp(out[i]). */
__noinline __u32 cls_softmax(__u32 slot, __u32 largest)
{
	const struct cls_model *m = cls_model(slot);
	struct cls_scratch *s = cls_scratch();
	__u64 normal, sum = 0;
	const __s64 *out;
	__s64 most;

	if (!m || !s)
		return 0;
	out = cls_outputs(m, s);
	most = cls_q15(m, out, largest & (CLS_CLASSES_MAX - 1));
	normal = cls_exp_minus(most - cls_q15(m, out, 0));
	for (__u32 i = 0; i < CLS_CLASSES_MAX; i++) {
		if (i >= kerb_reread(m->outputs))
			break;
		sum += cls_exp_minus(most - cls_q15(m, out, i));
	}
	return ((sum - normal) << 15) / sum;
}

static __always_inline __s32 cls_share(__s64 score)
{
	return score < 0 ? 0 : score > CLS_ONE ? CLS_ONE : score;
}

static __always_inline __s32 cls_score(const struct cls_model *m, const __s64 *out, __u32 class,
				       __u32 slot)
{
	switch (m->output) {
	case CLS_LOGISTIC:
		return cls_round(cls_sigmoid(cls_q15(m, out, 0)), 15);
	case CLS_SHARE:
		return cls_share(cls_q15(m, out, 0));
	case CLS_SOFTMAX:
		return cls_softmax(slot, class);
	case CLS_SHARES:
		return cls_share(CLS_ONE - cls_q15(m, out, 0));
	default:
		return class ? CLS_ONE : 0;
	}
}

static __always_inline void cls_decide(const struct cls_model *m, const __s64 *out,
				       struct cls_decision *d)
{
	d->version = m->version;
	d->class = m->outputs > 1 ? cls_largest(m, out) : out[0] > m->threshold;
	d->score = cls_score(m, out, kerb_reread(d->class), d->slot);
}

/* Layers that take longer than a call; the verifier examines them once. */
__noinline int cls_infer_large(__u32 slot, __u32 role)
{
	const struct cls_model *m = cls_model(slot);
	struct cls_scratch *s = cls_scratch();

	if (!m || !s || role >= CLS_ROLES)
		return 0;
	cls_layers(m, s, slot);
	cls_decide(m, cls_outputs(m, s), &s->decision[role]);
	return 0;
}

static __always_inline int cls_infer(__u32 role)
{
	__u32 key = role, *at = bpf_map_lookup_elem(&active, &key), slot;
	struct cls_scratch *s = cls_scratch();
	const struct cls_model *m;

	if (!at || !s || role >= CLS_ROLES)
		return -1;
	slot = *(volatile __u32 *)at - 1; /* read once: it may change any time */
	m = cls_model(slot);
	if (!m || m->kind == CLS_NONE)
		return -1;
	s->decision[role].slot = slot;
	if (m->kind == CLS_SMALL)
		cls_infer_small(m, s);
	else if (m->kind == CLS_TREES)
		cls_trees(m, s, slot);
	else
		return cls_infer_large(slot, role);
	cls_decide(m, s->out, &s->decision[role]);
	return 0;
}

#endif
