/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The Echo option as amplification mitigation (RFC 9175, sections 2.3 and 2.4): a request whose
 * reply would be much longer is answered with 4.01 and an Echo value. The client repeats the
 * request with that value, which it knows only if it receives packets to its address. The value is
 * a keyed hash of address and time, so no state is stored for a source. */
#ifndef RSP_COAP_CHALLENGE_H
#define RSP_COAP_CHALLENGE_H

#include <kerb/siphash.h>

#include "message.h"

#define COAP_UNAUTHORIZED 0x81
/* a value is valid in the period of 2^36 ns (69 s) in which it was created, and in the next one */
#define COAP_ECHO_SHIFT	  36

/* Key of the hash, created with each configuration. The control plane writes random numbers; before
 * that, zeros prove nothing. */
struct coap_secret {
	__u64 key[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct coap_secret);
} coap_secrets SEC(".maps");

/* The input of the hash: addresses in network byte order, the rest in host byte order. */
struct coap_claim {
	__u64 addr[2];
	__u64 family;
	__u64 period;
};

#define COAP_OUT(type, off) (*(type *)(out + ((off) & 0x3f)))

static __noinline __u64 coap_claim_hash(const struct coap_claim *c,
					const struct coap_secret *secret)
{
	kerb_siphash_begin(secret->key);
	__u64 words[5] = {c->addr[0], c->addr[1], c->family, c->period, sizeof(*c) << 56};

#pragma unroll
	for (int i = 0; i < 5; i++)
		kerb_siphash_update(words[i]);
	return kerb_siphash_end();
}

/* Writes the Echo option of a 4.01 reply after header and token. Returns the length of the
 * reply. */
static __always_inline __u32 coap_put_challenge(__u8 *out, __u32 off, __u64 echo)
{
	/* 13: the option delta less 13 is in the next byte (RFC 7252, section 3.1) */
	COAP_OUT(__u8, off) = 13 << 4 | sizeof(echo);
	COAP_OUT(__u8, off + 1) = COAP_ECHO - 13;
	COAP_OUT(__u64, off + 2) = echo;
	return off + 2 + sizeof(echo);
}

/* Returns whether an Echo value was created for the source in this period or in the previous
 * one. */
static __always_inline int coap_is_proven(__u64 echo, struct coap_claim *c,
					  const struct coap_secret *secret)
{
	c->period--;
	if (echo == coap_claim_hash(c, secret))
		return 1;
	c->period++;
	return echo == coap_claim_hash(c, secret);
}

#endif
