// SPDX-License-Identifier: Apache-2.0
/* Optimised inference in user space: the same computation as the engine, from features to class and
 * score, scalar or vectorised.
 *
 *	user mlp q15|int8 scalar|vector WIDTH...	ns per inference
 *	user forest scalar|vector TREES DEPTH		ns per inference
 *	user window q15|int8 scalar|vector		ns for the 12 sources of a window, with
 *							their counters in a BPF map
 *
 * Weights are random: time does not depend on them. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_WIDTH 64
#define MAX_LAYERS 8
#define ROUNDS 9
#define ROUND_NS 5e6

static int layers, width[MAX_LAYERS + 1];
static int32_t weight32[MAX_LAYERS][MAX_WIDTH][MAX_WIDTH] __attribute__((aligned(64)));
static int8_t weight8[MAX_LAYERS][MAX_WIDTH][MAX_WIDTH] __attribute__((aligned(64)));
static int64_t bias[MAX_LAYERS][MAX_WIDTH] __attribute__((aligned(64)));
static int32_t bias32[MAX_LAYERS][MAX_WIDTH] __attribute__((aligned(64)));
static int32_t input[MAX_WIDTH];
static int64_t input_mul[MAX_WIDTH], input_add[MAX_WIDTH]; /* scaling */
/* the sigmoid in steps of 1/64, in Q30 */
static uint32_t table[64 * 12 + 1];
static int64_t sink; /* prevents the compiler from removing computations */

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* classify returns the score of a single output in Q15, interpolated linearly in the table, or the
 * class of several outputs. */
static inline int64_t classify(const int64_t *out, int n)
{
	int64_t z = out[0] < 0 ? -out[0] : out[0], low, v;
	int class = 0;

	if (n > 1) {
		for (int i = 1; i < n; i++)
			class = out[i] > out[class] ? i : class;
		return class;
	}
	if (z > 12 * 32768 - 1)
		z = 12 * 32768 - 1;
	low = table[z >> 9];
	v = low + (((int64_t)table[(z >> 9) + 1] - low) * (z & 511) >> 9);
	return ((out[0] < 0 ? (1 << 30) - v : v) + (1 << 14)) >> 15;
}

static int64_t clamp(int64_t v, int64_t least, int64_t most)
{
	return v < least ? least : v > most ? most : v;
}

/* weight[layer][neuron][input], one multiplication per weight. */
#define SCALAR _Pragma("clang loop vectorize(disable) interleave(disable)")

static int64_t q15_scalar(void)
{
	int64_t a[2][MAX_WIDTH];

	SCALAR for (int i = 0; i < width[0]; i++) a[0][i] =
		clamp((input[i] * input_mul[i] + input_add[i]) >> 20, INT32_MIN, INT32_MAX);
	for (int l = 0; l < layers; l++) {
		const int64_t *x = a[l & 1], least = l + 1 < layers ? 0 : INT32_MIN;

		for (int o = 0; o < width[l + 1]; o++) {
			int64_t sum = bias[l][o];

			SCALAR for (int i = 0; i < width[l]; i++)
				sum += weight32[l][o][i] * x[i];
			a[~l & 1][o] = clamp(sum >> 15, least, INT32_MAX);
		}
	}
	return classify(a[layers & 1], width[layers]);
}

static int64_t int8_scalar(void)
{
	int64_t a[2][MAX_WIDTH];

	SCALAR for (int i = 0; i < width[0]; i++)
		a[0][i] = clamp((input[i] * input_mul[i] + input_add[i]) >> 20, 0, 127);
	for (int l = 0; l < layers; l++) {
		const int64_t *x = a[l & 1], limit = l + 1 < layers ? 127 : 1 << 26;

		for (int o = 0; o < width[l + 1]; o++) {
			int64_t sum = 0;

			SCALAR for (int i = 0; i < width[l]; i++)
				sum += weight8[l][o][i] * x[i];
			a[~l & 1][o] = clamp((sum * 77 + bias[l][o]) >> 12, 0, limit);
		}
	}
	return classify(a[layers & 1], width[layers]);
}

/* weight[layer][input][neuron]: each lane of a vector computes a neuron, without horizontal
 * additions. */
typedef int64_t v8 __attribute__((vector_size(64)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef int32_t v16 __attribute__((vector_size(64)));
typedef int8_t v16c __attribute__((vector_size(16)));

#define CLAMP(type, v, least, most)                                                 \
	__builtin_elementwise_min(__builtin_elementwise_max(v, (type){} + (least)), \
				  (type){} + (most))

static int64_t q15_vector(void)
{
	int64_t a[2][MAX_WIDTH] __attribute__((aligned(64)));

	for (int i = 0; i < width[0]; i++)
		a[0][i] =
			clamp((input[i] * input_mul[i] + input_add[i]) >> 20, INT32_MIN, INT32_MAX);
	for (int l = 0; l < layers; l++) {
		int64_t least = l + 1 < layers ? 0 : INT32_MIN;

		for (int o = 0; o < width[l + 1]; o += 8) {
			v8 sum = *(v8 *)&bias[l][o];

			for (int i = 0; i < width[l]; i++)
				sum += __builtin_convertvector(*(v8i *)&weight32[l][i][o], v8) *
				       a[l & 1][i];
			*(v8 *)&a[~l & 1][o] = CLAMP(v8, sum >> 15, least, INT32_MAX);
		}
	}
	return classify(a[layers & 1], width[layers]);
}

static int64_t int8_vector(void)
{
	int32_t a[2][MAX_WIDTH] __attribute__((aligned(64)));
	int64_t out[MAX_WIDTH];

	for (int i = 0; i < width[0]; i++)
		a[0][i] = clamp((input[i] * input_mul[i] + input_add[i]) >> 20, 0, 127);
	for (int l = 0; l < layers; l++) {
		int32_t limit = l + 1 < layers ? 127 : 1 << 26;

		for (int o = 0; o < width[l + 1]; o += 16) {
			v16 sum = {};

			for (int i = 0; i < width[l]; i++)
				sum += __builtin_convertvector(*(v16c *)&weight8[l][i][o], v16) *
				       a[l & 1][i];
			*(v16 *)&a[~l & 1][o] =
				CLAMP(v16, (sum * 77 + *(v16 *)&bias32[l][o]) >> 12, 0, limit);
		}
	}
	for (int i = 0; i < width[layers]; i++)
		out[i] = a[layers & 1][i];
	return classify(out, width[layers]);
}

#define MAX_TREES 64
#define MAX_NODES 4096
struct node {
	int32_t threshold;
	int16_t feature; /* -1: a leaf */
	int16_t left;	 /* the right child follows it */
};
static struct node forest[MAX_TREES][MAX_NODES];
static int trees, depth;

static int64_t forest_scalar(void)
{
	int64_t sum = 0;

	for (int t = 0; t < trees; t++) {
		const struct node *n = forest[t];

		while (n->feature >= 0)
			n = forest[t] + (input[n->feature] <= n->threshold ? n->left : n->left + 1);
		sum += n->threshold;
	}
	return sum;
}

/* Five trees at a time, without branches, for instruction-level parallelism. */
#define STEP 5
static int64_t forest_vector(void)
{
	int64_t sum = 0;

	for (int t = 0; t < trees; t += STEP) {
		int at[STEP] = {};

		for (int d = 0; d < depth; d++)
			for (int k = 0; k < STEP; k++) {
				const struct node *n = &forest[t + k][at[k]];

				at[k] = n->left + (input[n->feature] > n->threshold);
			}
		for (int k = 0; k < STEP; k++)
			sum += forest[t + k][at[k]].threshold;
	}
	return sum;
}

static void fill_forest(void)
{
	for (int t = 0; t < trees; t++)
		for (int i = 0; i < (2 << depth) - 1; i++) {
			int leaf = i >= (1 << depth) - 1;

			forest[t][i] = (struct node){ rand() % 1024, leaf ? -1 : rand() % MAX_WIDTH,
						      leaf ? i : 2 * i + 1 };
		}
}

/* The counters of a window, in a BPF map. */
#define SOURCES 12
static int map_fd;
static int64_t (*infer)(void);

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static void create_window_map(void)
{
	union bpf_attr create = { .map_type = BPF_MAP_TYPE_HASH,
				  .key_size = 8,
				  .value_size = 16,
				  .max_entries = SOURCES };

	map_fd = bpf(BPF_MAP_CREATE, &create);
	if (map_fd < 0) {
		perror("create map");
		exit(1);
	}
	for (uint64_t key = 0; key < SOURCES; key++) {
		uint32_t value[4] = { key, 3, 1, 6 };
		union bpf_attr put = { .map_fd = map_fd,
				       .key = (uint64_t)&key,
				       .value = (uint64_t)value };

		if (bpf(BPF_MAP_UPDATE_ELEM, &put)) {
			perror("update map");
			exit(1);
		}
	}
}

/* As published: it iterates over the keys, reads the counters of each and resets them. Each update
 * moves the key to the head of its bucket. Without the limit on n, the iteration could alternate
 * endlessly between keys of one bucket. */
static int64_t window_scalar(void)
{
	uint64_t key, next;
	uint32_t value[4], zero[4] = {};
	int64_t found = 0;
	union bpf_attr step = { .map_fd = map_fd, .next_key = (uint64_t)&next };

	for (int n = 0; n < SOURCES && !bpf(BPF_MAP_GET_NEXT_KEY, &step); n++) {
		union bpf_attr get = { .map_fd = map_fd,
				       .key = (uint64_t)&next,
				       .value = (uint64_t)value };
		union bpf_attr put = { .map_fd = map_fd,
				       .key = (uint64_t)&next,
				       .value = (uint64_t)zero };

		bpf(BPF_MAP_LOOKUP_ELEM, &get);
		memcpy(input, value, sizeof(value));
		found += infer();
		bpf(BPF_MAP_UPDATE_ELEM, &put);
		key = next;
		step.key = (uint64_t)&key;
	}
	return found;
}

/* One batch call for all keys and counters. The previous counts are subtracted, so that no counter
 * needs to be reset. */
static int64_t window_vector(void)
{
	static uint32_t before[SOURCES][4];
	uint64_t keys[SOURCES];
	uint32_t values[SOURCES][4], cursor;
	union bpf_attr batch = { .batch = { .out_batch = (uint64_t)&cursor,
					    .keys = (uint64_t)keys,
					    .values = (uint64_t)values,
					    .count = SOURCES,
					    .map_fd = map_fd } };
	int64_t found = 0;

	bpf(BPF_MAP_LOOKUP_BATCH, &batch);
	for (unsigned int i = 0; i < batch.batch.count; i++) {
		for (int k = 0; k < 4; k++)
			input[k] = values[i][k] - before[i][k];
		memcpy(before[i], values[i], sizeof(before[i]));
		found += infer();
	}
	return found;
}

/* measure returns the minimum of several rounds, as the benchmark in the kernel does. */
static double measure(int64_t (*run)(void))
{
	double best = 0;
	long repeat = 1;

	for (int round = -2; round < ROUNDS; round++) {
		double start = now_ns(), each;

		for (long i = 0; i < repeat; i++) {
			sink += run();
			__asm__ volatile("" ::: "memory");
		}
		each = (now_ns() - start) / repeat;
		if (round >= 0 && (best == 0 || each < best))
			best = each;
		repeat = ROUND_NS / (each > 1 ? each : 1) + 1;
	}
	return best;
}

static void random_layers(int n, char **widths)
{
	layers = n - 1;
	for (int l = 0; l < n; l++)
		width[l] = atoi(widths[l]);
	for (int l = 0; l < layers; l++)
		for (int o = 0; o < MAX_WIDTH; o++) {
			bias32[l][o] = bias[l][o] = rand() % 65536 - 32768;
			for (int i = 0; i < MAX_WIDTH; i++) {
				weight32[l][o][i] = rand() % 65536 - 32768;
				weight8[l][o][i] = rand() % 255 - 127;
			}
		}
}

int main(int argc, char **argv)
{
	static char *published[] = { "4", "3", "2", "1" };
	int vector;

	for (int i = 0; i < MAX_WIDTH; i++) {
		input[i] = rand() % 1024;
		input_mul[i] = rand() % (1 << 18);
	}
	for (unsigned int i = 0; i < sizeof(table) / sizeof(*table); i++)
		table[i] = rand() >> 1;
	if (argc > 5 && argc - 4 <= MAX_LAYERS + 1 && !strcmp(argv[1], "mlp")) {
		vector = !strcmp(argv[3], "vector");
		random_layers(argc - 4, argv + 4);
		if (!strcmp(argv[2], "int8"))
			printf("%f\n", measure(vector ? int8_vector : int8_scalar));
		else
			printf("%f\n", measure(vector ? q15_vector : q15_scalar));
	} else if (argc == 5 && !strcmp(argv[1], "forest")) {
		trees = atoi(argv[3]);
		depth = atoi(argv[4]);
		fill_forest();
		printf("%f\n", measure(strcmp(argv[2], "vector") ? forest_scalar : forest_vector));
	} else if (argc == 4 && !strcmp(argv[1], "window")) {
		vector = !strcmp(argv[3], "vector");
		if (!strcmp(argv[2], "int8"))
			infer = vector ? int8_vector : int8_scalar;
		else
			infer = vector ? q15_vector : q15_scalar;
		random_layers(4, published);
		create_window_map();
		printf("%f\n", measure(vector ? window_vector : window_scalar));
	} else {
		fprintf(stderr, "usage: see the head of user.c\n");
		return 2;
	}
	return 0;
}
