/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Replies with fixed bytes, words copied from the request, and a linear function of its numbers: a
 * constant reply, or a control law with fixed-point coefficients. */
#ifndef RSP_LINEAR_H
#define RSP_LINEAR_H

#include <kerb/fixed.h>

#include "../../respond.h"

#define LINEAR_REPLY 64 /* bytes at most */
#define LINEAR_WORDS 4	/* words of 4 bytes that are copied */
#define LINEAR_TERMS 4

struct linear_word {
	__u16 from, to;
};

struct linear_term {
	kerb_fixed times;
	__u16 from, zero;
};

/* Offsets are in the payload. The control plane ensures that 4 bytes at each offset are within it:
 * `from` by listener->min_request, `to` by len. */
struct linear_law {
	__u8 reply[LINEAR_REPLY];
	struct linear_word word[LINEAR_WORDS];
	struct linear_term term[LINEAR_TERMS];
	__s32 constant;
	__u16 to, len;
	__u8 words, terms, little_endian, zero[5];
};

/* By slot; those of half 1 follow those of half 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct linear_law);
} linear_laws SEC(".maps");

/* Swaps the byte order if the law is little-endian. Without a branch, which the verifier would
 * follow for each number. */
static __always_inline __u32 linear_order(const struct linear_law *law, __u32 be)
{
	__u64 swap = -(__u64)law->little_endian;

	return (be & ~swap) | (__builtin_bswap32(be) & swap);
}

/* Returns the place of 4 bytes of a reply. The offset is masked, so that it is within the
 * buffer. */
static __always_inline __u32 *linear_place(struct rsp_scratch *s, __u32 to)
{
	kerb_opaque(to);
	return (void *)(s->data + (to & (LINEAR_REPLY - 1)));
}

/* Evaluates the law: each product is rounded to an integer, halves up, and the sum is clamped.
 * Returns 0, or -1 if the request is too short. */
static __always_inline int linear_value(const struct rsp_request *r, const struct linear_law *law,
					__s32 *value)
{
	__s64 sum = law->constant;

#pragma unroll
	for (int i = 0; i < LINEAR_TERMS; i++) {
		const struct linear_term *t = &law->term[i];
		__be32 *p;

		if (i >= law->terms)
			break;
		p = kerb_request_at(&r->req, t->from, sizeof(*p));
		if (!p)
			return -1;
		sum += ((__s64)(__s32)linear_order(law, bpf_ntohl(*p)) * t->times +
			KERB_FIXED_ONE / 2) >>
		       KERB_FIXED_BITS;
	}
	*value = kerb_fixed_clamp(sum);
	return 0;
}

/* Writes the reply to the scratch buffer, as the request may be truncated before linear_answer. */
static __always_inline int linear_check(struct rsp_request *r)
{
	kerb_key32 at = r->slot + r->half * RSP_SLOTS;
	struct linear_law *law = bpf_map_lookup_elem(&linear_laws, &at);
	struct rsp_scratch *s = rsp_scratch();
	__s32 value;

	if (!law || !s)
		return RSP_PASS;
	__builtin_memcpy(s->data, law->reply, sizeof(law->reply));
#pragma unroll
	for (int i = 0; i < LINEAR_WORDS; i++) {
		__u32 *p;

		if (i >= law->words)
			break;
		p = kerb_request_at(&r->req, law->word[i].from, sizeof(*p));
		if (!p)
			return RSP_PASS;
		*linear_place(s, law->word[i].to) = *p;
	}
	if (law->terms) {
		if (linear_value(r, law, &value))
			return RSP_PASS;
		*linear_place(s, law->to) = bpf_htonl(linear_order(law, value));
	}
	r->scratch = 1;
	r->req.reply_len = law->len;
	return RSP_REPLY;
}

static __always_inline int linear_answer(struct rsp_request *r)
{
	return 0;
}

#endif
