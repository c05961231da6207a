/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SipHash-2-4 (Aumasson and Bernstein, 2012), a keyed hash of short messages. Initialize the hash
 * with a key, update it with each little-endian 64-bit word, and finish it. The last word has the
 * rest of the message, less than eight bytes, and the message's length in the upper byte. These are
 * macros on local variables, as in the kernel (lib/siphash.c): from functions on a struct clang
 * generates code with more spills. */
#ifndef KERB_SIPHASH_H
#define KERB_SIPHASH_H

#include <linux/types.h>

#define kerb_siphash_rol(x, n) ((x) << (n) | (x) >> (64 - (n)))

#define kerb_siphash_round() \
	do { \
		v0 += v1; v1 = kerb_siphash_rol(v1, 13); v1 ^= v0; v0 = kerb_siphash_rol(v0, 32); \
		v2 += v3; v3 = kerb_siphash_rol(v3, 16); v3 ^= v2; \
		v0 += v3; v3 = kerb_siphash_rol(v3, 21); v3 ^= v0; \
		v2 += v1; v1 = kerb_siphash_rol(v1, 17); v1 ^= v2; v2 = kerb_siphash_rol(v2, 32); \
	} while (0)

#define kerb_siphash_begin(k) \
	__u64 v0 = (k)[0] ^ 0x736f6d6570736575ULL, v1 = (k)[1] ^ 0x646f72616e646f6dULL; \
	__u64 v2 = (k)[0] ^ 0x6c7967656e657261ULL, v3 = (k)[1] ^ 0x7465646279746573ULL

#define kerb_siphash_update(word) \
	do { \
		__u64 siphash_word = word; \
		v3 ^= siphash_word; \
		kerb_siphash_round(); \
		kerb_siphash_round(); \
		v0 ^= siphash_word; \
	} while (0)

#define kerb_siphash_end() \
	({ \
		v2 ^= 0xff; \
		kerb_siphash_round(); \
		kerb_siphash_round(); \
		kerb_siphash_round(); \
		kerb_siphash_round(); \
		v0 ^ v1 ^ v2 ^ v3; \
	})

#endif
