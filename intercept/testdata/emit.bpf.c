// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The kernel part of a class, as record.h describes it: each packet of a test run goes into the
 * ring. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../../modules/intercept/record.h"

#define SLOT 3
#define ROOM 2048

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} ring SEC(".maps");

struct page {
	__u8 bytes[ICPT_PAGE];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct page);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, ICPT_CONTROLS);
} controls SEC(".maps");

struct numbers {
	__u64 seq, lost, controls;
	struct icpt_control last;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct numbers);
} numbers SEC(".maps");

static long take(struct bpf_dynptr *message, __u32 *zero)
{
	struct numbers *n = bpf_map_lookup_elem(&numbers, zero);

	if (n && !bpf_dynptr_read(&n->last, sizeof(n->last), message, 0, 0))
		n->controls++;
	return 0;
}

/* A packet of 14 bytes is none: it has control messages examined. */
SEC("xdp") int emit(struct xdp_md *ctx)
{
	__u32 zero = 0, len = (__u32)bpf_xdp_get_buff_len(ctx), wait;
	struct numbers *n = bpf_map_lookup_elem(&numbers, &zero);
	struct icpt_state *s = bpf_map_lookup_elem(&state, &zero);
	struct icpt_record *r;
	void *none;
	__u64 seq;

	if (!n || !s)
		return XDP_ABORTED;
	if (__sync_lock_test_and_set(&s->doorbell, 0))
		bpf_user_ringbuf_drain(&controls, take, &zero, 0);
	if (len <= 14 || len > ROOM)
		return XDP_PASS;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r) + ROOM, 0);
	seq = __sync_fetch_and_add(&n->seq, 1);
	if (!r) {
		n->lost++;
		return XDP_PASS;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->seq = seq;
	r->time = bpf_ktime_get_ns();
	r->lost = n->lost;
	r->len = r->caplen = len;
	r->l3 = 14;
	r->l4 = 34;
	r->payload = 42;
	r->slot = SLOT;
	r->ifindex = 7;
	r->flags = ICPT_STOLEN | ICPT_IP4 | ICPT_L4 | 0x123 << ICPT_TCI_SHIFT;
	asm volatile("" : "+r"(len));
	if (!len || len > ROOM || bpf_xdp_load_bytes(ctx, 0, r + 1, len)) {
		bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);
		return XDP_ABORTED;
	}
	wait = *(volatile __u32 *)&s->waiting;
	if (wait)
		*(volatile __u32 *)&s->waiting = 0;
	bpf_ringbuf_submit(r, wait ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	if (wait || !*(volatile __u32 *)&s->waiting)
		return XDP_DROP;
	*(volatile __u32 *)&s->waiting = 0;
	none = bpf_ringbuf_reserve(&ring, sizeof(__u64), 0);
	if (none)
		bpf_ringbuf_discard(none, BPF_RB_FORCE_WAKEUP);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
