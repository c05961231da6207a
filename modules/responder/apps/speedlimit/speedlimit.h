/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A road sign that sends approaching cars the speed limit, which depends on the number of cars in
 * range. A request has 8 bytes, u32 OP and u32 VALUE, in the byte order of its sender, which is
 * detected by OP. */
#ifndef RSP_SPEEDLIMIT_H
#define RSP_SPEEDLIMIT_H

#include <kerb/fixed.h>

#include "../../respond.h"

enum sl_op {
	SL_REPLY = 3,
	SL_GET = 4,
	SL_OUT_OF_RANGE = 5,
};

/* listener->config[0]; with SL_USER all requests pass. */
enum sl_mode {
	SL_MIXED = 0,  /* the control plane computes the limit */
	SL_KERNEL = 1, /* computed for every request */
	SL_USER = 2,
};

#define SL_FREE 30  /* fewer cars: 120 km/h */
#define SL_FULL 100 /* as many or more: 30 km/h */

struct sl_message {
	__u32 op, value;
};

/* Written by the data plane, under the lock, as each change depends on the previous value. */
struct sl_count {
	struct bpf_spin_lock lock;
	__u32 zero;
	__s64 cars;	/* in range, less sl_given.offset */
	__u64 asked;	/* handled GET_SPEED_LIMIT requests */
	__u64 left;	/* handled OUT_OF_RANGE requests */
	__u64 spare[4]; /* fills a cache line */
};

/* Written by the control plane. */
struct sl_given {
	__s64 offset; /* cars that user space counts in addition to sl_count.cars */
	__u32 limit;  /* km/h, for SL_MIXED */
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct sl_count);
} sl_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct sl_given);
} sl_given SEC(".maps");

/* Returns the limit for a number of cars c by the published curve: 120 km/h for c < 30, 45
 * cos(pi/70 (c - 30)) + 75 for 30 <= c < 100, otherwise 30, rounded to the nearest integer. The
 * cosine is computed as -sin(pi/70 (c - 65)), with a period of 140 cars. The error before rounding
 * is below 0.001 km/h; a test checks each c. */
static __always_inline __u32 sl_limit(__s64 cars)
{
	if (cars < SL_FREE)
		return 120;
	if (cars >= SL_FULL)
		return 30;
	return kerb_fixed_round(75 * KERB_FIXED_ONE -
				45 * kerb_fixed_wave((__u64)(cars - 65) * (~0ULL / 140)));
}

static __always_inline int speedlimit_check(struct rsp_request *r)
{
	struct sl_message *m = kerb_request_at(&r->req, 0, sizeof(*m));
	__u32 op;

	if (!m)
		return RSP_PASS;
	r->why = 1;
	if (r->listener->config[0] == SL_USER)
		return RSP_PASS;
	r->why = 0;
	op = m->op;
	r->req.reply_len = sizeof(*m);
	if (op == SL_GET || op == __builtin_bswap32(SL_GET))
		return RSP_REPLY;
	return op == SL_OUT_OF_RANGE || op == __builtin_bswap32(SL_OUT_OF_RANGE) ? RSP_CONSUME
										 : RSP_PASS;
}

static __always_inline int speedlimit_answer(struct rsp_request *r)
{
	struct sl_message *m = kerb_request_at(&r->req, 0, sizeof(*m)), reply;
	struct sl_count *n = bpf_map_lookup_elem(&sl_counts, &r->slot);
	struct sl_given *given = bpf_map_lookup_elem(&sl_given, &r->slot);
	__s64 offset, cars;
	__u32 op;

	if (!m || !n || !given)
		return -1;
	op = m->op;
	offset = given->offset;
	if (op == SL_OUT_OF_RANGE || op == __builtin_bswap32(SL_OUT_OF_RANGE)) {
		bpf_spin_lock(&n->lock);
		if (n->cars + offset > 0)
			n->cars--;
		n->left++;
		bpf_spin_unlock(&n->lock);
		rsp_changed(r);
		return 0;
	}
	bpf_spin_lock(&n->lock);
	cars = n->cars;
	if (cars + offset < 0)
		cars = -offset;
	n->cars = ++cars;
	n->asked++;
	bpf_spin_unlock(&n->lock);
	rsp_changed(r);
	reply.op = op == SL_GET ? SL_REPLY : __builtin_bswap32(SL_REPLY);
	reply.value = r->listener->config[0] == SL_KERNEL ? sl_limit(cars + offset) : given->limit;
	if (op != SL_GET)
		reply.value = __builtin_bswap32(reply.value);
	return kerb_reply_store(&r->req, 0, &reply, sizeof(reply));
}

#endif
