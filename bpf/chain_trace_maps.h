/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps that all traced chains share, also with the program for packets that the kernel drops
 * (kernel_drops.bpf.c). */
#ifndef KERB_CHAIN_TRACE_MAPS_H
#define KERB_CHAIN_TRACE_MAPS_H

#include <kerb/trace.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__type(value, struct kerb_trace_filter);
} kerb_filter SEC(".maps");

/* A ring buffer for each session, so that a slow reader loses only its own events. */
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

/* A packet that has passed a traced chain, by trace_key, computed after each module, so that the
 * next chain of this node recognizes it even if a module has changed its addresses. The packet
 * itself is not changed. Written by traced chains; when the map is full, the oldest packets are
 * evicted. */
struct kerb_followed {
	__u64 trace;
	__u64 time;	   /* ns, CLOCK_MONOTONIC */
	__u64 sessions;	   /* bit mask of the sessions that trace it */
	__u64 shown;	   /* those of them that got events of it */
	__u64 first, last; /* points where its trace started, and where it was last */
};

#define KERB_FOLLOWED_TIME (1000 * 1000 * 1000ULL) /* maximum between two chains, ns */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct kerb_followed);
} kerb_followed SEC(".maps");

#endif /* KERB_CHAIN_TRACE_MAPS_H */
