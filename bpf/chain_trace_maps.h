/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What traced chains share with each other, and with the program that sees what the kernel drops
 * after them (kernel_drops.bpf.c). */
#ifndef KERB_CHAIN_TRACE_MAPS_H
#define KERB_CHAIN_TRACE_MAPS_H

#include <kerb/trace.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__type(value, struct kerb_trace_filter);
} kerb_filter SEC(".maps");

/* Each session has a ring of its own: one that is slow to read loses its own events. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_RINGBUF);
			__uint(max_entries, 1 << 20);
		});
} kerb_events SEC(".maps");

/* A packet that has passed a traced chain, by trace_key: its next chain on this node knows it by
 * that, whatever a module has made of its addresses. Nothing of the packet is changed for it.
 * Written by traced chains; when it is full, packets that passed long ago are forgotten. */
struct kerb_followed {
	__u64 trace;
	__u64 time;	   /* ns, CLOCK_MONOTONIC */
	__u64 sessions;	   /* that want it, bits */
	__u64 shown;	   /* of them, those that have events of it */
	__u64 first, last; /* points at which its trace began, and where it was last */
};

#define KERB_FOLLOWED_TIME (1000 * 1000 * 1000ULL) /* ns between two chains */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct kerb_followed);
} kerb_followed SEC(".maps");

#endif /* KERB_CHAIN_TRACE_MAPS_H */
