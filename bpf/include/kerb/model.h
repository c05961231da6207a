/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A packed model, as it is stored in a map. sdk/model writes it and mirrors the structures in Go;
 * engine.h has the arithmetic. Whatever the words contain, the engine stays within them. */
#ifndef KERB_MODEL_H
#define KERB_MODEL_H

#include <kerb/verifier.h>
#include <kerb/features.h>

/* live, shadow, and two that can be written in the meantime (see model/slots.go) */
#define KERB_MODEL_SLOTS	4
#define KERB_MODEL_WORDS	32768 /* of weights or nodes; a power of two */
#define KERB_MODEL_LAYERS_MAX	8
#define KERB_MODEL_SMALL_LAYERS 4
#define KERB_MODEL_SMALL_STRIDE 20
#define KERB_MODEL_TREES_MAX	320
#define KERB_MODEL_DEPTH_MAX	20

enum kerb_model_kind {
	KERB_MODEL_NONE = 0,   /* an empty slot */
	KERB_MODEL_EXACT = 1,  /* layers in Q15: layers.h */
	KERB_MODEL_PACKED = 2, /* layers in 8 bits, three neurons to a word */
	/* either kind of layers, at most 4 of them, 4 inputs, 4 neurons each, no activation but
	 * KERB_MODEL_CLAMP */
	KERB_MODEL_SMALL = 3,
	KERB_MODEL_TREES = 4, /* trees.h */
};

enum kerb_model_activation {
	KERB_MODEL_CLAMP = 0, /* none, or ReLU: layer.low determines which */
	KERB_MODEL_LEAKY = 1,
	KERB_MODEL_SIGMOID = 2,
	KERB_MODEL_TANH = 3,
};

/* How outputs are converted to a decision. */
enum kerb_model_output {
	KERB_MODEL_THRESHOLD =
		0, /* one output: class 1 if it is above the threshold; score 0 or 1 */
	KERB_MODEL_LOGISTIC = 1, /* the same, and the output is the logit of the score */
	KERB_MODEL_SHARE = 2,	 /* the same, and the output is the score */
	KERB_MODEL_ARGMAX = 3,	 /* the first of the largest outputs */
	KERB_MODEL_SOFTMAX = 4,	 /* the same, and outputs are logits */
	KERB_MODEL_SHARES = 5,	 /* the same, and outputs are probabilities */
};

/* An input of layered models: (feature * mul + add) >> shift, limited to 0..input_limit, plus
 * input_offset. */
struct kerb_model_input {
	__s64 add, mul;
	__u16 feature; /* its offset in bytes */
	__u8 shift;
	__u8 zero[5];
};

/* A layer. Its rows follow each other in words: for each neuron of the row { __s64 add, mul }, then
 * two words for each input, filled up to 4 or a multiple of 8 inputs with zeros. A word is a weight
 * of one neuron, or of three. Small models have { __s64 add, weight[4] } for each of 4 neurons, and
 * all begin at word 0. */
struct kerb_model_layer {
	__u32 at;     /* the first row */
	__u16 inputs; /* 4 or a multiple of 8 */
	__u16 stride; /* words of a row */
	__u16 rows;
	__u16 neurons;
	__u8 activation; /* enum kerb_model_activation */
	__u8 shift;	 /* of sums; of packed ones it is KERB_MODEL_PACKED_SHIFT */
	__u8 post_shift; /* y = (activation * post_mul + post_add) >> post_shift, if there is one */
	__u8 zero;
	__s64 offset; /* z = limited to 0..limit (2^n - 1), plus offset */
	__u64 limit;
	__s64 slope; /* leaky: Q15 */
	__s64 post_mul, post_add, post_offset;
	__u64 post_limit;
};

struct kerb_model {
	__u32 version;
	__u8 kind;    /* enum kerb_model_kind */
	__u8 output;  /* enum kerb_model_output */
	__u8 outputs; /* 1, or the number of classes */
	__u8 layers;
	__u16 inputs; /* of layered models */
	__u16 trees;
	__u16 depth;  /* of the deepest tree */
	__u8 vectors; /* leaves are offsets of one word per class */
	__u8 score_shift;
	__u32 words_used;
	__u32 zero;
	__s64 threshold;
	__s64 score_mul; /* (output * mul) >> shift is Q15 */
	__s64 input_offset;
	__u64 input_limit;
	__s64 base[KERB_MODEL_CLASSES_MAX]; /* trees: initial values of the outputs */
	struct kerb_model_input input[KERB_MODEL_WIDTH_MAX];
	struct kerb_model_layer layer[KERB_MODEL_LAYERS_MAX];
	__u64 words[KERB_MODEL_WORDS + 192]; /* words after the last are zero, and may be read */
};

/* Nodes of trees are words, children side by side, and the first ones are the roots.
 *
 *	63          32 31               22 21             0
 *	[ threshold   | offset of feature | offset of left ]	both in bytes; that of left ends
 *								with a 1
 *
 * Right is taken when the feature is greater than the threshold. A leaf is its own left child, its
 * feature is `never`, and its threshold is the value. */
#define KERB_MODEL_NODE_LEFT	0x3fff8
#define KERB_MODEL_NODE_FEATURE 22

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_MODEL_SLOTS);
	__type(key, __u32);
	__type(value, struct kerb_model);
} models SEC(".maps");

/* By role: the slot of its model plus 1, 0 for none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_MODEL_ROLES);
	__type(key, __u32);
	__type(value, __u32);
} active SEC(".maps");

#endif
