/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Control messages: consumers change their classes while packets flow. */
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

#define ICPT_AT_ONCE 16 /* messages of a class that one packet waits for */

/* What is no message, the kernel skips by itself: up to 131,072 in milliseconds. Where that takes
 * longer than messages do, the class has a rest of a thousand times as long; not if it is the first
 * time for a while, which may have been an interrupt or a hypervisor. */
#define ICPT_DRAIN_NS 200000
#define ICPT_REST     1000
#define ICPT_WHILE    10000000000ULL /* ns */

/* By slot: no control messages are taken before, ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ICPT_RINGS);
	__type(key, __u32);
	__type(value, __u64);
} rests SEC(".maps");

struct icpt_draining {
	__u32 slot, done;
	__u32 rung; /* bit slot */
	__u32 half;
	__u32 open; /* a program has the class: messages that one before has left are skipped */
	struct icpt_state *state;
};

static __always_inline void icpt_set_payload(struct icpt_class *c, const struct icpt_control *m)
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

static __always_inline void icpt_set_ports(struct icpt_table *t, struct icpt_class *c,
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
		} else if (i >= n && i < m->index) { /* those between match nothing */
			c->to_port[i].first = 1;
			c->to_port[i].last = 0;
		}
	}
	if (n <= m->index)
		c->to_ports = m->index + 1;
	t->any_port = 1;
}

static __noinline void icpt_set(struct icpt_table *t, struct icpt_class *c, struct icpt_state *s,
				const struct icpt_control *m)
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
		/* else the kernel would answer as any service, at a program's word */
		if (!c->fallback)
			icpt_set_ports(t, c, m);
		break;
	case ICPT_OP_PAYLOAD:
		icpt_set_payload(c, m);
		break;
	}
}

static long icpt_message(struct bpf_dynptr *from, struct icpt_draining *d)
{
	struct icpt_table *t = icpt_table(d->half);
	struct icpt_control m = {};
	__u32 slot = d->slot, class;

	if (!t || !d->state || slot >= ICPT_RINGS)
		return 1;
	class = t->of_ring[slot];
	if (d->open && class < ICPT_CLASSES && !bpf_dynptr_read(&m, sizeof(m), from, 0, 0))
		icpt_set(t, &t->classes[~t->version & 1][class], d->state, &m);
	return ++d->done >= ICPT_AT_ONCE;
}

/* Has packets meet what icpt_message has changed of the class of a slot, then changes the other
 * copy. The result of the addition is used: else it would be no barrier. Global, as icpt_classify
 * is. */
__attribute__((noinline)) int icpt_publish(__u32 slot, __u32 half)
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

static long icpt_drain(__u32 slot, struct icpt_draining *d)
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
	bpf_user_ringbuf_drain(ring, icpt_message, d, BPF_RB_NO_WAKEUP);
	if (d->done)
		icpt_publish(slot, d->half);
	took = bpf_ktime_get_ns() - start;
	if (took > ICPT_DRAIN_NS)
		*until = start > *until + ICPT_WHILE ? start : start + took * ICPT_REST;
	if (d->done >= ICPT_AT_ONCE) /* the next packet continues */
		__sync_lock_test_and_set(&s->doorbell, 1);
	return 0;
}

/* Which classes have control messages, bit slot. Global, as icpt_classify is. */
__attribute__((noinline)) __u32 icpt_rung(__u32 half)
{
	struct icpt_table *t = icpt_table(half);
	__u32 rung = 0, zero = 0;
	struct icpt_state *s;

	if (!t)
		return 0;
#define ICPT_LISTEN(n)                              \
	if (n >= t->rings)                          \
		return rung;                        \
	s = bpf_map_lookup_elem(&state_##n, &zero); \
	if (s)                                      \
		rung |= (*(volatile __u32 *)&s->doorbell & 1) << n;
	ICPT_EACH_RING(ICPT_LISTEN)
	return rung;
}

/* Takes what consumers want to have changed. One CPU at a time: another one leaves it to the next
 * packet. Global, too. */
__attribute__((noinline)) int icpt_take_controls(__u32 rung, __u32 half)
{
	struct icpt_table *t = icpt_table(half);
	struct icpt_draining d = {.rung = rung, .half = half};

	if (!t || __sync_val_compare_and_swap(&t->draining, 0, 1))
		return 0;
	bpf_loop(ICPT_RINGS, icpt_drain, &d, 0);
	__sync_lock_test_and_set(&t->draining, 0);
	return 1;
}

#endif
