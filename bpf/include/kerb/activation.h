/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Activation functions on Q15 numbers, from tables with steps of 1/64 and linear interpolation.
 * Their error is below 2^-16. */
#ifndef KERB_ACTIVATION_H
#define KERB_ACTIVATION_H

#include <kerb/model.h>
#include <kerb/model_tables_gen.h>

#define KERB_Q15_ONE	       (1 << 15)
#define KERB_MODEL_TABLE_ONE   (1LL << 30) /* values of tables are Q30 */
#define KERB_MODEL_TABLE_STEP  9	   /* 1/64 in Q15 is 2^9 */
#define KERB_MODEL_TABLE_LIMIT ((KERB_MODEL_TABLE_STEPS << KERB_MODEL_TABLE_STEP) - 1)

/* Value of a table at z >= 0; arguments beyond its end are taken as the end. */
static __always_inline __s64 kerb_q15_table(const __u32 *table, __u64 z)
{
	__s64 low, high, beyond = (__s64)(KERB_MODEL_TABLE_LIMIT - z) >> 63;

	kerb_opaque(beyond);
	z = (z & ~beyond) + (beyond & KERB_MODEL_TABLE_LIMIT);
	if (z > KERB_MODEL_TABLE_LIMIT) /* never true, but the verifier does not know it */
		return 0;
	low = table[z >> KERB_MODEL_TABLE_STEP];
	high = table[(z >> KERB_MODEL_TABLE_STEP) + 1];
	return low + ((high - low) * (__s64)(z & ((1 << KERB_MODEL_TABLE_STEP) - 1)) >>
		      KERB_MODEL_TABLE_STEP);
}

/* 1 / (1 + exp(-z)) in Q30; for -z it is 1 minus that of z. The sign is unpredictable, so nothing
 * branches on it. */
static __always_inline __s64 kerb_q15_sigmoid(__s64 z)
{
	__s64 negative = z >> 63, v;

	kerb_opaque(negative);
	v = kerb_q15_table(kerb_model_sigmoid_table, (z ^ negative) - negative);
	return (v ^ negative) - negative + (negative & KERB_MODEL_TABLE_ONE);
}

static __always_inline __s64 kerb_q15_exp_minus(__u64 z)
{
	return kerb_q15_table(kerb_model_exp_table, z);
}

static __always_inline __s64 kerb_q15_round(__s64 v, __u32 shift)
{
	return (v + (1LL << (shift - 1))) >> shift;
}

/* Arguments and result are Q15. */
__noinline __s64 kerb_q15_activate(__s64 z, __u32 activation, __s64 slope)
{
	switch (activation) {
	case KERB_MODEL_LEAKY:
		return z < 0 ? kerb_q15_round(z * slope, 15) : z;
	case KERB_MODEL_SIGMOID:
		return kerb_q15_round(kerb_q15_sigmoid(z), 15);
	case KERB_MODEL_TANH:
		return kerb_q15_round(2 * kerb_q15_sigmoid(2 * z) - KERB_MODEL_TABLE_ONE, 15);
	default:
		return z;
	}
}

#endif
