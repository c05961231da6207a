/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Control messages: consumers change their classes without a new configuration (Linux 6.1). */
#ifndef ICPT_CONTROL_H
#define ICPT_CONTROL_H

#include "deliver.h"

struct icpt_control_ring {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, ICPT_CONTROLS);
};

#define ICPT_DECLARE_CONTROL(n) struct icpt_control_ring control_##n SEC(".maps");
#define ICPT_PLACE_CONTROL(n) [n] = &control_##n,

ICPT_EACH_RING(ICPT_DECLARE_CONTROL)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__array(values, struct icpt_control_ring);
} controls SEC(".maps") = {.values = {ICPT_EACH_RING(ICPT_PLACE_CONTROL)}};

#define ICPT_MAX_MESSAGES 16 /* messages of a class that one packet applies */

/* The kernel skips discarded records in the ring, up to 131,072 of them, which takes milliseconds.
 * If draining a ring takes longer than ICPT_DRAIN_NS, its class is paused for ICPT_PAUSE_FACTOR
 * times as long; not if that did not happen for ICPT_PAUSE_FREE_NS: then it may have been an
 * interrupt or the hypervisor. */
#define ICPT_DRAIN_NS	   200000
#define ICPT_PAUSE_FACTOR  1000
#define ICPT_PAUSE_FREE_NS 10000000000ULL

/* By slot: time before which no control messages are read, ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__type(value, __u64);
} rests SEC(".maps");

struct icpt_drain {
	__u32 slot, done;
	__u32 rung; /* bit mask of slots with a doorbell */
	__u32 half;
	__u32 open; /* the class has a consumer; otherwise messages are skipped */
	struct icpt_state *state;
};

static __always_inline void icpt_class_set_payload(struct icpt_class *c,
						   const struct icpt_control *m)
{
	struct icpt_bytes *b;
	__u64 mask = *(const __u64 *)m->mask;

	if (m->index >= ICPT_BYTES || (m->value & 0xffff) > 8 || m->value >> 32)
		return;
	b = &c->payload[m->index];
	b->offset = m->value >> 16;
	b->len = m->value;
	b->mask = mask;
	b->bytes = *(const __u64 *)m->bytes & mask;
}

static __always_inline void icpt_class_set_ports(struct icpt_table *t, struct icpt_class *c,
						 const struct icpt_control *m)
{
	__u32 n = c->to_ports;

	if (m->index >= ICPT_LIST || m->value >> 32)
		return;
#pragma unroll
	for (__u32 i = 0; i < ICPT_LIST; i++) {
		if (i == m->index) {
			c->to_port[i].first = m->value >> 16;
			c->to_port[i].last = m->value;
		} else if (i >= n && i < m->index) { /* ranges in between match nothing */
			c->to_port[i].first = 1;
			c->to_port[i].last = 0;
		}
	}
	if (n <= m->index)
		c->to_ports = m->index + 1;
	t->any_port = 1;
}

static __noinline void icpt_control_apply(struct icpt_table *t, struct icpt_class *c,
					  struct icpt_state *s, const struct icpt_control *m)
{
	switch (m->op) {
	case ICPT_OP_START:
	case ICPT_OP_STOP:
		c->stopped = s->stopped = m->op == ICPT_OP_STOP;
		break;
	case ICPT_OP_ACTION:
		if (m->value <= ICPT_MARK && m->value != ICPT_ANSWER)
			c->action = m->value;
		break;
	case ICPT_OP_PRIORITY:
		c->priority = m->value;
		break;
	case ICPT_OP_MAX_BYTES:
		if (m->value && m->value <= ICPT_MAX_BYTES)
			c->max_bytes = m->value;
		break;
	case ICPT_OP_DEADLINE:
		s->deadline = m->value;
		break;
	case ICPT_OP_PORTS:
		/* otherwise a program could make the fallback answer for any service */
		if (!c->fallback)
			icpt_class_set_ports(t, c, m);
		break;
	case ICPT_OP_PAYLOAD:
		icpt_class_set_payload(c, m);
		break;
	}
}

static long icpt_control_read(struct bpf_dynptr *from, struct icpt_drain *d)
{
	struct icpt_table *t = icpt_table(d->half);
	struct icpt_control m = {};
	__u32 slot = d->slot, class;

	if (!t || !d->state || slot >= ICPT_RINGS)
		return 1;
	class = t->of_ring[slot];
	if (d->open && class < ICPT_CLASSES && !bpf_dynptr_read(&m, sizeof(m), from, 0, 0))
		icpt_control_apply(t, &t->classes[~t->version & 1][class], d->state, &m);
	return ++d->done >= ICPT_MAX_MESSAGES;
}

/* Publishes the changed copy of the class of a slot, then updates the other copy (see struct
 * icpt_table). The result of the addition is used, as otherwise it would not be a barrier. Global
 * like icpt_classify. */
__attribute__((noinline)) int icpt_class_publish(__u32 slot, __u32 half)
{
	struct icpt_table *t = icpt_table(half);
	__u64 *from, *to;
	__u32 class, now;

	if (!t || slot >= ICPT_RINGS)
		return 0;
	class = t->of_ring[slot];
	if (class >= ICPT_CLASSES)
		return 0;
	now = __sync_fetch_and_add(&t->version, 1) + 1;
	from = (__u64 *)&t->classes[now & 1][class];
	to = (__u64 *)&t->classes[~now & 1][class];
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < sizeof(struct icpt_class) / sizeof(*to); i++)
		*(volatile __u64 *)&to[i] = from[i];
	return 0;
}

static long icpt_control_ring_drain(__u32 slot, struct icpt_drain *d)
{
	struct icpt_state *s = icpt_state(slot);
	__u64 start = bpf_ktime_get_ns(), took;
	__u64 *until = bpf_map_lookup_elem(&rests, &slot);
	void *ring;

	if (!(d->rung >> (slot & 31) & 1) || !s || !until || start < *until)
		return 0;
	__sync_lock_test_and_set(&s->doorbell, 0);
	ring = bpf_map_lookup_elem(&controls, &slot);
	if (!ring)
		return 0;
	d->slot = slot;
	d->state = s;
	d->open = icpt_has_consumer(slot);
	d->done = 0;
	bpf_user_ringbuf_drain(ring, icpt_control_read, d, BPF_RB_NO_WAKEUP);
	if (d->done)
		icpt_class_publish(slot, d->half);
	took = bpf_ktime_get_ns() - start;
	if (took > ICPT_DRAIN_NS)
		*until = start > *until + ICPT_PAUSE_FREE_NS ? start
							     : start + took * ICPT_PAUSE_FACTOR;
	if (d->done >= ICPT_MAX_MESSAGES) /* the next packet continues */
		__sync_lock_test_and_set(&s->doorbell, 1);
	return 0;
}

/* Returns a bit mask of the slots with pending control messages. Global like icpt_classify. */
__attribute__((noinline)) __u32 icpt_doorbells_read(__u32 half)
{
	struct icpt_table *t = icpt_table(half);
	__u32 rung = 0, zero = 0;
	struct icpt_state *s;

	if (!t)
		return 0;
#define ICPT_READ_DOORBELL(n)                       \
	if (n >= t->rings)                          \
		return rung;                        \
	s = bpf_map_lookup_elem(&state_##n, &zero); \
	if (s)                                      \
		rung |= (*(volatile __u32 *)&s->doorbell & 1) << n;
	ICPT_EACH_RING(ICPT_READ_DOORBELL)
	return rung;
}

/* Applies pending control messages. One CPU at a time: others leave it to the next packet. Global
 * like icpt_classify. */
__attribute__((noinline)) int icpt_controls_drain(__u32 rung, __u32 half)
{
	struct icpt_table *t = icpt_table(half);
	struct icpt_drain d = { .rung = rung, .half = half };

	if (!t || __sync_val_compare_and_swap(&t->draining, 0, 1))
		return 0;
	bpf_loop(ICPT_RINGS, icpt_control_ring_drain, &d, 0);
	__sync_lock_test_and_set(&t->draining, 0);
	return 1;
}

#endif
