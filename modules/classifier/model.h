/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A packed model, as it lies in a map. modules/classifier/model writes it and has the same structures in Go; the arithmetic is
 * engine.h's. Whatever the words hold, the engine stays within them. */
#ifndef CLS_MODEL_H
#define CLS_MODEL_H

#include "features.h"

#define CLS_SLOTS      4     /* live, shadow, and two that can be written meanwhile (see model/slots.go) */
#define CLS_WORDS      32768 /* of weights or nodes; a power of two */
#define CLS_LAYERS_MAX 8
#define CLS_TREES_MAX  320
#define CLS_DEPTH_MAX  20

enum cls_kind {
	CLS_NONE = 0, /* an empty slot */
	CLS_LAYERED = 1,
	CLS_TREES = 2,
};

enum cls_activation {
	CLS_CLAMP = 0, /* nothing, or ReLU: layer.low says which */
	CLS_LEAKY = 1,
	CLS_SIGMOID = 2,
	CLS_TANH = 3,
};

/* How outputs become a decision. */
enum cls_output {
	CLS_THRESHOLD = 0, /* one output: class 1 if it is above the threshold; score 0 or 1 */
	CLS_LOGISTIC = 1,  /* the same, and the output is the logit of the score */
	CLS_SHARE = 2,	   /* the same, and the output is the score */
	CLS_ARGMAX = 3,	   /* the first of the largest outputs */
	CLS_SOFTMAX = 4,   /* the same, and outputs are logits */
	CLS_SHARES = 5,	   /* the same, and outputs are probabilities */
};

/* Input j of layered models: ((feature * mul) + add) >> shift, at least 0 and at most limit (2^n - 1), and offset added. */
struct cls_input {
	__s64 add;
	__s32 mul;
	__u8 shift;
	__u8 feature;
	__u16 zero;
};

/* A layer. Its rows follow each other in words: for each neuron of the row { __s64 add, mul }, then one word for each of the
 * inputs, rounded up to a multiple of 4 with zeros. With lanes of 3 a word holds the weights of three neurons (mlp.h). */
struct cls_layer {
	__u16 inputs; /* words of a row behind its constants, a multiple of 4 */
	__u16 rows;
	__u16 lanes;	  /* neurons of a row: 1 or 3 */
	__u8 activation;  /* enum cls_activation */
	__u8 shift;	  /* of sums */
	__s32 slope;	  /* leaky: Q15 */
	__u32 post_shift; /* of what an activation other than CLS_CLAMP gives, Q15 */
	__s64 post_mul, post_add;
	__s64 offset; /* added after clamping */
	__u64 limit;  /* 2^n - 1 */
};

struct cls_model {
	__u32 version;
	__u8 kind;	 /* enum cls_kind */
	__u8 output;	 /* enum cls_output */
	__u8 outputs;	 /* 1, or the number of classes */
	__u8 layers;
	__u16 inputs;	 /* of layered models */
	__u16 trees;
	__u16 depth;	 /* of the deepest tree */
	__u8 vectors;	 /* leaves are offsets of one word per class */
	__u8 score_shift;
	__u32 words_used;
	__u32 zero;
	__s64 threshold;
	__s64 score_mul; /* (output * mul) >> shift is Q15 */
	__s64 input_offset;
	__u64 input_limit;
	__s64 base[CLS_CLASSES_MAX]; /* trees: outputs begin with it */
	struct cls_input input[CLS_WIDTH_MAX];
	struct cls_layer layer[CLS_LAYERS_MAX];
	__u64 words[CLS_WORDS + 128]; /* what follows the last may be read, and is zero */
};

/* Nodes of trees are words, children side by side, and the first ones are the roots.
 *
 *	63          32 31               22 21             0
 *	[ threshold   | offset of feature | offset of left ]	both in bytes
 *
 * Right is taken when the feature is greater than the threshold. A leaf is its own left child, its feature is `never`, and
 * its threshold is the value. */
#define CLS_NODE_LEFT	 0x3ffff8
#define CLS_NODE_FEATURE 22

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLS_SLOTS);
	__type(key, __u32);
	__type(value, struct cls_model);
} models SEC(".maps");

/* By role: the slot of its model plus 1, 0 for none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CLS_ROLES);
	__type(key, __u32);
	__type(value, __u32);
} active SEC(".maps");

#endif
