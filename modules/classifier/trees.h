/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Decision trees. Each is walked for as many steps as the deepest needs; a leaf leads to itself. Several are walked side by side,
 * so that one's node is fetched while another's is looked at, and no step branches on a value. */
#ifndef CLS_TREES_H
#define CLS_TREES_H

#include "model.h"

#define CLS_ABREAST 5 /* trees at a time: as many as fit the registers */

/* The word of a node; at is its offset in bytes. */
static __always_inline __u64 cls_node(const struct cls_model *m, __u64 at)
{
	return *(__u64 *)((void *)m->words + at);
}

static __always_inline __s64 cls_node_value(__u64 node)
{
	return (__s64)node >> 32;
}

/* Offset of the child that the features lead to. The sign of the difference becomes the offset of the right one. */
static __always_inline __u64 cls_step(const struct cls_model *m, const struct cls_scratch *s, __u64 at)
{
	__u64 node = cls_node(m, at), right;
	__u32 feature = (__u32)node >> CLS_NODE_FEATURE;

	asm volatile("" : "+r"(feature));
	right = (__u64)(cls_node_value(node) - *(__s64 *)((void *)s + feature)) >> 60;
	asm volatile("" : "+r"(right));
	return (node & CLS_NODE_LEFT) + (right & 8);
}

/* Adds what tree t says to the outputs. */
static __always_inline void cls_vote(const struct cls_model *m, struct cls_scratch *s, __u32 t, __s64 value)
{
	if (m->outputs <= 1) {
		s->out[0] += value;
	} else if (!m->vectors) {
		s->out[t % m->outputs & (CLS_CLASSES_MAX - 1)] += value;
	} else {
		for (__u32 i = 0; i < CLS_CLASSES_MAX; i++) {
			if (i >= m->outputs)
				break;
			s->out[i] += (__s64)m->words[(value & (CLS_WORDS - 1)) + i];
		}
	}
}

/* CLS_ABREAST trees; global, so that the verifier follows a walk once. The loader fills up with trees that add nothing. */
__noinline int cls_walk(__u32 slot, __u32 first)
{
	const struct cls_model *m = bpf_map_lookup_elem(&models, &slot);
	struct cls_scratch *s = cls_scratch();
	__u64 a, b, c, d, e;

	if (!m || !s || first >= CLS_TREES_MAX)
		return 0;
	a = first * 8;
	b = a + 8;
	c = a + 16;
	d = a + 24;
	e = a + 32;
	for (__u32 i = 0; i < CLS_DEPTH_MAX; i++) {
		if (i >= m->depth)
			break;
		a = cls_step(m, s, a);
		b = cls_step(m, s, b);
		c = cls_step(m, s, c);
		d = cls_step(m, s, d);
		e = cls_step(m, s, e);
	}
	cls_vote(m, s, first, cls_node_value(cls_node(m, a)));
	cls_vote(m, s, first + 1, cls_node_value(cls_node(m, b)));
	cls_vote(m, s, first + 2, cls_node_value(cls_node(m, c)));
	cls_vote(m, s, first + 3, cls_node_value(cls_node(m, d)));
	cls_vote(m, s, first + 4, cls_node_value(cls_node(m, e)));
	return 0;
}

/* Leaves the outputs in s->out. */
static __always_inline void cls_trees(const struct cls_model *m, struct cls_scratch *s, __u32 slot)
{
	s->never = -(1LL << 31);
	for (__u32 i = 0; i < CLS_CLASSES_MAX; i++)
		s->out[i] = m->base[i];
	for (__u32 t = 0; t < CLS_TREES_MAX; t += CLS_ABREAST) {
		if (t >= m->trees)
			break;
		cls_walk(slot, t);
	}
}

#endif
