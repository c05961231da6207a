/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Latency of modules. Of each 4,096 packets on a CPU two run in a timed copy of the chain, which
 * the program of the chain tail-calls: the first warms up the CPU's caches, as the copy runs
 * rarely, and the second is measured. Without a copy the tail call does nothing. Both packets are
 * counted before the tail call, so the copy does not count them again; everything else it does as
 * the chain does. */
#ifndef KERB_CHAIN_LATENCY_H
#define KERB_CHAIN_LATENCY_H

#include <kerb/histogram.h>

#define KERB_SAMPLE_PERIOD   4096
#define KERB_LATENCY_BUCKETS 80 /* the last one has 1.8 ms and more */

/* ns that packets took, as sum and as a histogram. */
struct kerb_latency {
	__u64 sum;
	__u64 buckets[KERB_LATENCY_BUCKETS];
};

/* Position 0 is the chain, 1 + i its module i. The linker sets the number of entries
 * (internal/dataplane/latency.go). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_latency);
} kerb_latency SEC(".maps");

/* Positions of stamps that are no module. */
#define KERB_STAMP_CHAIN 0    /* behind everything */
#define KERB_STAMP_CLOCK 0xfe /* behind nothing */
#define KERB_STAMP_HEAD	 0xff

/* The packet that a CPU's timed copy works on. Not on its stack, as parts of a split chain do not
 * share it. */
struct kerb_stamps {
	__u64 measured; /* number of the packet on its CPU, 0: it is not measured */
	__u64 last;	/* when the last stamp ended */
	__u64 clock;	/* what a stamp takes by itself */
	__u64 total;	/* what the packet took so far */
	__u64 took;	/* between the last two stamps */
	__u64 where;	/* trace_where of the packet */
	__u64 longest;	/* what the slowest module took so far */
	__u64 slowest;	/* place of that module */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_stamps);
} kerb_stamps SEC(".maps");

/* Called before the tail call into the timed copy, for a packet that has been counted: chooses the
 * next packet. Packets with even numbers warm up, and those behind them are measured. The choice is
 * random within each period, so that traffic with a period of its own does not have the same packet
 * measured each time. */
SEC("kerb/sample") int kerb_sample(void)
{
	struct kerb_counts *c = chain_counts();
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

static __always_inline struct kerb_stamps *stamps(void)
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

/* Takes a number only, so that the verifier checks it once, not in the context of each module. */
__noinline int kerb_stamp_at(__u32 position)
{
	struct kerb_stamps *s = stamps();
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

/* Ends the time of what is at a position. */
SEC("kerb/stamp") int kerb_stamp(__u32 position)
{
	kerb_stamp_at(position);
	return 0;
}

/* Begins a timed copy, in place of kerb_count. */
SEC("kerb/time_start") int kerb_time_start(kerb_ctx *ctx, struct kerb_pkt *pkt)
{
	struct kerb_counts *c = chain_counts();
	struct kerb_stamps *s = stamps();

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
