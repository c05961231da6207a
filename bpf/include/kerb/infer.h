/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Inference: features to outputs (layers.h, trees.h), outputs to a decision. It uses only integer
 * arithmetic; sdk/model/infer.go gives bit-identical results. */
#ifndef KERB_INFER_H
#define KERB_INFER_H

#include <kerb/layers.h>
#include <kerb/trees.h>

/* Output i in Q15. */
static __always_inline __s64 kerb_model_q15(const struct kerb_model *m, const __s64 *out, __u32 i)
{
	return out[i] * m->score_mul >> (m->score_shift & 63);
}

static __always_inline const __s64 *kerb_model_outputs(const struct kerb_model *m,
						       const struct kerb_inference *s)
{
	return m->kind >= KERB_MODEL_SMALL ? s->out : s->a[kerb_reread(m->layers) & 1];
}

/* Index of the first of the largest outputs. It is unpredictable, so nothing branches on it. */
static __always_inline __u32 kerb_model_largest(const struct kerb_model *m, const __s64 *out)
{
	__s64 most = out[0];
	__u64 class = 0;

	for (__u32 i = 1; i < KERB_MODEL_CLASSES_MAX; i++) {
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
__noinline __u32 kerb_model_softmax(__u32 slot, __u32 largest)
{
	const struct kerb_model *m = kerb_model(slot);
	struct kerb_inference *s = kerb_inference();
	__u64 normal, sum = 0;
	const __s64 *out;
	__s64 most;

	if (!m || !s)
		return 0;
	out = kerb_model_outputs(m, s);
	most = kerb_model_q15(m, out, largest & (KERB_MODEL_CLASSES_MAX - 1));
	normal = kerb_q15_exp_minus(most - kerb_model_q15(m, out, 0));
	for (__u32 i = 0; i < KERB_MODEL_CLASSES_MAX; i++) {
		if (i >= kerb_reread(m->outputs))
			break;
		sum += kerb_q15_exp_minus(most - kerb_model_q15(m, out, i));
	}
	return ((sum - normal) << 15) / sum;
}

static __always_inline __s32 kerb_model_share(__s64 score)
{
	return score < 0 ? 0 : score > KERB_Q15_ONE ? KERB_Q15_ONE : score;
}

static __always_inline __s32 kerb_model_score(const struct kerb_model *m, const __s64 *out,
					      __u32 class, __u32 slot)
{
	switch (m->output) {
	case KERB_MODEL_LOGISTIC:
		return kerb_q15_round(kerb_q15_sigmoid(kerb_model_q15(m, out, 0)), 15);
	case KERB_MODEL_SHARE:
		return kerb_model_share(kerb_model_q15(m, out, 0));
	case KERB_MODEL_SOFTMAX:
		return kerb_model_softmax(slot, class);
	case KERB_MODEL_SHARES:
		return kerb_model_share(KERB_Q15_ONE - kerb_model_q15(m, out, 0));
	default:
		return class ? KERB_Q15_ONE : 0;
	}
}

static __always_inline void kerb_model_decide(const struct kerb_model *m, const __s64 *out,
					      struct kerb_decision *d)
{
	d->version = m->version;
	d->class = m->outputs > 1 ? kerb_model_largest(m, out) : out[0] > m->threshold;
	d->score = kerb_model_score(m, out, kerb_reread(d->class), d->slot);
}

/* For layers that take longer than a call; the verifier examines them once. */
__noinline int kerb_infer_large(__u32 slot, __u32 role)
{
	const struct kerb_model *m = kerb_model(slot);
	struct kerb_inference *s = kerb_inference();

	if (!m || !s || role >= KERB_MODEL_ROLES)
		return 0;
	kerb_model_layers(m, s, slot);
	kerb_model_decide(m, kerb_model_outputs(m, s), &s->decision[role]);
	return 0;
}

static __always_inline int kerb_infer(__u32 role)
{
	__u32 key = role, *at = bpf_map_lookup_elem(&active, &key), slot;
	struct kerb_inference *s = kerb_inference();
	const struct kerb_model *m;

	if (!at || !s || role >= KERB_MODEL_ROLES)
		return -1;
	slot = *(volatile __u32 *)at - 1; /* read once: it may change at any time */
	m = kerb_model(slot);
	if (!m || m->kind == KERB_MODEL_NONE)
		return -1;
	s->decision[role].slot = slot;
	if (m->kind == KERB_MODEL_SMALL)
		kerb_infer_small(m, s);
	else if (m->kind == KERB_MODEL_TREES)
		kerb_model_trees(m, s, slot);
	else
		return kerb_infer_large(slot, role);
	kerb_model_decide(m, s->out, &s->decision[role]);
	return 0;
}

#endif
