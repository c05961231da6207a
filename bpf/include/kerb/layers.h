/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layers of neurons. Sums are exact in 64 bits for all inputs: the loader refuses other weights.
 * Outputs of neurons saturate.
 *
 * Packed layers have weights of 8 bits and inputs of 7 bits without a sign. A word is w0 + w1 *
 * 2^21 + w2 * 2^42, the weights of three neurons, so that one multiplication makes three products.
 * A sum of 64 products of 127 * 127 is below 2^20 and stays in its lane of 21 bits; the sums begin
 * with 2^20 in each lane, which makes them positive, and add takes it off again.
 *
 * There is no branch that depends on the values: a processor would mispredict it, and the verifier
 * follow both ways. */
#ifndef KERB_LAYERS_H
#define KERB_LAYERS_H

#include <kerb/model.h>
#include <kerb/activation.h>

#define KERB_MODEL_LANE		21
#define KERB_MODEL_LANE_MASK	((1 << KERB_MODEL_LANE) - 1)
#define KERB_MODEL_LANES_ZERO	(1ULL << 20 | 1ULL << 41 | 1ULL << 62)
#define KERB_MODEL_PACKED_SHIFT 24
#define KERB_MODEL_LEVEL_MAX	127

/* Limits v to the range from 0 to limit = 2^n - 1. Both bounds are compared in parallel: small
 * networks wait for each step. */
static __always_inline __s64 kerb_layer_clamp(__s64 v, __u64 limit)
{
	__s64 below = v >> 63, above = (__s64)(limit - v) >> 63;

	kerb_opaque2(below, above);
	return (v | above) & (limit & ~below);
}

/* The products of one input with its words: two, so that it is loaded once. */
#define KERB_MODEL_TERM(i)                   \
	{                                    \
		__u64 v = x[i];              \
		sum.a += w[2 * (i)] * v;     \
		sum.b += w[2 * (i) + 1] * v; \
	}
#define KERB_MODEL_TERMS_4(i) \
	KERB_MODEL_TERM(i)    \
	KERB_MODEL_TERM((i) + 1) KERB_MODEL_TERM((i) + 2) KERB_MODEL_TERM((i) + 3)
#define KERB_MODEL_TERMS_8(i) \
	if (n <= (i))         \
		return sum;   \
	KERB_MODEL_TERMS_4(i) KERB_MODEL_TERMS_4((i) + 4)

struct kerb_model_sums {
	__u64 a, b;
};

/* Adds to both sums the products of their words with n inputs; n is 4 or a multiple of 8. Unrolled,
 * with constant offsets, it costs no more than the multiplications. */
static __always_inline struct kerb_model_sums kerb_model_dot(const __u64 *w, const __s64 *x,
							     __u32 n, __u64 from)
{
	struct kerb_model_sums sum = { from, from };

	KERB_MODEL_TERMS_4(0)
	if (n <= 4)
		return sum;
	KERB_MODEL_TERMS_4(4)
	KERB_MODEL_TERMS_8(8)
	KERB_MODEL_TERMS_8(16)
	KERB_MODEL_TERMS_8(24)
	KERB_MODEL_TERMS_8(32)
	KERB_MODEL_TERMS_8(40)
	KERB_MODEL_TERMS_8(48)
	KERB_MODEL_TERMS_8(56)
	return sum;
}

/* Output of a neuron from its sum; c points to its constants. */
static __always_inline __s64 kerb_model_neuron(const struct kerb_model_layer *l, const __u64 *c,
					       __u64 sum, __u32 shift)
{
	return kerb_layer_clamp((__s64)(sum * c[1] + c[0]) >> shift, l->limit) + l->offset;
}

/* The same if the next layer is packed. */
static __always_inline __s64 kerb_model_level(const __u64 *c, __u64 sum)
{
	return kerb_layer_clamp((__s64)(sum * c[1] + c[0]) >> KERB_MODEL_PACKED_SHIFT,
				KERB_MODEL_LEVEL_MAX);
}

static __always_inline const __u64 *kerb_model_words(const struct kerb_model *m, __u64 at)
{
	return m->words + (at & (KERB_MODEL_WORDS - 1));
}

/* Bounds that the verifier learns in one loop must not apply in the next: it would follow that once
 * for each exit of the first. So bounds are read again where they are used (kerb_reread). */

static __always_inline void kerb_model_activate_all(const struct kerb_model_layer *l, __s64 *y)
{
	for (__u32 i = 0; i < KERB_MODEL_WIDTH_MAX; i++) {
		if (i >= kerb_reread(l->neurons))
			break;
		y[i] = kerb_layer_clamp(
			       (kerb_q15_activate(y[i], l->activation, l->slope) * l->post_mul +
				l->post_add) >>
				       (l->post_shift & 63),
			       l->post_limit) +
		       l->post_offset;
	}
}

/* Outputs of three neurons from the sum of their words. */
static __always_inline void kerb_model_three(const struct kerb_model_layer *l, const __u64 *c,
					     __u64 sum, __s64 *y)
{
	__u64 a = sum & KERB_MODEL_LANE_MASK, b = sum >> KERB_MODEL_LANE & KERB_MODEL_LANE_MASK,
	      d = sum >> 2 * KERB_MODEL_LANE;

	if (l->limit == KERB_MODEL_LEVEL_MAX) {
		y[0] = kerb_model_level(c, a);
		y[1] = kerb_model_level(c + 2, b);
		y[2] = kerb_model_level(c + 4, d);
	} else {
		y[0] = kerb_model_neuron(l, c, a, KERB_MODEL_PACKED_SHIFT);
		y[1] = kerb_model_neuron(l, c + 2, b, KERB_MODEL_PACKED_SHIFT);
		y[2] = kerb_model_neuron(l, c + 4, d, KERB_MODEL_PACKED_SHIFT);
	}
}

static __always_inline void kerb_model_packed_rows(const struct kerb_model *m,
						   const struct kerb_model_layer *l, const __s64 *x,
						   __s64 *y)
{
	__u64 at = l->at;

	for (__u32 row = 0; row < (KERB_MODEL_WIDTH_MAX + 5) / 6; row++) {
		const __u64 *c = kerb_model_words(m, at);
		struct kerb_model_sums sum;

		if (row >= kerb_reread(l->rows))
			break;
		sum = kerb_model_dot(c + 12, x, kerb_reread(l->inputs), KERB_MODEL_LANES_ZERO);
		kerb_model_three(l, c, sum.a, y);
		kerb_model_three(l, c + 6, sum.b, y + 3);
		y += 6;
		at = (at + l->stride) & (KERB_MODEL_WORDS - 1);
	}
}

static __always_inline void kerb_model_exact_rows(const struct kerb_model *m,
						  const struct kerb_model_layer *l, const __s64 *x,
						  __s64 *y)
{
	__u64 at = l->at;

	for (__u32 row = 0; row < KERB_MODEL_WIDTH_MAX / 2; row++) {
		const __u64 *c = kerb_model_words(m, at);
		struct kerb_model_sums sum;

		if (row >= kerb_reread(l->rows))
			break;
		sum = kerb_model_dot(c + 4, x, kerb_reread(l->inputs), 0);
		y[0] = kerb_model_neuron(l, c, sum.a, l->shift & 63);
		y[1] = kerb_model_neuron(l, c + 2, sum.b, l->shift & 63);
		y += 2;
		at = (at + l->stride) & (KERB_MODEL_WORDS - 1);
	}
}

static __always_inline const struct kerb_model *kerb_model(__u32 slot)
{
	return bpf_map_lookup_elem(&models, &slot);
}

/* Evaluates one layer of a model. Global, so that the verifier checks it once, not for each layer
 * and each path through the previous one. */
__noinline int kerb_model_layer(__u32 slot, __u32 layer)
{
	const struct kerb_model *m = kerb_model(slot);
	struct kerb_inference *s = kerb_inference();
	const struct kerb_model_layer *l;

	if (!m || !s || layer >= KERB_MODEL_LAYERS_MAX)
		return 0;
	l = &m->layer[layer];
	if (m->kind == KERB_MODEL_EXACT)
		kerb_model_exact_rows(m, l, s->a[layer & 1], s->a[~layer & 1]);
	else if (m->kind == KERB_MODEL_PACKED)
		kerb_model_packed_rows(m, l, s->a[layer & 1], s->a[~layer & 1]);
	if (l->activation)
		kerb_model_activate_all(l, s->a[~layer & 1]);
	return 0;
}

static __always_inline __s64 kerb_model_input(const struct kerb_model *m,
					      const struct kerb_inference *s, __u32 i)
{
	const struct kerb_model_input *in = &m->input[i];
	__s64 feature = *(__s64 *)((void *)s + (in->feature & 0x1f8));

	return kerb_layer_clamp((feature * in->mul + in->add) >> (in->shift & 63), m->input_limit);
}

struct kerb_model_four {
	__s64 a, b, c, d;
};

static __always_inline __s64 kerb_model_small_neuron(const struct kerb_model_layer *l,
						     const __u64 *w, struct kerb_model_four x)
{
	return kerb_layer_clamp(
		(__s64)((w[0] + w[1] * x.a) + (w[2] * x.b + w[3] * x.c) + w[4] * x.d) >>
			(l->shift & 63),
		l->limit);
}

static __always_inline struct kerb_model_four
kerb_model_small_layer(const struct kerb_model *m, __u32 i, struct kerb_model_four x)
{
	const __u64 *w = m->words + i * KERB_MODEL_SMALL_STRIDE;
	const struct kerb_model_layer *l = &m->layer[i];
	struct kerb_model_four y = { kerb_model_small_neuron(l, w, x) };
	__u32 n = kerb_reread(l->neurons);

	if (n > 1)
		y.b = kerb_model_small_neuron(l, w + 5, x);
	if (n > 2)
		y.c = kerb_model_small_neuron(l, w + 10, x);
	if (n > 3)
		y.d = kerb_model_small_neuron(l, w + 15, x);
	return y;
}

/* A small network takes less time than calls, loops and memory accesses: it is inlined, its values
 * in registers. The output offset of a layer is included in the constants of the next one. */
static __always_inline void kerb_infer_small(const struct kerb_model *m, struct kerb_inference *s)
{
	__s64 offset = m->layer[(m->layers - 1) & (KERB_MODEL_LAYERS_MAX - 1)].offset;
	struct kerb_model_four x = { kerb_model_input(m, s, 0), kerb_model_input(m, s, 1),
				     kerb_model_input(m, s, 2), kerb_model_input(m, s, 3) };

	x = kerb_model_small_layer(m, 0, x);
	if (kerb_reread(m->layers) > 1)
		x = kerb_model_small_layer(m, 1, x);
	if (kerb_reread(m->layers) > 2)
		x = kerb_model_small_layer(m, 2, x);
	if (kerb_reread(m->layers) > 3)
		x = kerb_model_small_layer(m, 3, x);
	s->out[0] = x.a + offset;
	s->out[1] = x.b + offset;
	s->out[2] = x.c + offset;
	s->out[3] = x.d + offset;
}

/* Stores the outputs in s->a[layers & 1]. */
static __always_inline void kerb_model_layers(const struct kerb_model *m, struct kerb_inference *s,
					      __u32 slot)
{
	for (__u32 i = 0; i < KERB_MODEL_WIDTH_MAX; i++) {
		if (i >= kerb_reread(m->inputs))
			break;
		s->a[0][i] = kerb_model_input(m, s, i) + m->input_offset;
	}
	for (__u32 i = 0; i < KERB_MODEL_LAYERS_MAX; i++) {
		if (i >= kerb_reread(m->layers))
			break;
		kerb_model_layer(slot, i);
	}
}

#endif
