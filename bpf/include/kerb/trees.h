/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Decision trees. Each is walked for the depth of the deepest one; the child of a leaf is itself.
 * Several trees are walked in parallel, so that loads overlap, and no step branches on a value. */
#ifndef KERB_TREES_H
#define KERB_TREES_H

#include <kerb/model.h>

#define KERB_MODEL_ABREAST 5 /* trees at a time: as many as fit the registers */
/* trees of a call: its return takes 10 ns where kernels defend themselves against SRSO */
#define KERB_MODEL_TURN	   10

/* The word of a node; at is its offset in bytes. */
static __always_inline __u64 kerb_tree_node(const struct kerb_model *m, __u64 at)
{
	return *(__u64 *)((void *)m->words + at);
}

static __always_inline __s64 kerb_tree_value(__u64 node)
{
	return (__s64)node >> 32;
}

/* Returns the offset of the child for the features. The sign of the difference becomes 7 for the
 * right child, which, added to the 1 in which the offset of the left child ends, is one word
 * more. */
static __always_inline __u64 kerb_tree_step(const struct kerb_model *m,
					    const struct kerb_inference *s, __u64 at)
{
	__u64 node = kerb_tree_node(m, at), feature = (__u32)node >> KERB_MODEL_NODE_FEATURE, right;

	kerb_opaque(feature);
	right = (__u64)(kerb_tree_value(node) - *(__s64 *)((void *)s + feature)) >> 61;
	kerb_opaque(right);
	return (node + right) & KERB_MODEL_NODE_LEFT;
}

/* Adds the leaf value of tree t to the outputs. */
static __always_inline void kerb_tree_vote(const struct kerb_model *m, struct kerb_inference *s,
					   __u32 t, __s64 value)
{
	if (!m->vectors) {
		s->out[t % m->outputs & (KERB_MODEL_CLASSES_MAX - 1)] += value;
		return;
	}
	for (__u32 i = 0; i < KERB_MODEL_CLASSES_MAX; i++) {
		if (i >= m->outputs)
			break;
		s->out[i] += (__s64)m->words[(value & (KERB_MODEL_WORDS - 1)) + i];
	}
}

/* KERB_MODEL_ABREAST trees from tree t on. Returns their sum if there is one output, otherwise
 * 0. */
static __always_inline __s64 kerb_tree_walk_group(const struct kerb_model *m,
						  struct kerb_inference *s, __u32 t)
{
	__u64 a = t * 8, b = a + 8, c = a + 16, d = a + 24, e = a + 32;

	for (__u32 i = 0; i < KERB_MODEL_DEPTH_MAX; i++) {
		if (i >= kerb_reread(m->depth))
			break;
		a = kerb_tree_step(m, s, a);
		b = kerb_tree_step(m, s, b);
		c = kerb_tree_step(m, s, c);
		d = kerb_tree_step(m, s, d);
		e = kerb_tree_step(m, s, e);
	}
	a = kerb_tree_value(kerb_tree_node(m, a));
	b = kerb_tree_value(kerb_tree_node(m, b));
	c = kerb_tree_value(kerb_tree_node(m, c));
	d = kerb_tree_value(kerb_tree_node(m, d));
	e = kerb_tree_value(kerb_tree_node(m, e));
	if (kerb_reread(m->outputs) <= 1)
		return a + b + c + d + e;
	kerb_tree_vote(m, s, t, a);
	kerb_tree_vote(m, s, t + 1, b);
	kerb_tree_vote(m, s, t + 2, c);
	kerb_tree_vote(m, s, t + 3, d);
	kerb_tree_vote(m, s, t + 4, e);
	return 0;
}

/* Walks KERB_MODEL_TURN trees. Global, so that the verifier checks it once. The loader pads models
 * with trees that add 0. */
__noinline int kerb_tree_walk(__u32 slot, __u32 first)
{
	const struct kerb_model *m = bpf_map_lookup_elem(&models, &slot);
	struct kerb_inference *s = kerb_inference();
	__s64 sum = 0;

	if (!m || !s || first >= KERB_MODEL_TREES_MAX)
		return 0;
	for (__u32 t = 0; t < KERB_MODEL_TURN; t += KERB_MODEL_ABREAST) {
		if (first + t >= kerb_reread(m->trees))
			break;
		sum += kerb_tree_walk_group(m, s, first + t);
	}
	s->out[0] += sum;
	return 0;
}

/* Stores the outputs in s->out. */
static __always_inline void kerb_model_trees(const struct kerb_model *m, struct kerb_inference *s,
					     __u32 slot)
{
	s->never = -(1LL << 31);
	for (__u32 i = 0; i < KERB_MODEL_CLASSES_MAX; i++)
		s->out[i] = m->base[i];
	for (__u32 t = 0; t < KERB_MODEL_TREES_MAX; t += KERB_MODEL_TURN) {
		if (t >= m->trees)
			break;
		kerb_tree_walk(slot, t);
	}
}

#endif
