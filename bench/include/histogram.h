// SPDX-License-Identifier: Apache-2.0
/* A histogram of times in ns: exact below 128 ns, above in buckets of under 1%. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>

enum { STEP_BITS = 7, STEPS = 1 << STEP_BITS, OCTAVES = 32, SLOTS = STEPS * OCTAVES };

struct histogram {
	uint64_t n;
	uint64_t max;
	double sum, squares;
	uint32_t slots[SLOTS];
};

static inline int slot_index(uint64_t ns)
{
	int shift = ns < STEPS ? 0 : 63 - __builtin_clzll(ns) - STEP_BITS;
	int slot = ns < STEPS ? (int)ns : (shift + 1) * STEPS + (int)(ns >> shift) - STEPS;

	return slot < SLOTS ? slot : SLOTS - 1;
}

static inline double slot_value(int slot)
{
	int shift = slot / STEPS - 1;

	return shift < 0 ? slot : (slot % STEPS + STEPS + 0.5) * (1ull << shift);
}

static inline void histogram_add(struct histogram *h, uint64_t ns)
{
	h->n++;
	h->max = ns > h->max ? ns : h->max;
	h->sum += ns;
	h->squares += (double)ns * ns;
	h->slots[slot_index(ns)]++;
}

static inline void histogram_merge(struct histogram *to, const struct histogram *from)
{
	to->n += from->n;
	to->max = from->max > to->max ? from->max : to->max;
	to->sum += from->sum;
	to->squares += from->squares;
	for (int i = 0; i < SLOTS; i++)
		to->slots[i] += from->slots[i];
}

static inline double histogram_percentile(const struct histogram *h, double p)
{
	uint64_t rank = ceil(p / 100 * h->n), seen = 0;

	for (int i = 0; i < SLOTS; i++) {
		seen += h->slots[i];
		if (seen && seen >= rank)
			return slot_value(i);
	}
	return 0;
}

/* print_times prints members of a JSON object, in us. */
static inline void print_times(const struct histogram *h)
{
	static const double ps[] = { 1, 25, 50, 75, 99, 99.9 };
	double variance = h->n > 1 ? (h->squares - h->sum * h->sum / h->n) / (h->n - 1) : 0;

	for (unsigned int i = 0; i < sizeof(ps) / sizeof(*ps); i++)
		printf("\"p%g\":%.3f,", ps[i], histogram_percentile(h, ps[i]) / 1e3);
	printf("\"max\":%.3f,\"mean\":%.3f,\"stddev\":%.3f,", h->max / 1e3,
	       h->n ? h->sum / h->n / 1e3 : 0, sqrt(fmax(variance, 0)) / 1e3);
}

/* print_bins prints the member "bins" of a JSON object: pairs of a bin's upper bound in us and its
 * count, four bins per power of two, without empty ones. */
static inline void print_bins(const struct histogram *h)
{
	const char *comma = "";

	printf("\"bins\":[");
	for (int i = 0; i < SLOTS; i += STEPS / 4) {
		uint64_t n = 0;

		for (int j = i; j < i + STEPS / 4; j++)
			n += h->slots[j];
		if (n)
			printf("%s[%.3f,%lu]", comma, slot_value(i + STEPS / 4 - 1) / 1e3, n);
		if (n)
			comma = ",";
	}
	printf("]");
}
