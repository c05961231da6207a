// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* Packets that the kernel drops after the last chain: called for each dropped packet (raw
 * tracepoint skb:kfree_skb) while a trace requests it. Recognizes packets of a trace by their
 * trace_key, as their next chain would, and ignores others. IPv6 packets with extension headers are
 * not recognized. Compiled with KERB_HOOK_TC for the headers only. */
#include <kerb/types.h>
#include <kerb/parse.h>

#include "chain_trace_read.h"
#include "chain_trace_maps.h"

#define KERB_KERNEL_NAME  64  /* of a function name with its NUL */
#define KERB_KERNEL_BYTES 128 /* of a packet, from its IP header on: as many as trace_key reads */

struct kerb_kernel_drop {
	struct kerb_trace_event event;
	char function[KERB_KERNEL_NAME]; /* follows the event in the ring buffer */
	/* KERB_KERNEL_BYTES; larger, as the verifier assumes that each header starts anywhere */
	__u8 packet[1024];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_kernel_drop);
} kerb_kernel SEC(".maps");

/* Offsets in struct sk_buff of the running kernel, set by internal/dataplane/kerneldrops.go. */
const volatile __u32 kerb_skb_head = 0;
const volatile __u32 kerb_skb_tail = 0;
const volatile __u32 kerb_skb_network_header = 0;

/* Copies the linear part of the packet from its IP header on, and returns its length. */
static __always_inline __u32 kernel_read(const void *skb, __u8 *to)
{
	const __u8 *head = 0;
	__u32 tail = 0, n;
	__u16 l3 = 0;

	bpf_probe_read_kernel(&head, sizeof(head), skb + kerb_skb_head);
	bpf_probe_read_kernel(&tail, sizeof(tail), skb + kerb_skb_tail);
	bpf_probe_read_kernel(&l3, sizeof(l3), skb + kerb_skb_network_header);
	if (tail <= l3)
		return 0;
	n = tail - l3;
	if (n > KERB_KERNEL_BYTES)
		n = KERB_KERNEL_BYTES;
	kerb_bound(n, 2 * KERB_KERNEL_BYTES - 1);
	return bpf_probe_read_kernel(to, n, head + l3) ? 0 : n;
}

/* Returns a bit mask of the sessions that trace the packet. It is not removed from kerb_followed:
 * this may be a clone of a packet that still reaches another chain. */
static __always_inline __u64 kernel_trace_lookup(struct kerb_kernel_drop *d, __u32 n)
{
	const void *data = d->packet, *end = d->packet + n;
	struct kerb_trace_event *e = &d->event;
	union trace_where w = { .family = 4 }; /* trace_read_ip reads the version of the packet */
	struct kerb_followed *f;
	__u64 key;
	__u32 off = trace_read_ip(data, end, w, 0, e);

	if (e->proto != IPPROTO_TCP && e->proto != IPPROTO_UDP && e->proto != IPPROTO_ICMP &&
	    e->proto != IPPROTO_ICMPV6)
		off = 0;
	trace_read_l4(data, end, off, e);
	key = trace_key(data, end, w, off, e);
	f = key ? bpf_map_lookup_elem(&kerb_followed, &key) : 0;
	if (!f || e->time - f->time > KERB_FOLLOWED_TIME)
		return 0;
	e->trace = f->trace;
	return f->sessions;
}

SEC("raw_tracepoint/kfree_skb") int kerb_kernel_drop(struct bpf_raw_tracepoint_args *ctx)
{
	static const char symbol[] = "%ps";
	__u64 sessions, location = ctx->args[1];
	struct kerb_kernel_drop *d;
	__u32 zero = 0, n;

	d = bpf_map_lookup_elem(&kerb_kernel, &zero);
	if (!d)
		return 0;
	__builtin_memset(&d->event, 0, sizeof(d->event));
	d->event.time = bpf_ktime_get_ns();
	n = kernel_read((const void *)ctx->args[0], d->packet);
	if (!n)
		return 0;
	sessions = kernel_trace_lookup(d, n);
	if (!sessions)
		return 0;
	d->event.position = KERB_TRACE_KERNEL;
	d->event.note = (__u32)ctx->args[2];
	d->event.cpu = bpf_get_smp_processor_id();
	bpf_snprintf(d->function, sizeof(d->function), symbol, &location, sizeof(location));
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < KERB_TRACE_SESSIONS; i++) {
		__u32 session = i;
		struct kerb_trace_filter *f = bpf_map_lookup_elem(&kerb_filter, &session);
		void *ring;

		if (!f || !f->after || !(sessions >> i & 1))
			continue;
		ring = bpf_map_lookup_elem(&kerb_events, &session);
		if (!ring || bpf_ringbuf_output(ring, d, sizeof(d->event) + KERB_KERNEL_NAME, 0))
			__sync_fetch_and_add(&f->lost, 1);
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
