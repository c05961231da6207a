/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Fixed-point numbers, as eBPF has no floating point: signed, 32 bits, of which 16 are the fraction
 * (Q16.16). They reach from -32768 to 32768 - 2^-16 in steps of 2^-16 = 0.0000153. Results beyond
 * that are the nearest number that there is. No function loops or divides by a signed number, and
 * none needs a map, so all can be called anywhere, and on a host, too.
 *
 * Errors are in steps, against the exact result for the same input, and hold for all inputs
 * (bpf/bpftest/fixed_test.go). */
#ifndef KERB_FIXED_H
#define KERB_FIXED_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include <kerb/verifier.h>

typedef __s32 kerb_fixed;

#define KERB_FIXED_BITS 16
#define KERB_FIXED_ONE	(1 << KERB_FIXED_BITS)
#define KERB_FIXED_MAX	((kerb_fixed)0x7fffffff)
#define KERB_FIXED_MIN	((kerb_fixed)-0x7fffffff - 1)

/* The nearest number to a constant, such as KERB_FIXED(0.25). The compiler computes it. */
#define KERB_FIXED(constant) ((kerb_fixed)((constant) * 65536.0 + ((constant) < 0 ? -0.5 : 0.5)))

static __always_inline kerb_fixed kerb_fixed_clamp(__s64 v)
{
	return v > KERB_FIXED_MAX ? KERB_FIXED_MAX : v < KERB_FIXED_MIN ? KERB_FIXED_MIN : v;
}

/* Exact, unless beyond the range, as are the next two. */
static __always_inline kerb_fixed kerb_fixed_from(__s32 whole)
{
	return kerb_fixed_clamp((__s64)whole * KERB_FIXED_ONE);
}

static __always_inline kerb_fixed kerb_fixed_add(kerb_fixed a, kerb_fixed b)
{
	return kerb_fixed_clamp((__s64)a + b);
}

static __always_inline kerb_fixed kerb_fixed_sub(kerb_fixed a, kerb_fixed b)
{
	return kerb_fixed_clamp((__s64)a - b);
}

/* The nearest whole number; halves go up. */
static __always_inline __s32 kerb_fixed_round(kerb_fixed a)
{
	return ((__s64)a + KERB_FIXED_ONE / 2) >> KERB_FIXED_BITS;
}

/* Error at most 0.5. */
static __always_inline kerb_fixed kerb_fixed_mul(kerb_fixed a, kerb_fixed b)
{
	return kerb_fixed_clamp(((__s64)a * b + KERB_FIXED_ONE / 2) >> KERB_FIXED_BITS);
}

/* Error at most 0.5. Division by 0 gives the end of the range with the sign of a, and 0 of 0. */
static __always_inline kerb_fixed kerb_fixed_div(kerb_fixed a, kerb_fixed b)
{
	__u64 n = (__u64)(a < 0 ? -(__s64)a : a) << KERB_FIXED_BITS;
	__u64 d = b < 0 ? -(__s64)b : b, q;

	if (!d)
		return !a ? 0 : a < 0 ? KERB_FIXED_MIN : KERB_FIXED_MAX;
	q = (n + d / 2) / d;
	return kerb_fixed_clamp((a < 0) != (b < 0) ? -(__s64)q : (__s64)q);
}

/* One binary digit of a square root: adds 2^n to the root if its square still fits. Without a
 * branch, as the verifier would follow all 2^24 paths; nor with a mask, which new kernels treat as
 * a branch (fork on AND, Linux 6.18). */
static __always_inline void kerb_fixed_root_bit(__u64 *rest, __u64 *root, __u32 n)
{
	__u64 tried = *root + (1ULL << n), fits = (*rest - tried) >> 63 ^ 1;

	kerb_opaque(fits); /* otherwise the compiler would make a branch of it */
	*rest -= tried * fits;
	*root = (*root >> 1) + (fits << n);
}

/* Error at most 0.5; 0 of negative numbers. */
static __always_inline kerb_fixed kerb_fixed_sqrt(kerb_fixed a)
{
	__u64 rest = a < 0 ? 0 : (__u64)a << KERB_FIXED_BITS, root = 0; /* 47 bits */

#define KERB_FIXED_ROOT_4(n)                          \
	kerb_fixed_root_bit(&rest, &root, n);         \
	kerb_fixed_root_bit(&rest, &root, (n) - 2);   \
	kerb_fixed_root_bit(&rest, &root, (n) - 4);   \
	kerb_fixed_root_bit(&rest, &root, (n) - 6)
	KERB_FIXED_ROOT_4(46);
	KERB_FIXED_ROOT_4(38);
	KERB_FIXED_ROOT_4(30);
	KERB_FIXED_ROOT_4(22);
	KERB_FIXED_ROOT_4(14);
	KERB_FIXED_ROOT_4(6);
#undef KERB_FIXED_ROOT_4
	return root + (rest > root); /* the remainder is at least 2 * root * fraction */
}

/* Polynomials below have 30 bits of fraction in 64, and their variable is from 0 to 1. */
#define KERB_FIXED_UNIT (1LL << 30)

static __always_inline __s64 kerb_fixed_step(__s64 sum, __s64 x, __s64 coefficient)
{
	return (sum * x >> 30) + coefficient;
}

/* The sine of a phase; 2^64 is a full turn. */
static __always_inline kerb_fixed kerb_fixed_wave(__u64 phase)
{
	__s64 t = phase >> 32 & (KERB_FIXED_UNIT - 1), u, sum; /* within a quarter */

	if (phase >> 62 & 1)
		t = KERB_FIXED_UNIT - t;
	u = t * t >> 30;
	sum = kerb_fixed_step(162856, u, -5018824); /* sin(pi / 2 * t) / t, of u = t * t */
	sum = kerb_fixed_step(sum, u, 85566398);
	sum = kerb_fixed_step(sum, u, -693598305);
	sum = kerb_fixed_step(sum, u, 1686629706);
	sum = (sum * t >> 30) + (1 << 13);
	return phase >> 63 ? -(kerb_fixed)(sum >> 14) : (kerb_fixed)(sum >> 14);
}

/* 2^48 / (2 * pi): converts an angle in radians to a phase. */
#define KERB_FIXED_PHASE 44798133900177ULL

/* The sine of an angle in radians, of any size. Error at most 0.51. */
static __always_inline kerb_fixed kerb_fixed_sin(kerb_fixed a)
{
	return kerb_fixed_wave((__u64)(__s64)a * KERB_FIXED_PHASE);
}

/* The cosine. Error at most 0.51. */
static __always_inline kerb_fixed kerb_fixed_cos(kerb_fixed a)
{
	return kerb_fixed_wave((__u64)(__s64)a * KERB_FIXED_PHASE + (1ULL << 62));
}

/* e to the power of a. Error at most 0.51 for a < 1, and 8 (0.4 millionths) near the end of the
 * range, which ln(32768) = 10.4 reaches. */
static __always_inline kerb_fixed kerb_fixed_exp(kerb_fixed a)
{
	__s64 power, x, sum;

	if (a >= KERB_FIXED(10.39721)) /* ln(32768) = 10.397208 */
		return KERB_FIXED_MAX;
	if (a < KERB_FIXED(-12))
		return 0;
	power = (__s64)a * 1549082005; /* of 2, with 46 bits of fraction */
	x = power >> 16 & (KERB_FIXED_UNIT - 1);
	sum = kerb_fixed_step(23239, x, 153573); /* 2^x */
	sum = kerb_fixed_step(sum, x, 1441968);
	sum = kerb_fixed_step(sum, x, 10322487);
	sum = kerb_fixed_step(sum, x, 59598342);
	sum = kerb_fixed_step(sum, x, 257941089);
	sum = kerb_fixed_step(sum, x, 744261126);
	sum = kerb_fixed_step(sum, x, KERB_FIXED_UNIT);
	power = 14 - (power >> 46); /* from 0 to 32 */
	return kerb_fixed_clamp((sum + (1LL << power >> 1)) >> power);
}

/* The natural logarithm. Error at most 0.52; the lower end of the range for 0 and below. */
static __always_inline kerb_fixed kerb_fixed_log(kerb_fixed a)
{
	__u32 n = a, log2 = 0;
	__s64 x, sum;

	if (a <= 0)
		return KERB_FIXED_MIN;
#define KERB_FIXED_LOG2_BIT(bits)          \
	if (n >> (bits)) {                 \
		n >>= (bits);              \
		log2 += (bits);            \
	}
	KERB_FIXED_LOG2_BIT(16)
	KERB_FIXED_LOG2_BIT(8)
	KERB_FIXED_LOG2_BIT(4)
	KERB_FIXED_LOG2_BIT(2)
	KERB_FIXED_LOG2_BIT(1)
#undef KERB_FIXED_LOG2_BIT
	x = ((__s64)a << (30 - log2)) - KERB_FIXED_UNIT;
	sum = kerb_fixed_step(-6449543, x, 36791334); /* ln(1 + x) */
	sum = kerb_fixed_step(sum, x, -99096081);
	sum = kerb_fixed_step(sum, x, 177165393);
	sum = kerb_fixed_step(sum, x, -257089624);
	sum = kerb_fixed_step(sum, x, 355888133);
	sum = kerb_fixed_step(sum, x, -536683543);
	sum = kerb_fixed_step(sum, x, 1073734985);
	sum = kerb_fixed_step(sum, x, 42);
	sum += ((__s64)log2 - KERB_FIXED_BITS) * 744261118; /* ln(2) */
	return (sum + (1 << 13)) >> 14;
}

#endif
