/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The Echo option against amplification (RFC 9175, sections 2.3 and 2.4): a request whose reply
 * would be much longer is answered 4.01 with an Echo value, and its client repeats it with that
 * value, which it knows only if it receives what is sent to its address. The value is a keyed hash
 * of address and time: nothing is stored for a source. */
#ifndef RSP_COAP_CHALLENGE_H
#define RSP_COAP_CHALLENGE_H

#include <kerb/siphash.h>

#include "message.h"

#define COAP_UNAUTHORIZED 0x81
/* a value is good for the period of 2^36 ns (69 s) that it was made in, and for the next one */
#define COAP_ECHO_SHIFT	  36

/* Made again with each configuration. User space writes random numbers; zeros, as long as it has
 * not, prove nothing. */
struct coap_secret {
	__u64 key[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct coap_secret);
} coap_secrets SEC(".maps");

/* What is hashed: words in network byte order as they lie in memory, the rest in the host's. */
struct coap_claim {
	__u64 addr[2];
	__u64 family;
	__u64 period;
};

#define COAP_OUT(type, off) (*(type *)(out + ((off) & 0x3f)))

static __noinline __u64 coap_hash(const struct coap_claim *c, const struct coap_secret *secret)
{
	kerb_siphash_begin(secret->key);
	__u64 words[5] = {c->addr[0], c->addr[1], c->family, c->period, sizeof(*c) << 56};

#pragma unroll
	for (int i = 0; i < 5; i++)
		kerb_siphash_update(words[i]);
	return kerb_siphash_end();
}

/* Writes 4.01 with an Echo option behind header and token, which are there already. Returns the
 * length of the reply. */
static __always_inline __u32 coap_put_challenge(__u8 *out, __u32 off, __u64 echo)
{
	/* the option's number less 13 is in the next byte */
	COAP_OUT(__u8, off) = 13 << 4 | sizeof(echo);
	COAP_OUT(__u8, off + 1) = COAP_ECHO - 13;
	COAP_OUT(__u64, off + 2) = echo;
	return off + 2 + sizeof(echo);
}

/* Whether the request has an Echo value that was made for its source in this period or in the one
 * before. */
static __always_inline int coap_is_proven(__u64 echo, struct coap_claim *c,
					  const struct coap_secret *secret)
{
	c->period--;
	if (echo == coap_hash(c, secret))
		return 1;
	c->period++;
	return echo == coap_hash(c, secret);
}

#endif
