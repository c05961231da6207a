/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Functions of numbers in Q15, from tables with steps of 1/64 and straight lines between. Their
 * error is below 2^-16. */
#ifndef CLS_ACTIVATION_H
#define CLS_ACTIVATION_H

#include "model.h"
#include "tables_gen.h"

#define CLS_ONE		(1 << 15)
#define CLS_TABLE_ONE	(1LL << 30) /* values of tables are Q30 */
#define CLS_TABLE_STEP	9	    /* 1/64 in Q15 is 2^9 */
#define CLS_TABLE_LIMIT ((CLS_TABLE_STEPS << CLS_TABLE_STEP) - 1)

/* Value of a table at z >= 0; what is beyond its end is taken for the end. */
static __always_inline __s64 cls_table(const __u32 *table, __u64 z)
{
	__s64 low, high, beyond = (__s64)(CLS_TABLE_LIMIT - z) >> 63;

	kerb_opaque(beyond);
	z = (z & ~beyond) + (beyond & CLS_TABLE_LIMIT);
	if (z > CLS_TABLE_LIMIT) /* never; the verifier does not know */
		return 0;
	low = table[z >> CLS_TABLE_STEP];
	high = table[(z >> CLS_TABLE_STEP) + 1];
	return low + ((high - low) * (__s64)(z & ((1 << CLS_TABLE_STEP) - 1)) >> CLS_TABLE_STEP);
}

/* 1 / (1 + exp(-z)) in Q30; of -z it is 1 - that of z. The sign is unpredictable, so nothing
 * branches on it. */
static __always_inline __s64 cls_sigmoid(__s64 z)
{
	__s64 negative = z >> 63, v;

	kerb_opaque(negative);
	v = cls_table(cls_sigmoid_table, (z ^ negative) - negative);
	return (v ^ negative) - negative + (negative & CLS_TABLE_ONE);
}

static __always_inline __s64 cls_exp_minus(__u64 z)
{
	return cls_table(cls_exp_table, z);
}

static __always_inline __s64 cls_round(__s64 v, __u32 shift)
{
	return (v + (1LL << (shift - 1))) >> shift;
}

/* All in Q15. */
__noinline __s64 cls_activate(__s64 z, __u32 activation, __s64 slope)
{
	switch (activation) {
	case CLS_LEAKY:
		return z < 0 ? cls_round(z * slope, 15) : z;
	case CLS_SIGMOID:
		return cls_round(cls_sigmoid(z), 15);
	case CLS_TANH:
		return cls_round(2 * cls_sigmoid(2 * z) - CLS_TABLE_ONE, 15);
	default:
		return z;
	}
}

#endif
