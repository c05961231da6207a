/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways to keep the verifier, and the compiler before it, from knowing too much or too little.
 *
 * The verifier follows a program once for each state that it distinguishes from those it has
 * followed. A number that it knows, as the verdict of a branch or the length of a header, makes a
 * state of its own: all that is behind is followed again. What hides such a number (kerb_reread,
 * kerb_through, kerb_unknown_zero, kerb_forget) saves that, on every kernel; before Linux 6.2
 * states differ in any number, later ones only in those that matter, so old kernels need it most.
 * The compiler knows the numbers as well and turns arithmetic into branches or leaves out bounds
 * that the verifier needs: kerb_opaque and kerb_bound.
 *
 *   kerb_ctx_field     all kernels
 *   kerb_opaque        bounds: all kernels; up to 6.7 none follows from a comparison with !=,
 *                      up to 6.12 none of a short that was on the stack. Branches: all kernels
 *   kerb_bound         up to 6.1 a bound counts only in the register that is compared or masked
 *   kerb_detach        all kernels: a comparison bounds what a number was computed from
 *   kerb_reread, kerb_through, kerb_unknown_zero, kerb_forget, kerb_mix
 *                      all kernels, up to 6.1 most
 *   kerb_key32, kerb_overwritten
 *                      all kernels: the stack is compared in slots of 8 bytes, and a write to
 *                      4 of them does not end the life of what the slot held before */
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

/* A function that the verifier checks once, by itself, and not in every state of its callers: it
 * takes numbers and the hook's context only, and is not static. */
#define KERB_GLOBAL __attribute__((noinline))

/* A variable with the key of a map that has 32-bit keys, which are its lower half (little endian).
 * The verifier compares the stack in slots of 8 bytes, and takes what one held before for needed
 * until all 8 are written. A variable of 4 bytes is part of a slot: states that differ in what was
 * there before, such as the key of another map, are not merged, and all that is behind is followed
 * once for each. */
typedef __u64 kerb_key32;
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the key is the lower half");

/* The compiler writes all 8 bytes of x to the stack here, also if part of them changes behind. */
#define kerb_overwritten(x) asm volatile("" : "+m"(x))

/* A 32-bit field of the hook's context. By hand, since the compiler may move the offset into the
 * pointer, and the verifier allows no changed pointer to a context. */
#define kerb_ctx_field(ctx, field)                                                  \
	({                                                                          \
		__u64 _value;                                                       \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                               \
			     : "=r"(_value)                                         \
			     : "r"(ctx), "i"(__builtin_offsetof(kerb_ctx, field))); \
		_value;                                                             \
	})

/* The compiler forgets what it knows of x: what follows is computed from x at this place, without
 * branches of its own, and a bound of x is checked again. */
#define kerb_opaque(x)	   asm volatile("" : "+r"(x))
#define kerb_opaque2(x, y) asm volatile("" : "+r"(x), "+r"(y))

/* x &= mask (a constant), which the compiler does not leave out. */
#define kerb_bound(x, mask) asm volatile("%0 &= %1" : "+r"(x) : "i"(mask))

/* x keeps its value and becomes a number of its own to the verifier: a comparison does not bound
 * what x was computed from. */
#define kerb_detach(x) asm volatile("%0 ^= 0" : "+r"(x))

/* Reads x from memory again, instead of what the compiler has kept of it. */
#define kerb_reread(x) (*(const volatile typeof(x) *)&(x))

/* The number, of which the verifier knows nothing any more. word is memory of a map, of the
 * number's size. */
#define kerb_through(word, number)                            \
	({                                                    \
		*(volatile typeof(word) *)&(word) = (number); \
		*(volatile typeof(word) *)&(word);            \
	})

/* Zero, which the verifier does not know. */
#define kerb_unknown_zero(ctx)                                        \
	({                                                            \
		__u64 _zero = kerb_ctx_field(ctx, KERB_CTX_IFINDEX) - \
			      kerb_ctx_field(ctx, KERB_CTX_IFINDEX);  \
		kerb_opaque(_zero);                                   \
		_zero;                                                \
	})

/* Has the verifier forget what the parser found, but for the bounds of the packet and l4_len. zero
 * is one that it does not know. */
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
