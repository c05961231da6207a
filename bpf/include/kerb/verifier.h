/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Hiding values from the verifier, and from the compiler.
 *
 * The verifier walks code again for each state that it cannot prune as equivalent to one before. A
 * known scalar, such as the result of a branch or the length of a header, makes states differ, so
 * that all following code is walked again. Hiding the scalar (kerb_reread, kerb_through,
 * kerb_unknown_zero, kerb_forget) avoids that on every kernel, most of all before Linux 6.2, where
 * states differ by any scalar, not only by those that matter for safety (precise scalars). The
 * compiler uses known values, too: it turns arithmetic into branches, or removes bounds that the
 * verifier needs, which kerb_opaque and kerb_bound prevent.
 *
 * Kernels that need them:
 *  - kerb_ctx_field: all
 *  - kerb_opaque: all, as it prevents branches; for bounds up to Linux 6.7, where a comparison with
 *    != gives no bound, and up to 6.12, where a u16 loses its bound on the stack
 *  - kerb_bound: up to 6.1, where a bound applies only to the register compared or masked
 *  - kerb_detach: all, as a comparison also bounds the registers that a number was computed
 *    from; most of all on 7.3, which keeps more of these relations
 *  - kerb_reread, kerb_through, kerb_unknown_zero, kerb_forget, kerb_mix: all, most useful up to
 *    6.1
 *  - kerb_key32, kerb_overwritten: all, as the stack is compared in slots of 8 bytes, and a write
 *    to 4 of them does not end the lifetime of the previous contents of the slot */
#ifndef KERB_VERIFIER_H
#define KERB_VERIFIER_H

#include <linux/bpf.h>
#include <linux/types.h>

#ifdef KERB_HOOK_XDP
typedef struct xdp_md kerb_ctx;
#define KERB_CTX_IFINDEX ingress_ifindex
#else
typedef struct __sk_buff kerb_ctx;
#define KERB_CTX_IFINDEX ifindex
#endif

/* A global function: the verifier checks it once, independently of its callers. It takes scalars
 * and the context of the hook only, and is not static. */
#define KERB_GLOBAL __attribute__((noinline))

/* A variable for a 32-bit map key, in its lower half (little endian). The verifier compares the
 * stack in slots of 8 bytes, and treats the previous contents of a slot as live until all 8 bytes
 * are written. A __u32 is part of a slot: states that differ in its previous contents, such as the
 * key of another map, are not pruned, and the following code is walked once for each. */
typedef __u64 kerb_key32;
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the key is the lower half");

/* Makes the compiler write all 8 bytes of x to the stack here, even if part of them changes
 * later. */
#define kerb_overwritten(x) asm volatile("" : "+m"(x))

/* Loads a 32-bit field of the context of the hook. In assembler, as the compiler may add the offset
 * to the pointer first, and the verifier rejects modified context pointers. */
#define kerb_ctx_field(ctx, field)                                                  \
	({                                                                          \
		__u64 _value;                                                       \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                               \
			     : "=r"(_value)                                         \
			     : "r"(ctx), "i"(__builtin_offsetof(kerb_ctx, field))); \
		_value;                                                             \
	})

/* Hides the value of x from the compiler: the following code is computed from x at this place,
 * without additional branches, and bounds of x are checked again. */
#define kerb_opaque(x)	   asm volatile("" : "+r"(x))
#define kerb_opaque2(x, y) asm volatile("" : "+r"(x), "+r"(y))

/* x &= mask (a constant), which the compiler does not remove. */
#define kerb_bound(x, mask) asm volatile("%0 &= %1" : "+r"(x) : "i"(mask))

/* Makes x an independent scalar for the verifier, with the same value: a comparison of x does not
 * bound what it was computed from. */
#define kerb_detach(x) asm volatile("%0 ^= 0" : "+r"(x))

/* Loads x from memory again, instead of reusing a value in a register. */
#define kerb_reread(x) (*(const volatile typeof(x) *)&(x))

/* Returns number as an unknown scalar, by storing it to a map and loading it. word: map memory of
 * the size of the number. */
#define kerb_through(word, number)                            \
	({                                                    \
		*(volatile typeof(word) *)&(word) = (number); \
		*(volatile typeof(word) *)&(word);            \
	})

/* Returns zero, as an unknown scalar. */
#define kerb_unknown_zero(ctx)                                        \
	({                                                            \
		__u64 _zero = kerb_ctx_field(ctx, KERB_CTX_IFINDEX) - \
			      kerb_ctx_field(ctx, KERB_CTX_IFINDEX);  \
		kerb_opaque(_zero);                                   \
		_zero;                                                \
	})

/* Makes the results of the parser unknown scalars, except the bounds of the packet and l4_len.
 * zero: an unknown zero. */
#define kerb_mix(pkt, zero)               \
	do {                              \
		(pkt)->l3 ^= (zero);      \
		(pkt)->l4 ^= (zero);      \
		(pkt)->family ^= (zero);  \
		(pkt)->proto ^= (zero);   \
		(pkt)->flags ^= (zero);   \
		(pkt)->outcome ^= (zero); \
	} while (0)

#endif
