/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Latency of modules. Of each 4,096 packets on a CPU, two run in a timed copy of the chain, by a
 * tail call: the first one warms up the caches, as the copy runs rarely, and the second one is
 * measured. Without a copy the tail call fails, and the chain continues. Both packets are counted
 * before the tail call, not in the copy; apart from that the copy does the same as the chain. */
#ifndef KERB_CHAIN_LATENCY_H
#define KERB_CHAIN_LATENCY_H

#include <kerb/histogram.h>

#define KERB_SAMPLE_PERIOD   4096
#define KERB_LATENCY_BUCKETS 80 /* the last one starts at 1.8 ms */

/* Sum and histogram of latencies, ns. */
struct kerb_latency {
	__u64 sum;
	__u64 buckets[KERB_LATENCY_BUCKETS];
};

/* Key 0 is the chain, 1 + i its module i. The linker sets the number of entries
 * (internal/dataplane/latency.go). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_latency);
} kerb_latency SEC(".maps");

/* Positions of timestamps other than modules. */
#define KERB_STAMP_CHAIN 0    /* end of the chain */
#define KERB_STAMP_CLOCK 0xfe /* calibration: the time that a stamp itself takes */
#define KERB_STAMP_HEAD	 0xff

/* State of the packet in the timed copy on a CPU. Not on the stack, which the parts of a split
 * chain do not share. */
struct kerb_stamps {
	__u64 measured; /* number of the packet on its CPU; 0: not measured */
	__u64 last;	/* end of the last stamp, ns */
	__u64 clock;	/* duration of a stamp itself, ns */
	__u64 total;	/* duration of the chain so far, ns */
	__u64 took;	/* duration between the last two stamps, ns */
	__u64 where;	/* trace_where of the packet */
	__u64 longest;	/* duration of the slowest module so far, ns */
	__u64 slowest;	/* position of that module */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_stamps);
} kerb_stamps SEC(".maps");

/* Chooses the next packet for the timed copy; called before the tail call, for a packet that was
 * counted. Packets with even numbers warm up, the ones after them are measured. The choice is
 * random within each period, so that it does not correlate with periodic traffic. */
SEC("kerb/sample") int kerb_sample(void)
{
	struct kerb_counts *c = counts_get();
	__u64 n;

	if (!c)
		return 0;
	n = c->in.packets - 1;
	if (n & 1)
		c->sample = (n | (KERB_SAMPLE_PERIOD - 1)) + 1 +
			    (bpf_get_prandom_u32() & (KERB_SAMPLE_PERIOD - 2));
	else
		c->sample = n + 1;
	return 0;
}

static __always_inline struct kerb_stamps *stamps_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&kerb_stamps, &zero);
}

static __always_inline void latency_count(__u32 position, __u64 ns)
{
	struct kerb_latency *l = bpf_map_lookup_elem(&kerb_latency, &position);

	if (!l)
		return;
	l->sum += ns;
	kerb_histogram_count(l->buckets, KERB_LATENCY_BUCKETS, ns);
}

/* Takes a timestamp: ends the time of a position. A global function of a scalar, so that the
 * verifier checks it once, not in the context of each module. */
__noinline int kerb_stamp_at(__u32 position)
{
	struct kerb_stamps *s = stamps_get();
	__u64 took;

	if (!s || !s->measured)
		return 0;
	took = bpf_ktime_get_ns() - s->last;
	if (position == KERB_STAMP_CLOCK) {
		s->clock = took;
	} else {
		took -= took < s->clock ? took : s->clock;
		s->took = took;
		s->total += took;
		if (position != KERB_STAMP_HEAD)
			latency_count(position, position == KERB_STAMP_CHAIN ? s->total : took);
	}
	s->last = bpf_ktime_get_ns();
	return 0;
}

/* kerb_stamp_at, for the generated entry. */
SEC("kerb/stamp") int kerb_stamp(__u32 position)
{
	kerb_stamp_at(position);
	return 0;
}

/* Starts a timed copy, instead of kerb_count. */
SEC("kerb/time_start") int kerb_time_start(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	struct kerb_counts *c = counts_get();
	struct kerb_stamps *s = stamps_get();

	pkt->ctx = ctx;
	pkt->len = frame_len(ctx);
	if (!c || !s)
		return 0;
	/* the count is one more than the number of the packet */
	s->measured = c->in.packets & 1 ? 0 : c->in.packets;
	s->total = 0;
	if (s->measured)
		s->last = bpf_ktime_get_ns();
	kerb_stamp_at(KERB_STAMP_CLOCK);
	return 0;
}

#endif
