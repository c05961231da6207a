// SPDX-License-Identifier: Apache-2.0
/* The engine's arithmetic as one would write it in user space: what the kernel's is measured
 * against. Prints nanoseconds of CPU time per inference (test runs of the kernel do not count time
 * of other threads either), and the sums of classes and of scores over the rows. Usage: user MODEL
 * ROWS FEATURES REPEATS, files as in the maps. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <kerb/activation.h>

static struct kerb_model model;
static __s64 a[2][KERB_MODEL_WIDTH_MAX + 8], out[KERB_MODEL_CLASSES_MAX];

static __s64 clamp(__s64 v, __u64 limit) { return v < 0 ? 0 : v > (__s64)limit ? (__s64)limit : v; }

static __s64 neuron(const struct kerb_model_layer *l, const __u64 *c, __u64 sum)
{
	return clamp((__s64)(sum * c[1] + c[0]) >> l->shift, l->limit) + l->offset;
}

/* lanes is a constant where it is called. */
static __always_inline void layer(const struct kerb_model_layer *l, const __s64 *x, __s64 *y,
				  int lanes)
{
	const __u64 *c = model.words + l->at, lane_mask = (1 << 21) - 1;

	for (int row = 0; row < l->rows; row++, c += l->stride) {
		for (int word = 0; word < 2; word++) {
			const __u64 *w = c + 4 * lanes + word, *k = c + 2 * lanes * word;
			__u64 sum = lanes == 3 ? 1ULL << 20 | 1ULL << 41 | 1ULL << 62 : 0;

			for (int i = 0; i < l->inputs; i += 4)
				for (int j = i; j < i + 4; j++)
					sum += w[j * 2] * x[j];
			if (lanes == 1) {
				*y++ = neuron(l, k, sum);
				continue;
			}
			*y++ = neuron(l, k, sum & lane_mask);
			*y++ = neuron(l, k + 2, sum >> 21 & lane_mask);
			*y++ = neuron(l, k + 4, sum >> 42);
		}
	}
}

static void small(const struct kerb_model_layer *l, const __s64 *x, __s64 *y)
{
	for (int n = 0; n < l->neurons; n++) {
		const __u64 *w = model.words + l->at + 5 * n;

		y[n] = clamp(
			(__s64)(w[0] + w[1] * x[0] + w[2] * x[1] + w[3] * x[2] + w[4] * x[3]) >>
				l->shift,
			l->limit);
	}
}

static const __s64 *layers(const __s64 *features)
{
	__s64 offset = model.kind == KERB_MODEL_SMALL ? 0 : model.input_offset;
	int i;

	for (i = 0; i < model.inputs; i++) {
		const struct kerb_model_input *in = &model.input[i];

		a[0][i] = clamp((features[in->feature / 8] * in->mul + in->add) >> in->shift,
				model.input_limit) +
			  offset;
	}
	for (i = 0; i < model.layers; i++) {
		if (model.kind == KERB_MODEL_SMALL)
			small(&model.layer[i], a[i & 1], a[~i & 1]);
		else if (model.kind == KERB_MODEL_PACKED)
			layer(&model.layer[i], a[i & 1], a[~i & 1], 3);
		else
			layer(&model.layer[i], a[i & 1], a[~i & 1], 1);
	}
	for (int n = 0; model.kind == KERB_MODEL_SMALL && n < model.outputs; n++)
		a[i & 1][n] += model.layer[i - 1].offset;
	return a[i & 1];
}

static const __s64 *trees(const __s64 *features)
{
	out[0] = model.base[0];
	for (int t = 0; t < model.trees; t++) {
		__u64 at = t, node;

		for (;;) {
			node = model.words[at];
			if ((__u32)node >> KERB_MODEL_NODE_FEATURE == 8 * KERB_FEATURES_MAX)
				break;
			at = (node & KERB_MODEL_NODE_LEFT) / 8 +
			     (features[((__u32)node >> KERB_MODEL_NODE_FEATURE) / 8] >
			      (__s64)node >> 32);
		}
		out[0] += (__s64)node >> 32;
	}
	return out;
}

static void infer(const __s64 *features, struct kerb_decision *d)
{
	const __s64 *o = model.kind == KERB_MODEL_TREES ? trees(features) : layers(features);
	__s64 q = o[0] * model.score_mul >> model.score_shift;

	d->version = model.version;
	d->class = o[0] > model.threshold;
	if (model.outputs > 1) {
		d->class = 0;
		for (int i = 1; i < model.outputs; i++)
			if (o[i] > o[d->class])
				d->class = i;
		d->score = d->class ? KERB_Q15_ONE : 0;
	} else if (model.output == KERB_MODEL_LOGISTIC) {
		d->score = kerb_q15_round(kerb_q15_sigmoid(q), 15);
	} else {
		d->score = q < 0 ? 0 : q > KERB_Q15_ONE ? KERB_Q15_ONE : q;
	}
}

int main(int argc, char **argv)
{
	FILE *m = argc == 5 ? fopen(argv[1], "r") : 0, *r = m ? fopen(argv[2], "r") : 0;
	int features = r ? atoi(argv[3]) : 0, repeats = r ? atoi(argv[4]) : 0, rows;
	static __s64 row[256 * KERB_FEATURES_MAX], use[KERB_FEATURES_MAX];
	struct timespec from, to;
	volatile struct kerb_decision last;
	struct kerb_decision d;
	__u64 classes = 0, scores = 0;

	if (!r || !fread(&model, 1, sizeof(model), m) || !(rows = fread(row, 8 * features, 256, r)))
		return 1;
	for (int i = 0; i < rows; i++) {
		infer(row + i * features, &d);
		classes += d.class;
		scores += d.score;
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (int i = 0; i < repeats; i++) {
		const __s64 *next = row + i % rows * features;

		for (int j = 0; j < features; j++)
			((volatile __s64 *)use)[j] = next[j];
		infer(use, &d);
		*(struct kerb_decision *)&last = d;
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	printf("%g %llu %llu\n",
	       ((to.tv_sec - from.tv_sec) * 1e9 + to.tv_nsec - from.tv_nsec) / repeats, classes,
	       scores);
	return 0;
}
